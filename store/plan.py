"""The order of one epoch: a pure function of rows, seed and epoch, without any reading.

Rows are read by whole chunks. Chunks are taken in random order and gathered into pools of bounded size;
inside a pool rows are permuted, and the pools one after the other are cut into batches. Every row comes
exactly once an epoch, every chunk is read once an epoch, and nothing depends on threads or on timing.
All pools look into one array of the whole order, so that a plan costs little more than its row numbers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["EpochPlan", "Pool", "plan_epoch"]

Int64 = npt.NDArray[np.int64]
_BLOCK_ROWS: Final = 65_536
"""Rows worked on at a time: what is needed for them stays in the processor's cache."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Rows that are in memory together."""

    chunks: Int64
    """Chunks that hold them, in reading order."""
    start: int
    """Place of the pool's first row in the epoch."""
    rows: Int64
    """Its rows, in the order of the epoch."""

    @property
    def stop(self) -> int:
        """Place after the pool's last row."""
        return self.start + len(self.rows)


@dataclass(frozen=True)
class EpochPlan:
    """All rows of an epoch in order, and the pools that they are read by."""

    rows: Int64
    """(num_rows,) the whole order."""
    pools: tuple[Pool, ...]
    batch_size: int
    num_batches: int

    @cached_property
    def _starts(self) -> Int64:
        return np.array([pool.start for pool in self.pools], np.int64)

    def span(self, batch: int) -> range:
        """Places of one batch's rows in the epoch."""
        return range(batch * self.batch_size, min((batch + 1) * self.batch_size, len(self.rows)))

    def pools_of(self, batch: int) -> range:
        """Numbers of the pools that one batch takes rows from."""
        span = self.span(batch)
        first = int(np.searchsorted(self._starts, span.start, side="right")) - 1
        last = int(np.searchsorted(self._starts, span.stop - 1, side="right")) - 1
        return range(first, last + 1)


def plan_epoch(
    rows: Int64,
    *,
    chunk_rows: int,
    batch_size: int,
    pool_rows: int,
    seed: int,
    epoch: int,
    shuffle: bool = True,
    drop_last: bool = False,
) -> EpochPlan:
    """Plan one epoch over `rows` (ascending, each once).

    10 million rows in chunks of 32 take 0.4 s and 80 MB on one core in pools of 2,000 rows, 0.7 to 1.0 s and
    115 MB in 62,500 pools of 160, beside `rows` and nearly all of it kept: the plan itself. A quarter of the
    time of the latter is the pools' own shuffles.

    Args:
        rows: the rows to go through.
        chunk_rows: rows a chunk of the store.
        batch_size: rows a batch; the last may be smaller unless `drop_last`.
        pool_rows: most rows a pool holds; a chunk that has more makes a pool of its own.
        seed: of the order.
        epoch: another epoch, another order.
        shuffle: False keeps the rows ascending.
        drop_last: leave out a last batch that is smaller.
    """
    # Philox by key: (seed, epoch) names a stream, so that neighbouring seeds and epochs share nothing.
    random = np.random.Generator(np.random.Philox(key=np.array([seed, epoch], np.uint64)))
    chunks, starts, counts = _chunks_of(rows, chunk_rows)
    if shuffle:
        order = random.permutation(len(chunks))
        chunks, starts, counts = chunks[order], starts[order], counts[order]
    whole = _taken(rows, starts, counts) if shuffle else rows
    pools: list[Pool] = []
    for members, places in _gather(counts, pool_rows):
        held = whole[places]
        if shuffle:
            random.shuffle(held)
        pools.append(Pool(chunks[members], places.start, held))
    num_batches = len(rows) // batch_size if drop_last else -(-len(rows) // batch_size)
    return EpochPlan(whole, tuple(pools), batch_size, num_batches)


def _chunks_of(rows: Int64, chunk_rows: int) -> tuple[Int64, Int64, Int64]:
    """Chunks that hold ascending `rows`, and for each the place of its first row and how many it has."""
    found = [np.empty(0, np.int64)]
    before = -1
    for start in range(0, len(rows), _BLOCK_ROWS):
        numbers = rows[start : start + _BLOCK_ROWS] // chunk_rows
        found.append(start + np.flatnonzero(np.diff(numbers, prepend=before)))
        before = numbers[-1]
    starts = np.concatenate(found)
    return rows[starts] // chunk_rows, starts, np.diff(starts, append=len(rows))


def _taken(rows: Int64, starts: Int64, counts: Int64) -> Int64:
    """Rows of all runs one after the other: `counts[0]` rows from place `starts[0]` on, and so forth."""
    taken = np.empty(len(rows), np.int64)
    for members, places in _gather(counts, _BLOCK_ROWS):
        first, length = starts[members], counts[members]
        behind = length.cumsum()
        taken[places] = rows[np.arange(behind[-1]) + np.repeat(first - behind + length, length)]
    return taken


def _gather(counts: Int64, limit: int) -> Iterator[tuple[slice, slice]]:
    """Runs of chunks whose rows together stay within `limit`, at least one chunk each, and their places."""
    # A memory view's items are Python's own numbers: with a pool of 5 chunks NumPy's calls cost four times
    # as much. No chunk is empty, so that a run has at most `limit` of them.
    ends = counts.cumsum().data
    start = place = 0
    while start < len(ends):
        most = min(start + limit, len(ends))
        stop = max(start + 1, bisect_right(ends, place + limit, start, most))
        yield slice(start, stop), slice(place, ends[stop - 1])
        start, place = stop, ends[stop - 1]
