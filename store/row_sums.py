"""Row sums: the hash of an array's values that neither shards nor chunks enter.

Rows of decoded values in; a number of 128 bits out that adds up over disjoint rows, in hexadecimal digits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import xxhash

__all__ = ["add_row_sums", "row_hashes", "row_sum"]

_MODULUS: Final = 1 << 128


def row_sum(rows: range, values: npt.NDArray[np.float32]) -> int:
    """Sum over rows of the hash of each; sums of disjoint rows add up. Arguments as of `row_hashes`."""
    return sum(row_hashes(rows, values)) % _MODULUS


def row_hashes(rows: range, values: npt.NDArray[np.float32]) -> Iterator[int]:
    """For each row the XXH3 of 128 bits of its values, seeded with its number.

    Args:
        rows: the rows' numbers.
        values: (rows, ...) float32, contiguous.
    """
    return (xxhash.xxh3_128_intdigest(value.data, row) for row, value in zip(rows, values, strict=True))


def add_row_sums(sums: Iterable[int]) -> str:
    """Sum of row sums, as 32 hexadecimal digits."""
    return f"{sum(sums) % _MODULUS:032x}"
