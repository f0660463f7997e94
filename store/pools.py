"""Pools of rows as they are held, and the batches that are cut from them.

Row numbers in; a pool whose values arrive by jobs; tokens (batch, layers, tokens, dim) out. A pool holds
values in as few bytes as the store's shard buffers do (1 for int8 codes, 2 for 16-bit floats). Where that is
the batch's own dtype for every kind, a batch is a view of the pool; otherwise, and where it lies in several
pools, a copy, whose memory is used again once the consumer has let go of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from .batches import Memory, RecycledMemory
from .codecs import held_type
from .conversion import MAX_BFLOAT16
from .errors import PrecisionError
from .layout import TokenKind
from .quantise import Steps
from .reading import ChunkSource, read_jobs

__all__ = ["PoolRead", "Pools"]

Int64 = npt.NDArray[np.int64]
Submit = Callable[[Callable[[], None]], Future[None]]
_BLOCK_VALUES: Final = 1 << 17
_POOLS_FREE: Final = 2
_BATCHES_FREE: Final = 3
_TORCH: Final = {
    np.dtype(np.uint16): torch.bfloat16,
    np.dtype(np.float16): torch.float16,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.int8): torch.int8,
}
"""Held types as torch's; bfloat16 is bit patterns to NumPy."""


@dataclass(frozen=True)
class PoolRead:
    """A pool that is being read."""

    rows: Int64
    """(rows,) their numbers, in the order of the batches: a batch is a run of them."""
    values: Mapping[TokenKind, torch.Tensor]
    """A kind's (rows, layers, tokens of the kind, dim)."""
    tokens: torch.Tensor | None
    """All kinds' (rows, layers, tokens, dim), if they are held as batches are; `values` are views of it."""
    jobs: Sequence[Future[None]]

    def wait(self) -> None:
        """Until all of it is there; raises what a thread raised."""
        for job in self.jobs:
            job.result()


class Pools:
    """What one loader's pools and batches are like.

    Args:
        source: the store's chunks.
        layers: layers of a batch, in the order wanted.
        kinds: token kinds, in the layout's order.
        dtype: of the batches.
        memory: makes memory for batches, given how many blocks are kept for use again.
    """

    def __init__(
        self,
        source: ChunkSource,
        *,
        layers: Sequence[int],
        kinds: Sequence[TokenKind],
        dtype: torch.dtype,
        memory: Callable[[int], Memory],
    ) -> None:
        self._source = source
        self._layers = layers
        self._kinds = kinds
        self._dtype = dtype
        self._counts = {kind: source.manifest.layout.count(kind) for kind in kinds}
        self._held = {kind: _TORCH[held_type(source.manifest, kind)] for kind in kinds}
        self._batch_memory = memory(_BATCHES_FREE)
        # What batches are copied from is memory like any other.
        self._pool_memory: Mapping[TokenKind, Memory] = {
            kind: memory(_POOLS_FREE) if self.are_views else RecycledMemory(_POOLS_FREE) for kind in kinds
        }

    @property
    def are_views(self) -> bool:
        """Whether batches look into their pool."""
        return set(self._held.values()) == {self._dtype}

    def read(self, rows: Int64, room: int, submit: Submit) -> PoolRead:
        """Begin to read a pool.

        Args:
            rows: its rows in the order of the batches.
            room: rows to make room for: pools that are as large can use one another's memory.
            submit: has a job done.
        """
        values, tokens = self._space(len(rows), max(room, len(rows)))
        outs = {kind: _numbers(held) for kind, held in values.items()}
        jobs = read_jobs(self._source, rows, self._layers, outs) if len(rows) else []
        return PoolRead(rows, values, tokens, [submit(job) for job in jobs])

    def _space(self, count: int, room: int) -> tuple[Mapping[TokenKind, torch.Tensor], torch.Tensor | None]:
        if not self.are_views:
            shapes = {kind: self._shape(room, self._counts[kind]) for kind in self._kinds}
            return {
                kind: self._pool_memory[kind].tensor(shapes[kind], self._held[kind])[:count]
                for kind in self._kinds
            }, None
        shape = self._shape(room, sum(self._counts.values()))
        tokens = self._pool_memory[self._kinds[0]].tensor(shape, self._dtype)[:count]
        return dict(zip(self._kinds, self._parts(tokens), strict=True)), tokens

    def _parts(self, tokens: torch.Tensor) -> Sequence[torch.Tensor]:
        """Each kind's part of (rows, layers, tokens, dim)."""
        return torch.split(tokens, list(self._counts.values()), dim=2)

    def _shape(self, num_rows: int, num_tokens: int) -> tuple[int, int, int, int]:
        return num_rows, len(self._layers), num_tokens, self._source.manifest.dim

    def cut(self, pieces: Sequence[tuple[PoolRead, slice]]) -> torch.Tensor:
        """A batch's tokens, of runs of one pool or more.

        Raises:
            PrecisionError: a value is beyond what the batch's dtype holds; the message names its row.
            CorruptStoreError: a pool's chunk is missing or altered; the message names its rows.
        """
        pieces = [(pool, run) for pool, run in pieces if run.stop > run.start]
        for pool, _ in pieces:
            pool.wait()
        if len(pieces) == 1 and pieces[0][0].tokens is not None:
            pool, run = pieces[0]
            return pool.tokens[run]  # type: ignore[index]
        num_rows = sum(run.stop - run.start for _, run in pieces)
        tokens = self._batch_memory.tensor(self._shape(num_rows, sum(self._counts.values())), self._dtype)
        start = 0
        for pool, run in pieces:
            stop = start + run.stop - run.start
            self._convert(pool, run, tokens[start:stop])
            start = stop
        return tokens

    def _convert(self, pool: PoolRead, run: slice, out: torch.Tensor) -> None:
        """Held values of some rows into a batch, by torch: NumPy takes several times as long."""
        for kind, part in zip(self._kinds, self._parts(out), strict=True):
            held = pool.values[kind][run]
            if held.dtype == torch.int8:
                _decode(held, part, [self._source.steps(layer, kind) for layer in self._layers])
            else:
                part.copy_(held)
            if _may_overflow(held.dtype, self._dtype) and not bool(part.isfinite().all()):
                self._refuse(pool.rows[run], part)

    def _refuse(self, rows: Int64, part: torch.Tensor) -> None:
        row = int(rows[int((~part.isfinite()).flatten(1).any(1).nonzero()[0])])
        most, other = ("65504", "bfloat16")
        if self._dtype == torch.bfloat16:
            most, other = f"{MAX_BFLOAT16:.6g}", "float32"
        name = str(self._dtype).removeprefix("torch.")
        raise PrecisionError(
            f"row {row} (shard {row // self._source.manifest.shard_rows}): {name} holds values up to {most}; "
            f"one of this row is beyond; take {other}"
        )


def _numbers(held: torch.Tensor) -> npt.NDArray[Any]:
    """Held values as NumPy's, which has no bfloat16."""
    is_bits = held.dtype == torch.bfloat16
    numbers: npt.NDArray[Any] = (held.view(torch.int16) if is_bits else held).numpy()
    return numbers.view(np.uint16) if is_bits else numbers


def _may_overflow(held: torch.dtype, dtype: torch.dtype) -> bool:
    if dtype == torch.float16:
        return held != torch.float16
    return dtype == torch.bfloat16 and held == torch.float32


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
