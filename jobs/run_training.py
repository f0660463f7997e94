"""The work behind `activault train`: phases, teacher, cost, who watches, the live view; then `train`.

    recipe file, run's folder  ->  RunSummary

Under torchrun or srun every process does the same, and the first one alone speaks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from activault.store import open_store
from activault.store.cached import CachedStorage

from . import console
from .live import training_view
from .show import show_cost
from .teachers import rotary_of, teacher_if_there, teacher_of
from .training import COST, chosen_phases, cost_beside

if TYPE_CHECKING:
    from activault.train import RunSummary, TrainRecipe
    from activault.train.watching import Watcher

__all__ = ["train_run"]


def train_run(
    recipe_path: Path,
    out: Path,
    *,
    overrides: Sequence[str] = (),
    stage: str | None = None,
    weights: Path | None = None,
    device: str = "auto",
    tensorboard: bool = True,
    wandb: str | None = None,
    quiet: bool = False,
) -> RunSummary:
    """Train a recipe, or one stage of it, with phases and teacher's blocks from the store.

    `wandb` is a project of Weights & Biases to send the figures to.

    Raises:
        ActivaultError: from any part; nothing that was finished is lost.
    """
    from activault.extract.machine import choose_device
    from activault.train import load_recipe, train
    from activault.train.checkpoint import write_json
    from activault.train.distributed import place_in

    recipe, chosen = load_recipe(recipe_path, overrides), choose_device(device)
    quiet = quiet or place_in().rank > 0
    store = open_store(recipe.store)
    if not quiet and store.storage.folder is None and not isinstance(store.storage, CachedStorage):
        console.warn(
            f"{store.path} is far away, and every epoch fetches its rows anew; set ACTIVAULT_CACHE_DIR to a "
            "folder that keeps what was read (docs/loading.md)"
        )
    phases = chosen_phases(recipe, store, out, quiet=quiet)
    remedy = 'start the blocks at random (init = "random")'
    teacher = teacher_of(store, weights, remedy) if recipe.teacher_block else teacher_if_there(store, weights)
    tables = teacher.rotary if teacher else rotary_of(store)
    cost = cost_beside(recipe, store, phases, teacher, tables, out, chosen)
    if cost and not quiet:
        show_cost(cost)
    total = _steps(recipe, stage)
    with training_view(total, quiet=quiet) as report:
        summary = train(
            recipe,
            out,
            store=store,
            cuts=phases.cuts,
            groups=phases.groups,
            teacher_blocks=list(teacher.blocks) if teacher and recipe.teacher_block else None,
            rotary=tables,
            stage=stage,
            device=chosen,
            watchers=_watchers(recipe, out, tensorboard, wandb),
            progress=report,
        )
    if cost and not (out / COST).exists():
        write_json(out / COST, cost.to_dict())
    return dataclasses.replace(summary, cost=cost)


def _steps(recipe: TrainRecipe, stage: str | None) -> int:
    """Steps of what was asked for."""
    closed = recipe.stage2.steps
    if stage is None:
        return recipe.stage1.steps * recipe.total_phases + closed
    return closed if stage == "closed_loop" else recipe.stage1.steps


def _watchers(
    recipe: TrainRecipe, out: Path, tensorboard: bool, wandb: str | None
) -> Callable[[str], Sequence[Watcher]]:
    """Makes those who watch the run, told its hash."""
    from activault.train.wandb_watcher import WandbWatcher
    from activault.train.watching import TensorBoard

    def make(identity: str) -> Sequence[Watcher]:
        made: list[Watcher] = [TensorBoard(out)] if tensorboard else []
        if wandb:
            made.append(WandbWatcher(wandb, out, identity, recipe.model_dump(mode="json")))
        return made

    return make
