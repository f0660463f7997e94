"""The shards of a partial copy as a sequence that takes no more memory than the ranges it is made of.

`[(0, 2), (5, 6)]` -> 0, 1, 5. A manifest may claim 2^40 shards; they are counted, not spelled out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain
from typing import overload

__all__ = ["HeldShards"]


class HeldShards(Sequence[int]):
    """Numbers of ascending ranges `(first, stop)`, ascending."""

    def __init__(self, ranges: Sequence[tuple[int, int]]) -> None:
        self._ranges = [range(first, stop) for first, stop in ranges]
        self._starts = [0, *accumulate(map(len, self._ranges))]
        """Place of each range's first number, and the length of all."""

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """`(first, stop)` of each range."""
        return tuple((part.start, part.stop) for part in self._ranges)

    def __repr__(self) -> str:
        return f"HeldShards({[(part.start, part.stop) for part in self._ranges]})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, HeldShards):
            return NotImplemented
        return self._ranges == other._ranges

    def __hash__(self) -> int:
        return hash(tuple(self._ranges))

    def __len__(self) -> int:
        return self._starts[-1]

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self._ranges)

    def __contains__(self, number: object) -> bool:
        return any(number in part for part in self._ranges)

    @overload
    def __getitem__(self, place: int) -> int: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[int]: ...

    def __getitem__(self, place: int | slice) -> int | Sequence[int]:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        at = place + len(self) if place < 0 else place
        if not 0 <= at < len(self):
            raise IndexError(place)
        part = bisect_right(self._starts, at) - 1
        return self._ranges[part][at - self._starts[part]]
