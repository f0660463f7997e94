"""Rows of an epoch drawn by weight, with replacement: a pure function of weights, seed and epoch.

Rows and a weight each in; as many draws as there are rows out, ascending, some rows several times, some not
at all. Every row comes as often as its share of the weights says, rounded up or down by chance, so that an
epoch strays less from the weights than independent draws would (systematic resampling: Kitagawa 1996).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .errors import ConfigError
from .units import random_stream

__all__ = ["check_weights", "class_weights", "draw_rows"]

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]
_STREAM: Final = 1 << 62
"""Beyond those of an epoch's pools."""


def check_weights(weights: Any, rows: Int64, num_rows: int) -> Float64:
    """(rows,) the weights of the given rows out of those of a whole store.

    Raises:
        ConfigError: they are not one number a row of the store, finite and not negative, or all are 0.
    """
    try:
        numbers = np.asarray(weights, np.float64)
    except (TypeError, ValueError) as exc:
        raise ConfigError(f"weights are one number a row of the store; got {weights!r:.80}") from exc
    if numbers.shape != (num_rows,):
        raise ConfigError(
            f"weights are one number a row of the store, so {num_rows} of them, whatever rows are chosen; "
            f"got the shape {numbers.shape}"
        )
    mine = numbers[rows]
    wrong = ~(np.isfinite(mine) & (mine >= 0))
    if wrong.any():
        raise ConfigError(f"weights are finite and not negative; row {rows[wrong][0]} has {mine[wrong][0]}")
    if not mine.any():
        raise ConfigError(f"weights are above 0 for some of the chosen rows; all {len(rows)} are 0")
    return np.asarray(mine)


def class_weights(labels: Int64, rows: Int64) -> Float64:
    """(rows,) weights by which every class is drawn as often as any other.

    Args:
        labels: (rows,) the class of each, -1 where it is unknown.
        rows: their numbers, for messages.

    Raises:
        ConfigError: a row has no label.
    """
    unknown = labels < 0
    if unknown.any():
        raise ConfigError(
            f"balanced sampling needs the class of every row; {np.count_nonzero(unknown)} of {len(rows)} "
            f"have no label (first: {rows[unknown][0]}); leave them out by rows"
        )
    return np.asarray(1 / np.bincount(labels)[labels])


def draw_rows(rows: Int64, weights: Float64, seed: int, epoch: int) -> Int64:
    """(rows,) the draws of one epoch, ascending."""
    random = random_stream(seed, epoch, _STREAM)
    # In random order, since which of two neighbours is rounded up would otherwise depend on the other.
    order = random.permutation(len(rows))
    bounds = (weights[order] / weights.max()).cumsum()  # no sum is beyond what float64 holds
    bounds *= len(rows) / bounds[-1]
    bounds[-1] = len(rows)
    counts = np.empty(len(rows), np.int64)
    counts[order] = np.diff(np.floor(bounds + random.random()).astype(np.int64), prepend=0)
    return np.repeat(rows, counts)
