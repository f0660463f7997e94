"""Rows held out of training by a hash of their keys.

    train, validation = hold_out_rows(store.samples, split_rows(store.samples, rows)["train"], 0.05)

A key's side depends on the key, the fraction and the seed alone: rows that are appended to a store move none,
and a row that is held out of a small part of a store is held out of all of it.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from .arrow import pa
from .errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["hold_out_rows"]

Int64 = npt.NDArray[np.int64]
_SEEDS: Final = 1 << 32
_BLOCK_ROWS: Final = 65_536
"""Rows whose keys are Python objects at a time."""
_PURPOSE: Final = b"validation"
"""Another hash than that of `split_rows`: among the rows that its draw leaves none is below its bound."""


def hold_out_rows(samples: pa.Table, rows: Int64, fraction: float, *, seed: int = 0) -> tuple[Int64, Int64]:
    """`rows` parted into those that stay, in the given order, and the held out, by ascending hash.

    The first n of the held out are thus a random sample of them, and what is appended to a store pushes few
    of them back. Folders play no part, unlike in `split_rows`. A larger fraction holds out the same rows
    first, and then more.

    Args:
        samples: the store's table.
        rows: row numbers.
        fraction: of the rows that is held out, in expectation; 0 to 1.
        seed: another one, another part; below 2^32.

    Raises:
        ConfigError: fraction or seed are out of range.
    """
    if not 0 <= fraction <= 1 or not 0 <= seed < _SEEDS:
        raise ConfigError(
            f"rows are held out by a fraction of 0 to 1 and a seed below 2^32; got {fraction} and {seed}"
        )
    hashes = np.fromiter(_hashes(samples["key"], rows, seed), np.float64, len(rows))
    is_held = hashes < fraction
    return rows[~is_held], rows[is_held][np.argsort(hashes[is_held], kind="stable")]


def _hashes(keys: Any, rows: Int64, seed: int) -> Iterator[float]:
    """A number in [0, 1) for the key of each row."""
    salt = seed.to_bytes(8, "little")  # zeros are no salt
    for start in range(0, len(rows), _BLOCK_ROWS):
        for key in keys.take(rows[start : start + _BLOCK_ROWS]).cast(pa.binary()).to_pylist():
            digest = hashlib.blake2b(key, digest_size=8, person=_PURPOSE, salt=salt).digest()
            yield int.from_bytes(digest, "big") / 2**64
