"""Updates of the paper's recipes against the published ones (`published.py`), stage by stage and end to end.

AdamW, clipping, rates and annealing are all of one procedure: after some updates the weights agree only if
every one of them does. The recipes are shortened (`steps`, `warmup_steps`) and else as they stand.
"""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from activault.store import Store
from activault.train.closed_loop import closed_loop_stage
from activault.train.distributed import ALONE
from activault.train.finished import load_run
from activault.train.raptor import Raptor, RaptorConfig
from activault.train.recipe import TrainRecipe, load_recipe, parse_recipe
from activault.train.runs import train
from activault.train.schedule import annealed_weight, learning_rate_at
from activault.train.teacher_forced import phase_stages
from activault.train.updates import Updates

from .published import PublishedBlock, PublishedStage, published, published_name, published_rates

RECIPES = Path(__file__).parents[2] / "recipes"
DIM, HEADS, LAYERS = 12, 2, 12
CPU = torch.device("cpu")
STEPS, WARMUP = 12, 4
SHORT = [
    f"{stage}.{key}" for stage in ("stage1", "stage2") for key in (f"steps={STEPS}", f"warmup_steps={WARMUP}")
]


def paper(k: int) -> TrainRecipe:
    return load_recipe(RECIPES / f"paper_k{k}.toml", SHORT)


def random_walks(start: int, stop: int, num_tokens: int) -> list[Tensor]:
    """A batch for every update: layers that move a little from one to the next."""
    torch.manual_seed(3)
    made = torch.randn(STEPS, 2, stop - start + 1, num_tokens, DIM, dtype=torch.float64)
    return list(made.cumsum(dim=2).unbind(0))


def distance(ours: nn.Module, theirs: PublishedBlock, started: dict[str, Tensor]) -> float:
    """How far apart two blocks ended, over how far they came."""
    ends = dict(theirs.named_parameters())
    apart, way = 0.0, 0.0
    for name, parameter in ours.named_parameters():
        end = ends[published_name(name)].detach()
        apart += float((parameter.detach().double() - end).square().sum())
        way += float((end - started[name].double()).square().sum())
    return (apart / way) ** 0.5


@pytest.mark.parametrize("k", [2, 3, 4])
@pytest.mark.parametrize("kind", ["first phase", "last phase", "closed loop"])
def test_weights_after_all_updates_are_the_published_ones(store: Store, k: int, kind: str) -> None:
    """In float64, over warm-up, annealing and cosine, with gradients above and below the clip."""
    recipe = paper(k)
    config = RaptorConfig(
        dim=DIM, num_heads=HEADS, num_layers=LAYERS, cuts=recipe.cuts or (), **recipe.model.model_dump()
    )
    model = Raptor(config).double()
    for name, parameter in model.named_parameters():
        nn.init.normal_(parameter, mean=float("norm" in name and "weight" in name), std=0.2)
    number = {"first phase": 0, "last phase": k - 1, "closed loop": None}[kind]
    if number is None:
        stage, start, stop = closed_loop_stage(model, recipe.stage2, store, CPU), 0, LAYERS
    else:
        stage = phase_stages(model, recipe.stage1, store, CPU)[number]
        start, stop = model.phases[number][0] - 1, model.phases[number][-1]
    started = copy.deepcopy(model)
    blocks = [published(block) for block in model.blocks]
    theirs = PublishedStage(
        cuts=config.cuts, number=number, start=start, layout=store.layout, steps=STEPS, warmup=WARMUP
    )
    batches = random_walks(start, stop, store.layout.num_tokens)
    updates, norms = Updates(stage, device=CPU, seed=1, peers=ALONE), []
    for step, (loss, norm, rate) in enumerate(theirs.updates(blocks, batches)):
        ours = updates(batches[step], step)
        assert [float(value) for value in ours] == pytest.approx([loss, norm], rel=1e-9), f"step {step}"
        assert updates.learning_rate == pytest.approx(rate, rel=1e-12), f"step {step}"
        norms.append(norm)
    assert max(norms) > 1, "the clip is at work"
    for own, block, before in zip(model.blocks, blocks, started.blocks, strict=True):
        if number is None or own is model.blocks[number]:
            assert distance(own, block, before.state_dict()) < 1e-9
        else:
            assert all(
                torch.equal(one, other)
                for one, other in zip(own.parameters(), before.parameters(), strict=True)
            ), "a phase trains its own block alone"


@pytest.mark.parametrize("k", [2, 3, 4])
def test_rates_and_annealing_of_the_whole_recipe_are_the_published_ones(k: int) -> None:
    """Around warm-up, peak, end of the annealing and floor at every step, elsewhere at each 997th."""
    recipe = load_recipe(RECIPES / f"paper_k{k}.toml")
    rates = published_rates(312_500, 10_000)
    assert rates[1] == pytest.approx(3e-4 / 9999)
    assert rates[9_999] == rates[10_000] == 3e-4
    assert rates[312_500] == 1e-6
    near = [step for middle in (0, 9_999, 78_125, 312_500) for step in range(middle - 50, middle + 50)]
    steps = [step for step in sorted({*near, *range(0, 312_500, 997)}) if 0 <= step < 312_500]
    for stage in (recipe.stage1, recipe.stage2):
        given = {"steps": stage.steps, "peak": stage.learning_rate, "warmup_steps": stage.warmup_steps}
        ours = [learning_rate_at(step, **given, floor=stage.floor, kind=stage.schedule) for step in steps]
        assert ours == pytest.approx([rates[step + 1] for step in steps], rel=1e-12)
    forcing = [annealed_weight(step, recipe.stage1.steps, recipe.stage1.teacher_forcing) for step in steps]
    assert forcing == pytest.approx([max(0.0, 1 - step / 78_125) for step in steps], abs=1e-12)


def test_a_run_is_the_published_training_from_its_first_weights_to_its_last(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`train` itself: a fresh optimiser and schedule a stage, blocks handed on, batches as they are read."""
    table = paper(3).model_dump()
    table["cuts"] = (2,)
    for stage in ("stage1", "stage2"):
        table[stage]["batch_size"] = 8
    seen: dict[str, list[Tensor]] = {}
    started: dict[str, dict[str, Tensor]] = {}
    whole = Updates.__call__

    def noted(updates: Updates, tokens: Tensor, step: int) -> tuple[Tensor, Tensor]:
        name = updates.stage.name
        if step == 0:
            started[name] = copy.deepcopy(updates.stage.module.state_dict())
        assert len(seen.setdefault(name, [])) == step
        seen[name].append(tokens.double())
        return whole(updates, tokens, step)

    monkeypatch.setattr(Updates, "__call__", noted)
    ended = train(parse_recipe(table), tmp_path / "run", store=store, cuts=(2,), device="cpu")
    assert {name: len(batches) for name, batches in seen.items()} == dict.fromkeys(
        ("phase_1", "phase_2", "closed_loop"), STEPS
    )
    model = load_run(ended.path).model
    blocks = []
    for number in (0, 1):
        block = copy.deepcopy(model.blocks[number])
        block.load_state_dict(started[f"phase_{number + 1}"])
        blocks.append(published(block))
    given = {"cuts": (2,), "layout": store.layout, "steps": STEPS, "warmup": WARMUP}
    for number, start in ((0, 0), (1, 2), (None, 0)):
        name = "closed_loop" if number is None else f"phase_{number + 1}"
        list(PublishedStage(number=number, start=start, **given).updates(blocks, seen[name]))
    for number, block in enumerate(model.blocks):
        assert distance(block, blocks[number], started[f"phase_{number + 1}"]) < 1e-3
