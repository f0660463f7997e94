"""Multiply-accumulates of a training: the formula against its schedule, and against PyTorch's counter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from activault.jobs.training_macs import training_macs
from activault.train import Raptor, RaptorConfig, TrainRecipe, cost_of, load_recipe
from activault.train.schedule import annealed_weight

LAYERS, TOKENS = 6, 5
Make = Callable[..., TrainRecipe]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def recipe(*overrides: str) -> TrainRecipe:
        path = tmp_path / "r.toml"
        stage = "steps = 0\nwarmup_steps = 0\nbatch_size = 2\n"
        path.write_text(f'store = "s"\ncuts = [3]\n[stage1]\n{stage}[stage2]\n{stage}')
        return load_recipe(path, overrides)

    return recipe


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.25, 0.33, 1.0])
@pytest.mark.parametrize("steps", [1, 7, 40])
def test_both_passes_are_counted_where_both_are_made(make: Make, steps: int, fraction: float) -> None:
    recipe = make(f"stage1.steps={steps}", f"stage1.teacher_forcing={fraction}")
    weights = [annealed_weight(step, steps, fraction) for step in range(steps)]
    passes = sum((weight > 0) + (weight < 1) for weight in weights)
    assert training_macs(recipe, 10) == 10 * 2 * 3 * passes


def test_teacher_forcing_alone_and_layers_computed_again(make: Make) -> None:
    assert training_macs(make("stage1.steps=5", "stage1.only_teacher_forcing=true"), 10) == 10 * 2 * 3 * 5
    closed = make("stage2.steps=5", "stage2.gradient_checkpointing=2", "stage2.batch_size=8")
    assert training_macs(closed, 10) == 10 * 8 * 4 * 5
    assert training_macs(make(), 10) == 0


@pytest.mark.parametrize("forced", [True, False], ids=["teacher forcing", "roll-out"])
def test_an_update_is_what_pytorch_counts(make: Make, forced: bool) -> None:
    """But for the first layer's way back, which asks nothing of what came in."""
    torch.manual_seed(0)
    model = Raptor(RaptorConfig(dim=64, num_heads=4, num_layers=LAYERS, cuts=(3,), mlp="gelu"))
    layers = torch.randn(2, LAYERS + 1, TOKENS, 64)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        made = model.predict_next(layers[:, :-1], 0) if forced else model(layers[:, 0])
        (made - layers[:, 1:]).square().mean().backward()
    asked = make("stage1.steps=1", "stage1.only_teacher_forcing=true") if forced else make("stage2.steps=1")
    told = training_macs(asked, cost_of(model, TOKENS).macs)
    assert counter.get_total_flops() / 2 == pytest.approx(told, rel=0.01)
