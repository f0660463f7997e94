"""Rows held out of training by a hash of their keys.

    train, validation = hold_out_rows(store.samples, split_rows(store.samples, rows)["train"], 0.05)

A key's side depends on the key, the fraction and the seed alone: rows that are appended to a store move none,
and a row that is held out of a small part of a store is held out of all of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from .errors import ConfigError
from .samples import drawn

if TYPE_CHECKING:
    from .arrow import pa

__all__ = ["hold_out_rows"]

Int64 = npt.NDArray[np.int64]
_SEEDS: Final = 1 << 32
"""Apart from those of `split_rows`, of whose training rows this one takes a part."""


def hold_out_rows(samples: pa.Table, rows: Int64, fraction: float, *, seed: int = 0) -> tuple[Int64, Int64]:
    """`rows` parted into those that stay and those that are held out, each in the given order.

    Folders play no part, unlike in `split_rows`. A larger fraction holds out the same rows and more.

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
    asked = np.zeros(len(samples), np.bool_)
    asked[rows] = True
    is_held = drawn(samples["key"], asked, fraction, _SEEDS + seed)[rows]
    return rows[~is_held], rows[is_held]
