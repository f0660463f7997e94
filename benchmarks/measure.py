"""What is timed, in a process of its own for every format: writing, five ways of reading, and a cold epoch.

A candidate in, rows and seconds out. A process stays alive between its measurements, so that nobody pays for
imports, opened files or started workers, and nobody's workers or buffers are in another's process.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from activations import MOST_LOST, ONE_LAYER, SPAN, check, lost_by_layer
from candidates import Candidate
from formats import Format, num_cores
from ours import Activault

RANDOM_ROWS = 64
WORKLOADS = ("write", "sequential", "shuffled", "one layer", "cls", "random rows")
_LEAST_SECONDS = 0.8
"""Whole passes are repeated until they took this long."""
_BLOCK = 4 << 20


@cache
def _opened(candidate: Candidate) -> Format:
    return candidate.open()


def write(candidate: Candidate, suffix: str = "") -> tuple[int, float]:
    """Rows and seconds until every byte is on disk, as ours always waits for."""
    form = candidate.open(suffix)
    shutil.rmtree(form.folder, ignore_errors=True)
    form.folder.mkdir(parents=True)
    form.plan()
    start = time.perf_counter()
    form.write()
    for file in form.folder.rglob("*"):
        if file.is_file():
            _sync(file)
    return candidate.source.num_rows, time.perf_counter() - start


def _sync(file: Path) -> None:
    handle = os.open(file, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def num_bytes(candidate: Candidate) -> int:
    """Bytes on disk."""
    return _opened(candidate).num_bytes()


def settings(candidate: Candidate, workload: str) -> tuple[int, ...]:
    """Numbers of workers that a workload is tried with."""
    return _opened(candidate).workers if workload == "shuffled" else (0,)


def run(candidate: Candidate, workload: str, num_workers: int) -> tuple[int, float]:
    """Rows and seconds of one measurement."""
    if workload == "write":
        found = write(candidate, ".again")
        shutil.rmtree(candidate.open(".again").folder)
        return found
    form, num_rows = _opened(candidate), candidate.source.num_rows
    random = np.random.default_rng()
    passes: dict[str, Callable[[], int]] = {
        "sequential": lambda: consume(form.sequential(SPAN)),
        "shuffled": lambda: consume(form.shuffled(SPAN, num_workers)),
        "one layer": lambda: consume(form.sequential(ONE_LAYER)),
        "cls": lambda: len(form.cls()),
        "random rows": lambda: len(
            form.rows(random.choice(num_rows, min(RANDOM_ROWS, num_rows), replace=False).tolist(), SPAN)
        ),
    }
    passes[
        workload
    ]()  # not counted: what lay idle was taken out of memory meanwhile, pages and workers alike
    total, start = 0, time.perf_counter()
    while time.perf_counter() - start < _LEAST_SECONDS:
        total += passes[workload]()
    return total, time.perf_counter() - start


def consume(batches: Iterable[torch.Tensor]) -> int:
    """Take all batches; returns the rows."""
    return sum(len(batch) for batch in batches)


def check_all(candidate: Candidate) -> float | None:
    """Every way of reading gives back what was written, each row once an epoch; it also warms all caches.

    Returns the lowest R2 of a layer's patches over all rows, of int8; None for others, which only round.
    """
    form, source = _opened(candidate), candidate.source
    want = torch.from_numpy(source.values)
    for layers in (SPAN, ONE_LAYER):
        start = 0
        for block in form.sequential(layers):
            expected = want[start : start + len(block), layers.start : layers.stop]
            check(block, expected, form.precision, f"{candidate.name}: rows from {start}")
            start += len(block)
        assert start == source.num_rows, f"{candidate.name}: {start} rows in order"
    check(form.cls()[:, :, None], want[:, :, :1], form.precision, f"{candidate.name}: CLS")
    numbers = np.random.default_rng(0).permutation(source.num_rows)[:RANDOM_ROWS].tolist()
    some = want[numbers, SPAN.start : SPAN.stop]
    check(form.rows(numbers, SPAN), some, form.precision, f"{candidate.name}: random rows")
    for num_workers in form.workers:
        _check_epoch(candidate, form, want, num_workers)
    return _lowest_r2(candidate, form) if form.precision == "int8" else None


def _lowest_r2(candidate: Candidate, form: Format) -> float:
    """Over all layers, held against the format's bound."""
    assert isinstance(form, Activault)
    values = candidate.source.values
    lost = lost_by_layer(form.sequential(range(values.shape[1])), values, form.patches)
    worst = int(lost.argmax())
    assert lost[worst] <= MOST_LOST, f"{candidate.name} loses {lost[worst]:.2e} of layer {worst}"
    return 1 - float(lost[worst])


def _check_epoch(candidate: Candidate, form: Format, want: torch.Tensor, num_workers: int) -> None:
    """Rows are known again by the CLS of the last layer of the span, which no two images share."""
    marks = want[:, SPAN.stop - 1, 0]
    seen: list[int] = []
    for batch in form.shuffled(SPAN, num_workers):
        rows = torch.cdist(batch[:, -1, 0], marks).argmin(1).tolist()
        if not seen:
            expected = want[rows, SPAN.start : SPAN.stop]
            check(batch, expected, form.precision, f"{candidate.name}: a shuffled batch")
        seen += rows
    assert sorted(seen) == list(range(len(want))), f"{candidate.name}: an epoch has every row once"
    assert any(second < first for first, second in pairwise(seen)), f"{candidate.name}: not shuffled"


def cold_epoch(candidate: Candidate) -> tuple[float, float]:
    """Bytes a second of a shuffled epoch and of plain reading of the same files, both from a cold cache."""
    form = _opened(candidate)
    assert isinstance(form, Activault)
    files = form.files(SPAN)
    size = sum(file.stat().st_size for file in files)
    form.close()
    forget(files)
    start = time.perf_counter()
    consume(form.shuffled(SPAN, 0))
    epoch = time.perf_counter() - start
    form.close()
    forget(files)
    start = time.perf_counter()
    with ThreadPoolExecutor(num_cores()) as threads:
        list(threads.map(_read, files))
    return size / epoch, size / (time.perf_counter() - start)


def forget(files: Iterable[Path]) -> None:
    """Drop the files' pages; they are on disk and mapped by nobody, so that the kernel does as it is told."""
    for file in files:
        _sync(file)
        handle = os.open(file, os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def _read(file: Path) -> None:
    buffer = bytearray(_BLOCK)
    with file.open("rb", buffering=0) as source:
        while source.readinto(buffer):
            pass
