"""The figures of a run of `train.py`, as Markdown tables and for JSON."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from lessons import CLOSED, LESSONS, LOADER, MEMORY, ONLINE, Measured, Task, Way
from machine import environment
from train_ours import DEFAULT, PARITY
from train_reference import REFERENCE

_LIBRARIES = ("torch", "timm", "numpy", "zarr", "numcodecs")
Results = dict[Way, list[Measured]]
Figure = Callable[[Measured], float]


def print_tables(task: Task, found: Results) -> None:
    """Steps, cached against online, waiting, memory."""
    manifest = task.opened().manifest
    print(environment(_LIBRARIES))
    print(
        f"load {os.getloadavg()[0]:.1f}; {task.threads} threads; {task.num_rows} rows of "
        f"{manifest.teacher.name}, {manifest.tokens_per_layer} tokens x {manifest.dim}, {manifest.dtype}; "
        f"k = {task.k}, batches of {task.batch_size}, {task.num_steps} steps a round, float32\n"
    )
    _print_steps(found)
    _print_online(found)
    _print_waiting(found)


def _way(trainer: str, lesson: str, source: str) -> Way:
    return Way(trainer=trainer, lesson=lesson, source=source)


def _print_steps(found: Results) -> None:
    """The same batch from memory each time."""
    trainers = [name for name in (REFERENCE, PARITY, DEFAULT) if any(way.trainer == name for way in found)]
    against = [name for name in trainers if name != REFERENCE] if REFERENCE in trainers else []
    print("Milliseconds a step, batches from memory: median (smallest-largest of the rounds); memory\n")
    rows = []
    for lesson in LESSONS:
        ways = {name: found.get(_way(name, lesson, MEMORY), []) for name in trainers}
        cells = [f"{_ms(runs)}, {_peak(runs)}" if runs else "" for runs in ways.values()]
        rows.append([lesson, *cells, *(_ratio(ways[REFERENCE], ways[name]) for name in against)])
    _print_table(["step", *trainers, *(f"the reference over {name}" for name in against)], rows)


def _print_online(found: Results) -> None:
    cached, online = (found.get(_way(DEFAULT, CLOSED, source)) for source in (LOADER, ONLINE))
    if cached is None or online is None:
        return
    print("Cached against online, activault's default, stage 2\n")
    rows = [
        [name, _ms(runs), _ms(runs, lambda run: run.data_s), _peak(runs)]
        for name, runs in (("our loader over the store", cached), ("images and the teacher", online))
    ]
    rows.append(
        ["online over cached", _ratio(online, cached), _ratio(online, cached, lambda run: run.data_s), ""]
    )
    _print_table(["batches from", "ms a step", "of it data, ms", "memory"], rows)


def _print_waiting(found: Results) -> None:
    print("Waiting for data: each trainer with its own loader over the same rows\n")
    headings = [
        "trainer",
        "step",
        "share waiting",
        "ms a step",
        "over a step from memory",
        "first batch, s",
        "memory",
    ]
    rows = []
    for way, runs in found.items():
        if way.source != LOADER:
            continue
        memory = found.get(_way(way.trainer, way.lesson, MEMORY), [])
        share = _spread([100 * run.data_s / run.mean_s for run in runs], 2)
        first = _spread([run.first_wait_s for run in runs], 2)
        rows.append(
            [way.trainer, way.lesson, f"{share} %", _ms(runs), _ratio(runs, memory), first, _peak(runs)]
        )
    _print_table(headings, rows)


def _spread(values: Sequence[float], digits: int) -> str:
    low, middle, high = (f"{value:,.{digits}f}" for value in (min(values), median(values), max(values)))
    return f"{middle} ({low}-{high})"


def _ms(runs: Sequence[Measured], figure: Figure = lambda run: run.mean_s) -> str:
    return _spread([1000 * figure(run) for run in runs], 0)


def _ratio(
    runs: Sequence[Measured], under: Sequence[Measured], figure: Figure = lambda run: run.mean_s
) -> str:
    """Within the rounds; nothing where one of the two was not measured."""
    if not runs or not under:
        return ""
    smallest = 1e-6
    return _spread(
        [figure(one) / max(figure(two), smallest) for one, two in zip(runs, under, strict=True)], 2
    )


def _peak(runs: Sequence[Measured]) -> str:
    """Beyond the libraries that everybody has loaded."""
    return f"{max(run.peak_bytes for run in runs) / 1e6:,.0f} MB"


def _print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    print(f"| {' | '.join(headings)} |\n|{' --- |' * len(headings)}")
    for cells in rows:
        print(f"| {' | '.join(cells)} |")
    print()


def spelled(task: Task, found: Results) -> dict[str, Any]:
    """All figures of all rounds."""
    return {
        "environment": environment(_LIBRARIES),
        "settings": {
            "rows": task.num_rows,
            "k": task.k,
            "batch": task.batch_size,
            "steps": task.num_steps,
            "threads": task.threads,
        },
        "ways": [{**vars(way), "rounds": [vars(run) for run in runs]} for way, runs in found.items()],
    }
