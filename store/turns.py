"""One rank's way through the rest of an epoch: which rows are its own at each step, and in each pool.

The epoch's order is cut into global batches, whatever the number of ranks. Of each one a rank takes an equal
share, by where in their pools the rows' units stand: all its shares of a pool come from the same few units,
so that ranks read hardly any chunk in common. A last batch that is smaller is shared out as evenly as can be.
Every rank has the same number of steps, and no row comes twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .plan import EpochPlan

__all__ = ["RankPool", "Turn"]

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RankPool:
    """What one rank needs of a pool."""

    rows: Int64
    """(rows,) in the order of its steps."""
    runs: dict[int, slice]
    """By number of the step, where its rows of this pool are."""


@dataclass(frozen=True, eq=False)
class Turn:
    """One rank's steps from a place of an epoch to its end."""

    plan: EpochPlan
    batch_size: int
    """Rows a rank's step, but for the last one."""
    start: int = 0
    """Rows of the epoch that all ranks together have taken before."""
    rank: int = 0
    world: int = 1
    drop_last: bool = False
    _kept: dict[int, list[tuple[int, Int64]]] = field(default_factory=dict)
    """The shares of the last step that two pools asked for."""

    @property
    def global_batch(self) -> int:
        """Rows of a step of all ranks together."""
        return self.batch_size * self.world

    @property
    def num_steps(self) -> int:
        """Steps that are left, the same for every rank."""
        whole, rest = divmod(self.plan.num_rows - self.start, self.global_batch)
        return whole + (rest > 0 and not self.drop_last)

    @property
    def most_rows(self) -> int:
        """Rows that a rank's part of a pool hardly ever exceeds."""
        largest = self.plan.largest_pool
        return largest if self.world == 1 else min(largest, largest // self.world + self.batch_size)

    def span(self, step: int) -> range:
        """Places in the epoch of the rows of one step of all ranks."""
        first = self.start + step * self.global_batch
        return range(first, min(first + self.global_batch, self.plan.num_rows))

    def pools_of(self, step: int) -> range:
        """Numbers of the pools that one step of all ranks takes rows from."""
        return self.plan.pools_of(self.span(step))

    def pool(self, number: int) -> RankPool:
        """The rows of one pool that are this rank's at any of the steps that are left."""
        start, stop = (int(place) for place in self.plan.starts[number : number + 2])
        first = max(0, start - self.start) // self.global_batch
        behind = min(self.num_steps, -(-(stop - self.start) // self.global_batch))
        runs: dict[int, slice] = {}
        places: list[Int64] = [np.empty(0, np.int64)]
        count = 0
        for step in range(first, behind):
            mine = dict(self._shares(step))[number]
            runs[step] = slice(count, count + len(mine))
            count += len(mine)
            places.append(mine)
        return RankPool(self.plan.pool(number).rows[np.concatenate(places)], runs)

    def rows(self, step: int) -> Int64:
        """(rows,) this rank's rows of one step."""
        return np.concatenate([self.plan.pool(number).rows[places] for number, places in self._shares(step)])

    def _shares(self, step: int) -> list[tuple[int, Int64]]:
        """`(number of a pool, places in it)`, ascending, of this rank's rows of one step."""
        if step in self._kept:
            return self._kept[step]
        span = self.span(step)
        pieces = []
        for number in self.plan.pools_of(span):
            start, stop = (int(place) for place in self.plan.starts[number : number + 2])
            pieces.append((number, np.arange(max(span.start, start), min(span.stop, stop)) - start))
        if self.world > 1:
            pieces = self._parted(pieces, len(span))
            self._kept.clear()
            self._kept[step] = pieces
        return pieces

    def _parted(self, pieces: list[tuple[int, Int64]], num_rows: int) -> list[tuple[int, Int64]]:
        positions = [self.plan.pool(number).positions[places] for number, places in pieces]
        order = np.argsort(np.concatenate(positions), kind="stable")
        first, stop = (num_rows * rank // self.world for rank in (self.rank, self.rank + 1))
        is_mine = np.zeros(num_rows, np.bool_)
        is_mine[order[first:stop]] = True
        ends = np.cumsum([len(places) for _, places in pieces])[:-1]
        return [
            (number, places[mine])
            for (number, places), mine in zip(pieces, np.split(is_mine, ends), strict=True)
        ]
