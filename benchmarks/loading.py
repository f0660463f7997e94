"""What `loader.py` times, in a process of its own for every format: epochs, warm and cold, and waiting.

A candidate, a kind of batch (float32, or the 16 bits that are stored) and a number of workers in; figures
out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import torch
from activations import SPAN
from candidates import Candidate
from formats import Format
from measure import consume, forget

KINDS = ("float32", "16 bits")


@dataclass(frozen=True)
class Way:
    """How an epoch is read."""

    candidate: Candidate
    kind: str
    num_workers: int


@cache
def _opened(candidate: Candidate) -> Format:
    return candidate.open()


def ways(candidate: Candidate) -> list[Way]:
    """All ways of one format."""
    form = _opened(candidate)
    kinds = [KINDS[0]]
    if type(form).shuffled_16_bits is not Format.shuffled_16_bits:
        kinds.append(KINDS[1])
    return [Way(candidate, kind, num_workers) for kind in kinds for num_workers in form.workers]


def _epoch(way: Way) -> Iterator[torch.Tensor]:
    form = _opened(way.candidate)
    read = form.shuffled if way.kind == KINDS[0] else form.shuffled_16_bits
    return read(SPAN, way.num_workers)


def warm(way: Way, seconds: float) -> float:
    """Rows a second of whole epochs that take so long together, after as many that are not counted.

    One epoch would not do: of a few hundred rows it ends before buffers have got their memory.
    """
    _speed(way, seconds)
    return _speed(way, seconds)


def _speed(way: Way, seconds: float) -> float:
    rows, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        rows += consume(_epoch(way))
    return rows / (time.perf_counter() - start)


def cold(way: Way) -> tuple[float, float]:
    """Rows, and bytes of the format's files, a second of one epoch from a cold page cache.

    In a process that has opened nothing yet: pages that somebody maps stay where they are.
    """
    files = [file for file in way.candidate.open().folder.rglob("*") if file.is_file()]
    forget(files)
    start = time.perf_counter()
    rows = consume(_epoch(way))
    seconds = time.perf_counter() - start
    _opened(way.candidate).close()
    return rows / seconds, sum(file.stat().st_size for file in files) / seconds


def waiting(way: Way, step_s: float, num_steps: int) -> float:
    """Share of its time that a consumer waits whose steps are so long and need no core, as a GPU's do."""
    consume(_epoch(way))
    waited, steps = 0.0, 0
    while steps < num_steps:
        batches = _epoch(way)
        while True:
            start = time.perf_counter()
            batch = next(batches, None)
            if batch is None:
                break
            waited += time.perf_counter() - start
            time.sleep(step_s)
            steps += 1
    return waited / (waited + steps * step_s)
