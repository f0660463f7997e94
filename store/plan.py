"""The order of one epoch: a pure function of rows, seed and epoch, without any reading.

Rows are read by units: a whole chunk, or one of the parts that a chunk is spread over. Units are taken so
that any run of them comes from all over the store, and gathered into pools of bounded size; inside a pool
rows are interleaved, so that any run has its share of every unit. The pools in order are the epoch.
Nothing depends on threads, on timing, on the batch size or on how many ranks share the work: see `turns.py`.

Only the units are planned ahead; the rows of a pool are worked out when it is asked for.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["EpochPlan", "Pool", "plan_epoch", "random_stream"]

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]
_BLOCK_ROWS: Final = 65_536
"""Rows worked on at a time: what is needed for them stays in the processor's cache."""
_GOLDEN: Final = (math.sqrt(5) - 1) / 2
_POOLS_KEPT: Final = 4
"""A batch may reach into several pools, and each is looked at from both of its ends."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Rows that are in memory together."""

    start: int
    """Place of the pool's first row in the epoch."""
    rows: Int64
    """Its rows, in the order of the epoch."""
    positions: Float64
    """(rows,) where in the pool each row's unit stands, from 0 to 1: ranks part a pool by it."""

    @property
    def stop(self) -> int:
        """Place after the pool's last row."""
        return self.start + len(self.rows)


@dataclass(frozen=True, slots=True)
class _Units:
    """Rows that are read together: every `strides`-th of the ascending rows from place `firsts` on."""

    firsts: Int64
    strides: Int64
    counts: Int64


@dataclass(frozen=True, eq=False)
class EpochPlan:
    """All pools of an epoch, in order."""

    seed: int
    epoch: int
    shuffle: bool
    starts: Int64
    """(pools + 1,) place of each pool's first row in the epoch, and the number of all rows."""
    _rows: Int64
    _units: _Units
    _bounds: Int64
    """(pools + 1,) number of each pool's first unit."""
    _kept: OrderedDict[int, Pool] = field(default_factory=OrderedDict)

    @property
    def num_rows(self) -> int:
        """Rows of the epoch, with repeats."""
        return int(self.starts[-1])

    @property
    def num_pools(self) -> int:
        """Pools of the epoch."""
        return len(self.starts) - 1

    @property
    def largest_pool(self) -> int:
        """Rows of the largest pool."""
        return int(np.diff(self.starts).max(initial=0))

    @property
    def rows(self) -> Int64:
        """(num_rows,) the whole order; made anew each time."""
        found = [self.pool(number).rows for number in range(self.num_pools)]
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def pools_of(self, span: range) -> range:
        """Numbers of the pools that some places of the epoch lie in."""
        first = int(np.searchsorted(self.starts, span.start, side="right")) - 1
        last = int(np.searchsorted(self.starts, span.stop - 1, side="right")) - 1
        return range(first, last + 1)

    def pool(self, number: int) -> Pool:
        """One pool; the last few are kept."""
        found = self._kept.get(number)
        if found is None:
            found = self._kept[number] = self._made(number)
            if len(self._kept) > _POOLS_KEPT:
                self._kept.popitem(last=False)
        return found

    def _made(self, number: int) -> Pool:
        members = np.arange(self._bounds[number], self._bounds[number + 1])
        start = int(self.starts[number])
        if not self.shuffle:
            places = _spelled(self._units, members)
            positions = (start + np.arange(len(places))) / self.num_rows
            return Pool(start, self._rows[places], positions)
        # A stream of its own for every pool: none has to be worked out for the ones before it.
        random = random_stream(self.seed, self.epoch, number + 1)
        random.shuffle(members)
        counts = self._units.counts[members]
        places = _spelled(self._units, members)
        # Rows of a unit in random order, at equal distances in time, so that any run of the pool has its
        # share of every unit within one row; a shuffle would have it within the root of it.
        unit = np.repeat(np.arange(len(members)), counts)
        rows = self._rows[places[np.argsort(unit + random.random(len(places)))]]
        nth = np.arange(len(places)) - np.repeat(counts.cumsum() - counts, counts)
        order = np.argsort((nth + _offsets(len(members), random.random())[unit]) / counts[unit])
        return Pool(start, rows[order], order / len(rows))


