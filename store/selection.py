"""Which rows and layers a caller means, checked, and grouped by the chunks that hold them.

Row numbers in; for every chunk the rows wanted from it and where they go in the result.
"""

from __future__ import annotations

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
    """Row numbers as int64, in the order given.

    Raises:
        ConfigError: a row is out of range, or they are not whole numbers.
    """
    if isinstance(rows, slice):
        return np.arange(*rows.indices(num_rows), dtype=np.int64)
    numbers = np.asarray(rows)
    if numbers.size and (numbers.ndim != 1 or not np.issubdtype(numbers.dtype, np.integer)):
        raise ConfigError(f"rows are a slice or whole numbers; got {numbers.dtype} of shape {numbers.shape}")
    numbers = numbers.astype(np.int64).reshape(-1)
    outside = (numbers < 0) | (numbers >= num_rows)
    if outside.any():
        raise ConfigError(f"rows are 0 to {num_rows - 1}; got {numbers[outside][0]}")
    return numbers


def check_layers(layers: Iterable[int], available: Sequence[int]) -> tuple[int, ...]:
    """Layer numbers in the order given.

    Raises:
        ConfigError: there are none, one is there twice, or one is not in the store.
    """
    asked = tuple(int(layer) for layer in layers)
    missing = [layer for layer in asked if layer not in available]
    if missing or not asked or len(set(asked)) != len(asked):
        raise ConfigError(f"layers are some of {tuple(available)}, each once; got {asked}")
    return asked


def by_chunk(rows: Int64, chunk_rows: int) -> Iterator[ChunkRows]:
    """`rows` grouped by the chunk that holds them, chunks ascending: each is then decompressed once."""
    order = np.argsort(rows, kind="stable")
    chunks = rows[order] // chunk_rows
    starts = np.flatnonzero(np.diff(chunks, prepend=-1))
    for start, stop in pairwise([*starts.tolist(), len(rows)]):
        places = order[start:stop]
        chunk = int(chunks[start])
        yield ChunkRows(chunk, rows[places] - chunk * chunk_rows, places)
