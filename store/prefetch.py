"""Executing an epoch's plan: pools are read on threads while batches are cut from the one before.

An `EpochPlan` in, its batches' tokens (batch, layers, tokens, dim) out, in order and without a gap: a fault
in a thread is raised where its batch would have been. At most two pools and two batches are held.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from .layout import TokenKind
from .plan import EpochPlan
from .reading import ChunkSource, read_jobs

__all__ = ["Execution"]

Result = TypeVar("Result")
_BATCHES_AHEAD: Final = 2


@dataclass(frozen=True)
class _PoolRead:
    """A pool that is being read."""

    values: npt.NDArray[Any]
    """(rows or more, layers, tokens, dim) in the pool's order, so that a batch is a run of it."""
    jobs: Sequence[Future[None]]

    def wait(self) -> None:
        """Until all of it is there; raises what a thread raised."""
        for job in self.jobs:
            job.result()


class Execution:
    """One run through the rest of an epoch; a context manager, which ends its threads."""

    def __init__(
        self,
        source: ChunkSource,
        plan: EpochPlan,
        *,
        layers: Sequence[int],
        kinds: Sequence[TokenKind],
        dtype: np.dtype[Any],
        num_threads: int,
    ) -> None:
        self._source = source
        self._plan = plan
        self._layers = layers
        self._kinds = kinds
        self._dtype = dtype
        self._pools: dict[int, _PoolRead] = {}
        self._spare: list[npt.NDArray[Any]] = []
        self._readers = ThreadPoolExecutor(num_threads, "activault-pool") if num_threads else None
        # Batches are cut on a thread of their own: behind the next pool's reads they would wait for all of
        # them.
        self._cutter = ThreadPoolExecutor(1, "activault-batch") if num_threads else None

    def __enter__(self) -> Execution:
        return self

    def __exit__(self, *exception: object) -> None:
        for threads in (self._readers, self._cutter):
            if threads is not None:
                threads.shutdown(cancel_futures=True)
        self._pools.clear()
        self._spare.clear()

    def batches(self, first: int) -> Iterator[tuple[range, torch.Tensor]]:
        """`(places in the epoch, tokens)` of every batch from number `first` on."""
        plan = self._plan
        ahead: deque[tuple[int, Future[torch.Tensor]]] = deque()
        submitted = first
        while submitted < plan.num_batches or ahead:
            while submitted < plan.num_batches and len(ahead) < (_BATCHES_AHEAD if self._cutter else 1):
                ahead.append((submitted, self._submit(submitted)))
                submitted += 1
            batch, cut = ahead.popleft()
            tokens = cut.result()
            del cut
            self._turn_over(plan.pools_of(batch))
            yield plan.span(batch), tokens

    def _turn_over(self, pools: range) -> None:
        """Let go of the pools that a batch, now cut, has emptied, and read the one after it."""
        for number in [number for number in self._pools if number < pools[-1]]:
            self._spare.append(self._pools.pop(number).values)
        if self._readers is not None and pools.stop < len(self._plan.pools):
            self._start(pools.stop)

    def _submit(self, batch: int) -> Future[torch.Tensor]:
        span = self._plan.span(batch)
        pieces = []
        for number in self._plan.pools_of(batch):
            pool = self._plan.pools[number]
            run = slice(max(span.start, pool.start) - pool.start, min(span.stop, pool.stop) - pool.start)
            pieces.append((self._start(number), run))
        return _call(self._cutter, lambda: _cut(pieces))

    def _start(self, number: int) -> _PoolRead:
        """The read of one pool, begun if it is not yet."""
        if number not in self._pools:
            rows = self._plan.pools[number].rows
            values = self._space()
            jobs = read_jobs(self._source, rows, self._layers, self._kinds, values[: len(rows)])
            self._pools[number] = _PoolRead(values, [_call(self._readers, job) for job in jobs])
        return self._pools[number]

    def _space(self) -> npt.NDArray[Any]:
        """Room for the largest pool, if possible of one that was let go: new pages cost a fault each."""
        if self._spare:
            return self._spare.pop()
        num_rows = max(len(pool.rows) for pool in self._plan.pools)
        manifest = self._source.manifest
        num_tokens = sum(manifest.layout.count(kind) for kind in self._kinds)
        return np.empty((num_rows, len(self._layers), num_tokens, manifest.dim), self._dtype)


def _call(threads: ThreadPoolExecutor | None, work: Callable[[], Result]) -> Future[Result]:
    """Do `work` on the threads, or here and now if there are none."""
    if threads is not None:
        return threads.submit(work)
    done: Future[Result] = Future()
    done.set_result(work())
    return done


def _cut(pieces: Sequence[tuple[_PoolRead, slice]]) -> torch.Tensor:
    """A batch's tokens as float32, a copy of runs of one pool or more."""
    parts = []
    for pool, run in pieces:
        pool.wait()
        held = torch.from_numpy(pool.values[run])
        parts.append(held.clone() if held.dtype == torch.float32 else held.view(torch.bfloat16).float())
    return parts[0] if len(parts) == 1 else torch.cat(parts)
