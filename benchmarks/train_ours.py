"""activault's trainer, with batches from memory, from its loader over the store, or from images online.

A task and a way in, a `Measured` out. The loop is `run_stage` itself; its loader alone is replaced, by one
that is timed.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lessons import BOTH, CLOSED, MEMORY, ONLINE, EnoughError, Feed, Measured, Task, Way

from activault.store import Batch, Store
from activault.store.codecs import held_type
from activault.train import trainer
from activault.train.closed_loop import closed_loop_stage
from activault.train.feeding import stage_loader
from activault.train.raptor import Raptor
from activault.train.recipe import TrainRecipe, load_recipe, parse_recipe
from activault.train.run_setup import raptor_config
from activault.train.stages import Stage
from activault.train.teacher_forced import phase_stages

PARITY, DEFAULT = "activault, parity", "activault, default"
CPU = torch.device("cpu")
_RECIPES = Path(__file__).parents[1] / "recipes"
_POOL_BATCHES = 4
"""In the loader's pool, so that a measurement of a few steps reads as many rows as it takes; the loader's own
1 GiB would hold all of them before the first step."""


def recipe(trainer_name: str, task: Task, lesson: str) -> TrainRecipe:
    """The published recipe, or one that says nothing but its steps; always of the published phases."""
    if trainer_name == PARITY:
        table = load_recipe(_RECIPES / f"paper_k{task.k}.toml").model_dump()
    else:
        steps = {"steps": 312_500}
        table = {"store": "any", "cuts": task.cuts, "stage1": dict(steps), "stage2": dict(steps)}
    for stage in ("stage1", "stage2"):
        table[stage]["batch_size"] = task.batch_size
    # Annealing is over at once, or goes on for longer than anybody measures.
    table["stage1"]["teacher_forcing"] = 1.0 if lesson == BOTH else 0.0
    return parse_recipe(table)


def model_of(trainer_name: str, task: Task, store: Store) -> Raptor:
    """Random blocks for the published phases."""
    torch.manual_seed(0)
    return Raptor(raptor_config(recipe(trainer_name, task, CLOSED), store, task.cuts))


def stage_of(trainer_name: str, task: Task, lesson: str, store: Store) -> Stage:
    """The first phase or the closed loop."""
    told, model = recipe(trainer_name, task, lesson), model_of(trainer_name, task, store)
    if lesson == CLOSED:
        return closed_loop_stage(model, told.stage2, store, CPU)
    return phase_stages(model, told.stage1, store, CPU)[0]


def rows_of(task: Task, store: Store) -> np.ndarray:
    """(rows,) that everybody learns from."""
    return store.valid_rows[: task.num_rows]


@cache
def one_batch(task: Task, lesson: str) -> torch.Tensor:
    """(batch, layers, tokens, dim) float32: the batch that all trainers are given again and again."""
    store = task.opened()
    return torch.from_numpy(store.read(rows_of(task, store)[: task.batch_size], task.layers(lesson)))


def measure(task: Task, way: Way) -> Measured:
    """Some steps, in the process that this is called in."""
    torch.set_num_threads(task.threads)
    store = task.opened()
    folder = task.work / f"{way.name}".replace(" ", "-").replace(",", "").replace(":", "")
    shutil.rmtree(folder, ignore_errors=True)
    handed: list[Feed[Batch]] = []

    def timed(stage: Stage, store: Store, rows: np.ndarray, **options: Any) -> _Timed:
        handed.append(Feed(_batches(task, way, stage, store, rows, options), task.num_steps))
        return _Timed(handed[0])

    trainer.stage_loader = timed  # type: ignore[attr-defined, assignment]
    try:
        trainer.run_stage(
            stage_of(way.trainer, task, way.lesson, store),
            folder,
            store=store,
            rows=rows_of(task, store),
            seed=0,
            identity="benchmark",
            device=CPU,
        )
    except EnoughError:
        return handed[0].measured()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    raise AssertionError("a stage of this length is not finished in a benchmark")


class _Timed:
    """What the trainer takes for its loader."""

    def __init__(self, feed: Feed[Batch]) -> None:
        self._feed = feed

    def stream(self) -> Iterator[Batch]:
        """Batches without end, as far as the trainer can tell."""
        yield from self._feed


def _batches(
    task: Task, way: Way, stage: Stage, store: Store, rows: np.ndarray, options: Mapping[str, Any]
) -> Iterator[Batch]:
    if way.source == MEMORY:
        return repeat(_as_batch(one_batch(task, way.lesson)))
    if way.source == ONLINE:
        # Here, since the other processes need no teacher.
        from train_online import online

        return map(_as_batch, online(task))
    row_values = len(stage.layers) * store.manifest.tokens_per_layer * store.dim
    row_bytes = row_values * held_type(store.manifest, "patches").itemsize
    pool = {"pool_bytes": _POOL_BATCHES * task.batch_size * row_bytes}
    return stage_loader(stage, store, rows, **{**options, **pool}).stream()


def _as_batch(tokens: torch.Tensor) -> Batch:
    none = torch.zeros(len(tokens), dtype=torch.int64)
    return Batch(tokens, none, none, len(tokens))
