"""The order of one epoch: a pure function of rows, seed and epoch, without any reading.

Rows are read by units: a whole chunk, or one of the parts that a chunk is spread over. Units are taken so
that any run of them comes from all over the store, and gathered into windows; inside a window rows are
interleaved, so that any run has its share of every unit. The windows in order are the epoch.
Nothing depends on threads, on timing, on the batch size or on how many ranks share the work: see `turns.py`.

A window is held as a whole, or where memory is short in some pools: runs of its order, for each of which its
units are read again. The order is the same.

Only the units are planned ahead; the rows of a window are worked out when they are asked for.
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

from .units import Units, chunks_of, in_time, most_copies, random_stream, spelled, spread

__all__ = ["EpochPlan", "Pool", "plan_epoch"]

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]
_GOLDEN: Final = (math.sqrt(5) - 1) / 2
_WINDOWS_KEPT: Final = 4
"""A batch may reach into several windows, and each is looked at from both of its ends."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Rows that are in memory together: a window or a run of it."""

    start: int
    """Place of the pool's first row in the epoch."""
    rows: Int64
    """Its rows, in the order of the epoch."""
    positions: Float64
    """(rows,) where in the window each row's unit stands, from 0 to 1: ranks part a step by it."""

    @property
    def stop(self) -> int:
        """Place after the pool's last row."""
        return self.start + len(self.rows)


@dataclass(frozen=True, eq=False)
class EpochPlan:
    """All pools of an epoch, in order."""

    seed: int
    epoch: int
    shuffle: bool
    starts: Int64
    """(pools + 1,) place of each pool's first row in the epoch, and the number of all rows."""
    drawn: Int64
    """Its rows, ascending, each as often as it comes."""
    _units: Units
    _bounds: Int64
    """(windows + 1,) number of each window's first unit."""
    _window_starts: Int64
    """(windows + 1,) place of each window's first row in the epoch, and the number of all rows."""
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
        """One pool."""
        start, stop = (int(place) for place in self.starts[number : number + 2])
        window = self._window(int(np.searchsorted(self._window_starts, start, side="right")) - 1)
        run = slice(start - window.start, stop - window.start)
        return Pool(start, window.rows[run], window.positions[run])

    def _window(self, number: int) -> Pool:
        """All of one window; the last few are kept."""
        found = self._kept.get(number)
        if found is None:
            found = self._kept[number] = self._made(number)
            if len(self._kept) > _WINDOWS_KEPT:
                self._kept.popitem(last=False)
        return found

    def _made(self, number: int) -> Pool:
        members = np.arange(self._bounds[number], self._bounds[number + 1])
        start = int(self._window_starts[number])
        if not self.shuffle:
            places = spelled(self._units, members)
            positions = (start + np.arange(len(places))) / self.num_rows
            return Pool(start, self.drawn[places], positions)
        # A stream of its own for every window: none has to be worked out for the ones before it.
        random = random_stream(self.seed, self.epoch, number + 1)
        random.shuffle(members)
        counts = self._units.counts[members]
        places = spelled(self._units, members)
        # Rows of a unit in random order, at equal distances in time, so that any run of the window has its
        # share of every unit within one row; a shuffle would have it within the root of it.
        unit = np.repeat(np.arange(len(members)), counts)
        rows = self.drawn[places[np.argsort(unit + random.random(len(places)))]]
        nth = np.arange(len(places)) - np.repeat(counts.cumsum() - counts, counts)
        order = np.argsort((nth + _offsets(len(members), random.random())[unit]) / counts[unit])
        return Pool(start, rows[order], order / len(rows))


def plan_epoch(
    rows: Int64,
    *,
    chunk_rows: int,
    window_rows: int,
    seed: int,
    epoch: int,
    shuffle: bool = True,
    reads_per_chunk: int = 1,
    pool_rows: int | None = None,
) -> EpochPlan:
    """Plan one epoch over `rows` (ascending; a row that is there several times is drawn so often).

    Args:
        rows: the rows to go through.
        chunk_rows: rows a chunk of the store.
        window_rows: most rows of a window; a chunk that has more makes a window of its own.
        seed: of the order.
        epoch: another epoch, another order.
        shuffle: False keeps the rows ascending.
        reads_per_chunk: parts that the rows of a chunk are spread over, far apart in the epoch. Copies of one
            row are in different parts, if need be in more of them.
        pool_rows: most rows of a pool; by default a window is one. The order does not depend on it.
    """
    firsts, counts = chunks_of(rows, chunk_rows)
    units = Units(firsts, np.ones_like(firsts), counts)
    if shuffle:
        random = random_stream(seed, epoch, 0)
        num_windows = max(1, -(-len(rows) // window_rows))
        # A part has to fit into a window.
        parts = np.maximum(np.minimum(counts, reads_per_chunk), -(-counts // max(window_rows, chunk_rows)))
        copies = np.minimum(most_copies(rows, firsts), num_windows)
        times = spread(len(firsts), num_windows, random)
        units = in_time(firsts, counts, np.maximum(parts, copies), copies > 1, times, random)
    bounds = np.array([0, *_evenly(units.counts, window_rows)], np.int64)
    windows = np.concatenate([np.zeros(1, np.int64), units.counts.cumsum()])[bounds]
    starts = windows if pool_rows is None else _pools(windows, pool_rows)
    return EpochPlan(seed, epoch, shuffle, starts, rows, units, bounds, windows)


def _pools(windows: Int64, pool_rows: int) -> Int64:
    """(pools + 1,) where pools start of which each window makes as few as can be, all about as large."""
    sizes = np.diff(windows)
    pools = -(-sizes // pool_rows)
    window = np.repeat(np.arange(len(sizes)), pools)
    nth = np.arange(len(window)) - np.repeat(pools.cumsum() - pools, pools)
    return np.append(windows[window] + sizes[window] * nth // pools[window], windows[-1])


def _evenly(counts: Int64, limit: int) -> Int64:
    """Where windows of units end that have at most `limit` rows, all of about as many.

    Filled one after the other they would leave a small last one, whose batches are of a few chunks.
    """
    filled = np.array(list(_gather(counts, limit)), np.int64)
    if not len(counts) or counts.max() > limit:
        return filled
    stops = counts.cumsum()
    middles = stops - counts / 2
    for num_windows in range(len(filled), len(filled) * 9 // 8 + 1, 1 + len(filled) // 64):
        shares = stops[-1] * np.arange(1, num_windows) / num_windows
        ends = np.append(np.searchsorted(middles, shares), len(counts))
        sizes = np.diff(stops[ends - 1], prepend=0)
        if sizes.min() > 0 and sizes.max() <= limit:
            return ends
    return filled


def _gather(counts: Int64, limit: int) -> Iterator[int]:
    """Where runs of units end whose rows together stay within `limit`, at least one unit each."""
    # A memory view's items are Python's own numbers: with a window of 5 chunks NumPy's calls cost four times
    # as much. No unit is empty, so that a run has at most `limit` of them.
    ends = counts.cumsum().data
    start = place = 0
    while start < len(ends):
        most = min(start + limit, len(ends))
        start = max(start + 1, bisect_right(ends, place + limit, start, most))
        place = ends[start - 1]
        yield start


def _offsets(count: int, shift: float) -> Float64:
    """(count,) parts of one, spread evenly over any run of them: the golden ratio's multiples.

    They are when each unit's first row comes. So any run of a window has its share not only of each unit but
    of each run of units too, and ranks, which part a window by runs of units, read few units in common.
    """
    return np.asarray((np.arange(count) * _GOLDEN + shift) % 1)
