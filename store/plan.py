"""The order of one epoch: a pure function of rows, seed and epoch, without any reading.

Rows are read by whole chunks. Chunks are taken in random order and gathered into pools of bounded size;
inside a pool rows are permuted, and the pools one after the other are cut into batches. Every row comes
exactly once an epoch, every chunk is read once an epoch, and nothing depends on threads or on timing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

__all__ = ["EpochPlan", "Pool", "plan_epoch"]

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
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
    chunks, starts, counts = np.unique(rows // chunk_rows, return_index=True, return_counts=True)
    order = random.permutation(len(chunks)) if shuffle else np.arange(len(chunks))
    pools: list[Pool] = []
    taken = 0
    for members in _gather(counts[order], pool_rows):
        places = order[members]
        held = np.concatenate([rows[starts[place] : starts[place] + counts[place]] for place in places])
        pool = Pool(chunks[places], taken, random.permutation(held) if shuffle else held)
        pools.append(pool)
        taken = pool.stop
    whole = np.concatenate([pool.rows for pool in pools]) if pools else rows
    num_batches = taken // batch_size if drop_last else -(-taken // batch_size)
    return EpochPlan(whole, tuple(pools), batch_size, num_batches)


def _gather(counts: Int64, limit: int) -> list[slice]:
    """Runs of chunks whose rows together stay within `limit`, at least one chunk each."""
    runs: list[slice] = []
    start = held = 0
    for place, count in enumerate(counts.tolist()):
        if held and held + count > limit:
            runs.append(slice(start, place))
            start, held = place, 0
        held += count
    if held:
        runs.append(slice(start, len(counts)))
    return runs
