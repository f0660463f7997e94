"""Which rows and layers a caller means, checked, and grouped by the chunks that hold them.

Row numbers in; for every chunk the rows wanted from it and where they go in the result.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from .errors import ConfigError

__all__ = ["ChunkRows", "RowSelection", "by_chunk", "check_layers", "check_rows"]

Int64 = npt.NDArray[np.int64]
RowSelection = slice | Sequence[int] | npt.NDArray[np.integer]


@dataclass(frozen=True)
class ChunkRows:
    """Rows wanted from one chunk."""

    chunk: int
    """Number of the chunk, counted through the whole array."""
    local: Int64
    """Rows within the chunk."""
    places: Int64
    """Where they go in the result."""


def check_rows(rows: RowSelection, num_rows: int) -> Int64:
    """Row numbers as int64, in the order given; the caller's own array if it is that already.

    A slice means what it means to NumPy: ends beyond the table are cut, negative ones count from its end,
    and a negative step goes backwards. Row numbers in a sequence count from 0 and are never negative, as -1
    is more often a lookup that failed than the last row.

    Raises:
        ConfigError: a row is out of range, or they are not whole numbers.
    """
    if isinstance(rows, slice):
        try:
            rows = range(*rows.indices(num_rows))
        except (TypeError, ValueError) as exc:
            raise ConfigError(f"a slice of rows is of whole numbers; got {rows} ({exc})") from exc
    if isinstance(rows, range):
        _refuse_outside((rows[0], rows[-1]) if rows else (), num_rows)  # before it is spelled out
        return np.arange(rows.start, rows.stop, rows.step, dtype=np.int64) if rows else np.empty(0, np.int64)
    if isinstance(rows, np.ma.MaskedArray):
        raise ConfigError(f"rows are all meant; got a masked array of {rows.size}; give rows.compressed()")
    try:
        numbers = np.asarray(rows)
    except ValueError as exc:  # lists of different lengths
        raise ConfigError(f"rows are a slice or whole numbers; got {rows!s:.80} ({exc})") from exc
    if numbers.dtype == np.bool_:
        raise ConfigError(f"rows are numbers, not a mask of {numbers.size}; give np.flatnonzero(mask)")
    if numbers.size and (numbers.ndim != 1 or numbers.dtype.kind not in "iu"):
        raise ConfigError(f"rows are a slice or whole numbers; got {numbers.dtype} of shape {numbers.shape}")
    if numbers.size and (numbers.min() < 0 or numbers.max() >= num_rows):
        _refuse_outside(numbers.tolist(), num_rows)
    return numbers.astype(np.int64, copy=False).reshape(-1)


def _refuse_outside(rows: Iterable[int], num_rows: int) -> None:
    for row in rows:
        if not 0 <= row < num_rows:
            raise ConfigError(f"rows are 0 to {num_rows - 1}; got {row}")


def check_layers(layers: Iterable[int], available: Sequence[int]) -> tuple[int, ...]:
    """Layer numbers in the order given.

    Raises:
        ConfigError: there are none, one is no whole number, is there twice, or is not in the store. Text is
            for `parse_layers`: here the characters of `"01"` would be taken for layers.
    """
    try:
        asked = tuple(_whole(layer) for layer in layers)
    except TypeError as exc:
        raise ConfigError(
            f"layers are whole numbers from 0, such as range(0, 8) or [0, 7]; got {layers!r}"
        ) from exc
    missing = [layer for layer in asked if layer not in available]
    if missing or not asked or len(set(asked)) != len(asked):
        raise ConfigError(f"layers are some of {tuple(available)}, each once; got {asked}")
    return asked


def _whole(number: object) -> int:
    if isinstance(number, (bool, np.bool_)):
        raise TypeError("a truth value is no layer")
    return operator.index(number)  # type: ignore[arg-type]


def by_chunk(rows: Int64, chunk_rows: int) -> Iterator[ChunkRows]:
    """`rows` grouped by the chunk that holds them, chunks ascending: each is then decompressed once."""
    order = np.argsort(rows, kind="stable")
    chunks = rows[order]
    chunks //= chunk_rows
    starts = np.flatnonzero(np.diff(chunks, prepend=-1))
    for start, stop in pairwise([*starts.tolist(), len(rows)]):
        places = order[start:stop]
        chunk = int(chunks[start])
        yield ChunkRows(chunk, rows[places] - chunk * chunk_rows, places)
