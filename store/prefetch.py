"""Executing an epoch's plan: pools are read on threads while batches are cut from the one before.

An `EpochPlan` in, its batches' tokens (batch, layers, tokens, dim) out, in order and without a gap: a fault
in a thread is raised where its batch would have been. At most two pools and two batches are held. A pool
holds values in as few bytes as the store's shard buffers do (1 for int8 codes, 2 for 16-bit floats), and a
batch's memory is used again once the consumer has let go of it.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from .codecs import held_type
from .conversion import MAX_BFLOAT16
from .errors import ConfigError, PrecisionError
from .layout import TokenKind
from .plan import EpochPlan
from .quantise import Steps
from .reading import ChunkSource, by_kind, read_jobs
from .recycling import Recycler

__all__ = ["Execution"]

Result = TypeVar("Result")
_BATCHES_AHEAD: Final = 2
_BLOCK_VALUES: Final = 1 << 17


@dataclass(frozen=True)
class _PoolRead:
    """A pool that is being read."""

    values: Mapping[TokenKind, npt.NDArray[Any]]
    """A kind's (rows or more, layers, tokens, dim) in the pool's order, so that a batch is a run of it."""
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
        dtype: torch.dtype,
        num_threads: int,
        pool_memory: Mapping[TokenKind, Recycler],
        batch_memory: Recycler,
    ) -> None:
        self._source = source
        self._plan = plan
        self._layers = layers
        self._kinds = kinds
        self._dtype = dtype
        self._pool_memory = pool_memory
        self._batch_memory = batch_memory
        self._pools: dict[int, _PoolRead] = {}
        self._process = os.getpid()
        self._readers = ThreadPoolExecutor(num_threads, "activault-pool") if num_threads else None
        # Batches are cut on a thread of their own: behind the next pool's reads they would wait for all of
        # them.
        self._cutter = _one_core_thread() if num_threads else None

    def __enter__(self) -> Execution:
        return self

    def __exit__(self, *exception: object) -> None:
        for threads in (self._readers, self._cutter):
            # A fork has none of the threads, and perhaps their locks as they were held: it must not wait.
            if threads is not None and self._process == os.getpid():
                threads.shutdown(cancel_futures=True)
        self._pools.clear()

    def batches(self, first: int) -> Iterator[tuple[range, torch.Tensor]]:
        """`(places in the epoch, tokens)` of every batch from number `first` on.

        Raises:
            ConfigError: it goes on in a fork of the process that began it.
        """
        plan = self._plan
        ahead: deque[tuple[int, Future[torch.Tensor]]] = deque()
        submitted = first
        while submitted < plan.num_batches or ahead:
            self._refuse_fork()
            while submitted < plan.num_batches and len(ahead) < (_BATCHES_AHEAD if self._cutter else 1):
                ahead.append((submitted, self._submit(submitted)))
                submitted += 1
            batch, cut = ahead.popleft()
            tokens = cut.result()
            del cut
            self._turn_over(plan.pools_of(batch))
            yield plan.span(batch), tokens

    def _refuse_fork(self) -> None:
        if self._process != os.getpid():
            raise ConfigError(
                "an iterator of a loader reads on threads, which a fork does not have; this one was begun in "
                f"process {self._process} and goes on in {os.getpid()}; make a loader in the child, or start "
                "children by spawn"
            )

    def _turn_over(self, pools: range) -> None:
        """Let go of the pools that a batch, now cut, has emptied, and read the one after it."""
        for number in [number for number in self._pools if number < pools[-1]]:
            del self._pools[number]
        if self._readers is not None and pools.stop < len(self._plan.pools):
            self._start(pools.stop)

    def _submit(self, batch: int) -> Future[torch.Tensor]:
        span = self._plan.span(batch)
        pieces = []
        for number in self._plan.pools_of(batch):
            pool = self._plan.pools[number]
            run = slice(max(span.start, pool.start) - pool.start, min(span.stop, pool.stop) - pool.start)
            pieces.append((self._start(number), run))
        return _call(self._cutter, lambda: self._cut(pieces))

    def _start(self, number: int) -> _PoolRead:
        """The read of one pool, begun if it is not yet."""
        if number not in self._pools:
            rows = self._plan.pools[number].rows
            values = self._space()
            outs = {kind: held[: len(rows)] for kind, held in values.items()}
            jobs = read_jobs(self._source, rows, self._layers, outs)
            self._pools[number] = _PoolRead(values, [_call(self._readers, job) for job in jobs])
        return self._pools[number]

    def _space(self) -> Mapping[TokenKind, npt.NDArray[Any]]:
        """Room for the largest pool, if possible that of one before: new pages cost a fault each."""
        num_rows = max(len(pool.rows) for pool in self._plan.pools)
        manifest = self._source.manifest
        return {
            kind: self._pool_memory[kind].array(
                (num_rows, len(self._layers), manifest.layout.count(kind), manifest.dim),
                held_type(manifest, kind),
            )
            for kind in self._kinds
        }

    def _cut(self, pieces: Sequence[tuple[_PoolRead, slice]]) -> torch.Tensor:
        """A batch's tokens, a copy of runs of one pool or more."""
        manifest = self._source.manifest
        num_rows = sum(run.stop - run.start for _, run in pieces)
        num_tokens = sum(manifest.layout.count(kind) for kind in self._kinds)
        shape = (num_rows, len(self._layers), num_tokens, manifest.dim)
        numbers = np.dtype({2: np.uint16, 4: np.float32}[self._dtype.itemsize])
        tokens = self._batch_memory.array(shape, numbers)
        start = 0
        for pool, run in pieces:
            pool.wait()
            stop = start + run.stop - run.start
            for kind, out in by_kind(tokens[start:stop], manifest, self._kinds).items():
                steps = [self._source.steps(layer, kind) for layer in self._layers]
                _convert(pool.values[kind][run], torch.from_numpy(out).view(self._dtype), steps)
            start = stop
        return torch.from_numpy(tokens).view(self._dtype)