def plan_epoch(
    rows: Int64,
    *,
    chunk_rows: int,
    pool_rows: int,
    seed: int,
    epoch: int,
    shuffle: bool = True,
    reads_per_chunk: int = 1,
) -> EpochPlan:
    """Plan one epoch over `rows` (ascending; a row that is there several times is drawn so often).

    Args:
        rows: the rows to go through.
        chunk_rows: rows a chunk of the store.
        pool_rows: most rows a pool holds; a chunk that has more makes a pool of its own.
        seed: of the order.
        epoch: another epoch, another order.
        shuffle: False keeps the rows ascending.
        reads_per_chunk: parts that the rows of a chunk are spread over, far apart in the epoch. Copies of one
            row are in different parts, if need be in more of them.
    """
    firsts, counts = _chunks_of(rows, chunk_rows)
    units = _Units(firsts, np.ones_like(firsts), counts)
    if shuffle:
        random = random_stream(seed, epoch, 0)
        num_pools = max(1, -(-len(rows) // pool_rows))
        # A part has to fit into a pool.
        parts = np.maximum(np.minimum(counts, reads_per_chunk), -(-counts // max(pool_rows, chunk_rows)))
        copies = np.minimum(_most_copies(rows, firsts), num_pools)
        times = _spread(len(firsts), num_pools, random)
        units = _in_time(firsts, counts, np.maximum(parts, copies), copies > 1, times, random)
    bounds = np.array([0, *_evenly(units.counts, pool_rows)], np.int64)
    starts = np.concatenate([np.zeros(1, np.int64), units.counts.cumsum()])[bounds]
    return EpochPlan(seed, epoch, shuffle, starts, rows, units, bounds)


def random_stream(seed: int, epoch: int, stream: int) -> np.random.Generator:
    """Random numbers that depend on the three numbers alone; another number, others."""
    # Philox by key: (seed, epoch) names a family, so that neighbouring seeds and epochs share nothing.
    key, counter = np.array([seed, epoch], np.uint64), np.array([0, 0, stream, 0], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


def _chunks_of(rows: Int64, chunk_rows: int) -> tuple[Int64, Int64]:
    """For each chunk that has some of ascending `rows`, the place of its first row and how many it has."""
    found = [np.empty(0, np.int64)]
    before = -1
    for start in range(0, len(rows), _BLOCK_ROWS):
        numbers = rows[start : start + _BLOCK_ROWS] // chunk_rows
        found.append(start + np.flatnonzero(np.diff(numbers, prepend=before)))
        before = numbers[-1]
    starts = np.concatenate(found)
    return starts, np.diff(starts, append=len(rows))


def _most_copies(rows: Int64, firsts: Int64) -> Int64:
    """(chunks,) how often the row of each chunk that is drawn most often is."""
    blocks = (rows[start : start + _BLOCK_ROWS + 1] for start in range(0, len(rows), _BLOCK_ROWS))
    if not any((block[1:] == block[:-1]).any() for block in blocks):
        return np.ones(len(firsts), np.int64)
    ends = np.append(np.flatnonzero(np.diff(rows, prepend=-1)), len(rows))
    return np.asarray(np.maximum.reduceat(np.repeat(np.diff(ends), np.diff(ends)), firsts))


def _spread(num_chunks: int, num_pools: int, random: np.random.Generator) -> Float64:
    """(chunks,) when each is due, 0 to 1: of every `num_pools` chunks in a row one falls to each pool's time.

    Chunks of rows in the order of their classes are then in every pool from all of the classes, evenly.
    """
    groups = np.arange(num_chunks) // num_pools
    order = np.argsort(groups + random.random(num_chunks))
    ranks = np.empty(num_chunks, np.int64)
    ranks[order] = np.arange(num_chunks) % num_pools
    sizes = np.minimum(num_pools, num_chunks - groups * num_pools)
    return np.asarray((ranks + random.random(num_chunks)) / sizes)


def _in_time(
    firsts: Int64,
    counts: Int64,
    parts: Int64,
    is_dealt: npt.NDArray[np.bool_],
    times: Float64,
    random: np.random.Generator,
) -> _Units:
    """All parts of all chunks by the time they are due, those of one chunk at equal distances.

    A part is a run of its chunk's rows, which are decompressed together; where rows have copies, these are
    dealt to the parts one by one.
    """
    owner = np.repeat(np.arange(len(firsts)), parts)
    nth = np.arange(len(owner)) - np.repeat(parts.cumsum() - parts, parts)
    num_parts, num_rows, dealt = parts[owner], counts[owner], is_dealt[owner]
    order = np.argsort((nth + times[owner]) / num_parts, kind="stable")
    # Which part comes first changes with the epoch.
    part = (nth + random.integers(0, parts)[owner]) % num_parts
    starts, stops = part * num_rows // num_parts, (part + 1) * num_rows // num_parts
    offsets = np.where(dealt, part, starts)
    lengths = np.where(dealt, -((part - num_rows) // num_parts), stops - starts)
    return _Units((firsts[owner] + offsets)[order], np.where(dealt, num_parts, 1)[order], lengths[order])


def _evenly(counts: Int64, limit: int) -> Int64:
    """Where pools of units end that have at most `limit` rows, all of about as many.

    Filled one after the other they would leave a small last one, whose batches are of a few chunks.
    """
    filled = np.array(list(_gather(counts, limit)), np.int64)
    if not len(counts) or counts.max() > limit:
        return filled
    stops = counts.cumsum()
    middles = stops - counts / 2
    for num_pools in range(len(filled), len(filled) * 9 // 8 + 1, 1 + len(filled) // 64):
        shares = stops[-1] * np.arange(1, num_pools) / num_pools
        ends = np.append(np.searchsorted(middles, shares), len(counts))
        sizes = np.diff(stops[ends - 1], prepend=0)
        if sizes.min() > 0 and sizes.max() <= limit:
            return ends
    return filled


def _gather(counts: Int64, limit: int) -> Iterator[int]:
    """Where runs of units end whose rows together stay within `limit`, at least one unit each."""
    # A memory view's items are Python's own numbers: with a pool of 5 chunks NumPy's calls cost four times
    # as much. No unit is empty, so that a run has at most `limit` of them.
    ends = counts.cumsum().data
    start = place = 0
    while start < len(ends):
        most = min(start + limit, len(ends))
        start = max(start + 1, bisect_right(ends, place + limit, start, most))
        place = ends[start - 1]
        yield start


def _spelled(units: _Units, members: Int64) -> Int64:
    """Places among the epoch's ascending rows of all rows of some units, one unit after the other."""
    counts = units.counts[members]
    behind = counts.cumsum()
    within: Int64 = np.arange(behind[-1]) - np.repeat(behind - counts, counts)
    within *= np.repeat(units.strides[members], counts)
    within += np.repeat(units.firsts[members], counts)
    return within


def _offsets(count: int, shift: float) -> Float64:
    """(count,) parts of one, spread evenly over any run of them: the golden ratio's multiples.

    They are when each unit's first row comes. So any run of a pool has its share not only of each unit but of
    each run of units too, and ranks, which part a pool by runs of units, read few units in common.
    """
    return np.asarray((np.arange(count) * _GOLDEN + shift) % 1)
