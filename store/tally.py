"""What a record and its statistics say of one array's shard, added up while its rows pass by.

Decoded rows (rows, tokens, dim) in, group by group; the row sum and the statistics out. A writer and
`verify --values` take the same groups in the same order, and so get the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from .row_sums import add_row_sums, row_sum
from .statistics import ChannelStats, Moments

__all__ = ["Tally", "row_groups"]

_GROUP_VALUES: Final = 1 << 17
"""Values that are hashed and summed at a time: 512 KiB of float32."""


def row_groups(start: int, stop: int, row_values: int) -> Iterator[slice]:
    """Rows `start` to `stop` of a chunk, of `row_values` each, in groups that stay in a core's cache."""
    step = max(1, _GROUP_VALUES // row_values)
    for row in range(start, stop, step):
        yield slice(row, min(row + step, stop))


class Tally:
    """Row sum and moments of one array's shard."""

    def __init__(self, dim: int) -> None:
        self._moments = Moments(dim)
        self._sums: list[int] = []

    def add(self, first: int, values: npt.NDArray[np.float32], is_ok: npt.NDArray[np.bool_]) -> None:
        """Take in the next group.

        Args:
            first: number of its first row.
            values: (rows, tokens, dim), contiguous.
            is_ok: (rows,) which of them the statistics are of; all values of those are finite.
        """
        self._sums.append(row_sum(range(first, first + len(values)), values))
        self._moments.add(values if is_ok.all() else values[is_ok])

    @property
    def row_sum(self) -> str:
        """Of all rows, as a record has it."""
        return add_row_sums(self._sums)

    def statistics(self, absmax: npt.NDArray[np.float64]) -> ChannelStats:
        """Of all rows that are ok; `absmax` (dim,) is known from elsewhere."""
        return self._moments.finish(absmax)