def _one_core_thread() -> ThreadPoolExecutor:
    """A thread whose own torch operations stay on one core.

    OpenMP's team would wait for the cores that decompress, spinning: batches came four times as slowly. The
    number of threads is each thread's own, and also the process's default for new ones, which is put back.
    """
    thread = ThreadPoolExecutor(1, "activault-batch")
    openmp: Any = torch.backends.openmp  # without annotations
    if openmp.is_available():
        num_threads = torch.get_num_threads()
        # Asking makes the thread take the default first; it would otherwise do so later.
        thread.submit(torch.get_num_threads).result()
        thread.submit(torch.set_num_threads, 1).result()
        torch.set_num_threads(num_threads)
    return thread


def _call(threads: ThreadPoolExecutor | None, work: Callable[[], Result]) -> Future[Result]:
    """Do `work` on the threads, or here and now if there are none."""
    if threads is not None:
        return threads.submit(work)
    done: Future[Result] = Future()
    done.set_result(work())
    return done


def _convert(held: npt.NDArray[Any], out: torch.Tensor, steps: Sequence[Steps | None]) -> None:
    """Held values (rows, layers, tokens, dim) into a batch, by torch: NumPy takes several times as long."""
    values = torch.from_numpy(held)
    if held.dtype == np.int8:
        _decode(values, out, steps)
    else:
        out.copy_(values.view(torch.bfloat16) if held.dtype == np.uint16 else values)
    if out.dtype == torch.float16 and held.dtype != np.float16 and not bool(out.isfinite().all()):
        raise PrecisionError("float16 holds values up to 65504; one of this batch is beyond; take bfloat16")
    if out.dtype == torch.bfloat16 and held.dtype == np.float32 and not bool(out.isfinite().all()):
        raise PrecisionError(
            f"bfloat16 holds values up to {MAX_BFLOAT16:.6g}; one of this batch is beyond; take float32"
        )


def _decode(codes: torch.Tensor, out: torch.Tensor, steps: Sequence[Steps | None]) -> None:
    """Codes (rows, layers, tokens, dim) into a batch, in blocks that stay in a core's own cache."""
    rows = max(1, _BLOCK_VALUES // max(1, codes[0, 0].numel()))
    block = torch.empty((min(rows, len(codes)), *codes.shape[2:]))
    for layer, step in enumerate(steps):
        assert step is not None
        offset, scale = torch.from_numpy(step.offset), torch.from_numpy(step.scale)
        for start in range(0, len(codes), rows):
            into = out[start : start + rows, layer]
            values = block[: len(into)]
            values.copy_(codes[start : start + rows, layer])
            # The product of a code and its step is exact: fused with the sum or not, the bits are the same.
            if out.dtype == torch.float32:
                torch.addcmul(offset, values, scale, out=into)
            else:
                into.copy_(torch.addcmul(offset, values, scale, out=values))
