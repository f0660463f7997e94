"""The paper's recipes against the published method (`published.py`): layers, losses, gradients, fresh blocks.

The recipe's own table of the model makes ours. Same weights and batch: same layers, same losses, same
gradients. What updates make of them is in `test_parity_updates.py`.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import torch
from torch import nn

from activault.store.layout import TokenLayout
from activault.train.blocks import RecurrentBlock
from activault.train.losses import SpanLoss, TokenWeights, kind_weights, mixture_loss
from activault.train.raptor import Raptor, RaptorConfig
from activault.train.recipe import TrainRecipe, load_recipe
from activault.train.schedule import annealed_weight

from .published import PublishedBlock, PublishedStage, published, published_name

RECIPES = Path(__file__).parents[2] / "recipes"
DIM, HEADS, LAYERS = 24, 4, 12
LAYOUT = TokenLayout(num_cls=1, num_registers=4, grid=(2, 3))


def model_of(recipe: TrainRecipe) -> Raptor:
    """The recipe's model at a small width, every weight at a size where it matters."""
    assert recipe.cuts is not None
    config = RaptorConfig(
        dim=DIM, num_heads=HEADS, num_layers=LAYERS, cuts=recipe.cuts, **recipe.model.model_dump()
    )
    model = Raptor(config).double()
    for name, parameter in model.named_parameters():
        nn.init.normal_(parameter, mean=float("norm" in name and "weight" in name), std=0.2)
    return model


@pytest.mark.parametrize("k", [2, 3, 4])
@pytest.mark.parametrize("stage", ["first phase", "last phase", "closed loop"])
@pytest.mark.parametrize("step", [0, 20_000, 200_000], ids=["forced", "mixed", "rolled"])
def test_losses_and_gradients_are_the_published_ones(k: int, stage: str, step: int) -> None:
    recipe = load_recipe(RECIPES / f"paper_k{k}.toml")
    model = model_of(recipe)
    blocks = [published(block) for block in model.blocks]
    phases = {"first phase": model.phases[0], "last phase": model.phases[-1], "closed loop": range(1, 13)}
    start, stop = phases[stage][0] - 1, phases[stage][-1]
    if stage == "closed loop":
        forcing, weights = 0.0, recipe.stage2.token_weights
    else:
        forcing = annealed_weight(step, recipe.stage1.steps, recipe.stage1.teacher_forcing)
        is_last = stage == "last phase"
        weights = recipe.stage1.last_phase_token_weights if is_last else recipe.stage1.token_weights
    given = weights if isinstance(weights, TokenWeights) else None
    tokens = torch.randn(2, stop - start + 1, LAYOUT.num_tokens, DIM, dtype=torch.float64)

    number = {"first phase": 0, "last phase": k - 1, "closed loop": None}[stage]
    theirs = PublishedStage(
        cuts=recipe.cuts or (), number=number, start=start, layout=LAYOUT, steps=312_500, warmup=10_000
    )
    assert forcing == {0: 1.0, 20_000: 1 - 20_000 / 78_125, 200_000: 0.0}[step] or stage == "closed loop"
    expected = theirs.loss(blocks, tokens, step)
    loss = mixture_loss(
        model,
        tokens,
        start,
        SpanLoss(layout=LAYOUT, weights=None if given is None else kind_weights(LAYOUT, given), scales=None),
        forcing,
    )
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=0)
    loss.backward()
    expected.backward()
    compared = 0
    for number, block in enumerate(model.blocks):
        own = dict(blocks[number].named_parameters())
        for name, parameter in block.named_parameters():
            wanted = own[published_name(name)].grad
            assert (parameter.grad is None) == (wanted is None), name
            if wanted is not None:
                torch.testing.assert_close(parameter.grad, wanted, rtol=1e-8, atol=1e-10, msg=name)
                compared += 1
    assert compared == len(list(blocks[0].parameters())) * (k if stage == "closed loop" else 1)


@torch.no_grad()
def test_layers_are_the_published_ones() -> None:
    model = model_of(load_recipe(RECIPES / "paper_k3.toml"))
    x = torch.randn(2, LAYOUT.num_tokens, DIM, dtype=torch.float64)
    made = model(x)
    for layer in range(1, LAYERS + 1):
        x = published(model.blocks[model.phase_of(layer)])(x, layer)
        torch.testing.assert_close(made[:, layer - 1], x, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("k", [2, 3, 4])
def test_recipes_say_what_the_published_blocks_are(k: int) -> None:
    recipe = load_recipe(RECIPES / f"paper_k{k}.toml")
    assert recipe.cuts == {2: (7,), 3: (7, 10), 4: (4, 7, 10)}[k]
    kind = recipe.model
    assert (kind.mlp, kind.depth, kind.layer_scale, kind.eps) == ("swiglu", "raw", 1e-5, 1e-5)
    assert (kind.random_init, recipe.init, kind.lora_rank) == ("reference", "random", 0)
    assert nn.LayerNorm(1).eps == kind.eps
    table = tomllib.loads((RECIPES / f"paper_k{k}.toml").read_text())
    assert {"mlp", "depth", "eps", "random_init"} <= table["model"].keys()


def test_random_blocks_are_drawn_as_the_published_ones() -> None:
    """Means and deviations of every tensor of 100 fresh blocks of each."""
    torch.manual_seed(0)
    ours = [RecurrentBlock(DIM, HEADS, mlp="swiglu", eps=1e-5, random_init="reference") for _ in range(100)]
    theirs = [PublishedBlock(DIM, HEADS) for _ in range(100)]
    for block in theirs:
        nn.init.normal_(block.layer[2].weight, std=1e-4)
        nn.init.normal_(block.layer[2].bias, std=1e-4)
    for name in ours[0].state_dict():
        drawn = torch.stack([block.state_dict()[name] for block in ours]).double()
        wanted = torch.stack([block.state_dict()[published_name(name)] for block in theirs]).double()
        deviation = wanted.std()
        assert abs(drawn.std() - deviation) <= 0.15 * deviation, name
        assert abs(drawn.mean() - wanted.mean()) <= 0.15 * deviation, name
        assert drawn.abs().max() <= 1.6 * wanted.abs().max(), name
