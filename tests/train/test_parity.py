"""The paper's recipes against the published method, written down once more from the formulas.

The reference's block is put together here from PyTorch's own parts (`MultiheadAttention`, `Sequential`), its
two passes as plain loops, all in float64; the recipe's own table of the model makes ours. Same weights and
batch: same layers, same losses, same gradients.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from activault.store.layout import TokenLayout
from activault.train.blocks import RecurrentBlock
from activault.train.losses import SpanLoss, TokenWeights, kind_weights, mixture_loss
from activault.train.raptor import Raptor, RaptorConfig
from activault.train.recipe import TrainRecipe, load_recipe
from activault.train.schedule import annealed_weight

RECIPES = Path(__file__).parents[2] / "recipes"
DIM, HEADS, LAYERS = 24, 4, 12
LAYOUT = TokenLayout(num_cls=1, num_registers=4, grid=(2, 3))


class Gate(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        gate, value = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
        return gate * torch.sigmoid(gate) * value


class PublishedBlock(nn.Module):
    """Pre-norm attention and gated MLP, 4 dim wide, LayerScale, three factors from the layer's number."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.attention = nn.MultiheadAttention(DIM, HEADS, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(DIM, 8 * DIM), Gate(), nn.Linear(4 * DIM, DIM))
        self.scales = nn.ParameterList([torch.full((DIM,), 1e-5), torch.full((DIM,), 1e-5)])
        self.layer = nn.Sequential(nn.Linear(1, 16), nn.SiLU(), nn.Linear(16, 3 * DIM))

    def forward(self, x: Tensor, layer: int) -> Tensor:
        number = torch.tensor([float(layer)], dtype=x.dtype)
        first, second, third = (1 + self.layer(number)).split(DIM)
        normed = self.before_attention(x)
        x = x + first * (self.scales[0] * self.attention(normed, normed, normed, need_weights=False)[0])
        x = x + second * (self.scales[1] * self.mlp(self.before_mlp(x)))
        return third * x


NAMES = {
    "norm1": "before_attention",
    "norm2": "before_mlp",
    "attn.qkv.weight": "attention.in_proj_weight",
    "attn.qkv.bias": "attention.in_proj_bias",
    "attn.proj": "attention.out_proj",
    "mlp.fc1": "mlp.0",
    "mlp.fc2": "mlp.2",
    "ls1.gamma": "scales.0",
    "ls2.gamma": "scales.1",
    "depth.fc1": "layer.0",
    "depth.fc2": "layer.2",
}
"""Ours -> the published block's."""


def published_name(ours: str) -> str:
    stem = next(name for name in NAMES if ours == name or ours.startswith(f"{name}."))
    return NAMES[stem] + ours[len(stem) :]


def published(block: RecurrentBlock) -> PublishedBlock:
    """The published block with ours's weights."""
    made = PublishedBlock().double()
    made.load_state_dict({published_name(name): tensor for name, tensor in block.state_dict().items()})
    return made


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


def error(made: Tensor, target: Tensor, weights: TokenWeights | None) -> Tensor:
    """The published loss of one layer, (rows, tokens, dim)."""
    if weights is None:
        return ((made - target) ** 2).mean()
    parts = [
        ((made[:, span] - target[:, span]) ** 2).mean() for span in (slice(0, 1), slice(1, 5), slice(5, 11))
    ]
    return weights.cls * parts[0] + weights.registers * parts[1] + weights.patches * parts[2]


def published_losses(
    blocks: list[PublishedBlock],
    cuts: tuple[int, ...],
    tokens: Tensor,
    start: int,
    weights: TokenWeights | None,
) -> tuple[Tensor, Tensor]:
    """Teacher-forced and autoregressive loss of layers start+1 .. start+n."""
    num = tokens.shape[1] - 1
    forced, rolled = [], []
    x = tokens[:, 0]
    for step in range(num):
        layer = start + step + 1
        block = blocks[sum(layer > cut for cut in cuts)]
        forced.append(error(block(tokens[:, step], layer), tokens[:, step + 1], weights))
        x = block(x, layer)
        rolled.append(error(x, tokens[:, step + 1], weights))
    return torch.stack(forced).mean(), torch.stack(rolled).mean()


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

    forced, rolled = published_losses(blocks, recipe.cuts or (), tokens, start, given)
    assert forcing == {0: 1.0, 20_000: 1 - 20_000 / 78_125, 200_000: 0.0}[step] or stage == "closed loop"
    expected = forcing * forced + (1 - forcing) * rolled
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
        theirs = dict(blocks[number].named_parameters())
        for name, parameter in block.named_parameters():
            wanted = theirs[published_name(name)].grad
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
    theirs = [PublishedBlock() for _ in range(100)]
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
