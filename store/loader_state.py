"""Where a loader stands, as what a checkpoint keeps, and what it must agree with.

Version 2 counts the rows of the epoch that all ranks have taken. Version 1 counted batches of an order that
was made otherwise: it means the same at the start of an epoch, and where rows are not shuffled.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .errors import ConfigError
from .reader import Store
from .selection import RowSelection, check_rows

__all__ = ["LoaderState", "loadable_rows", "position_of", "whole"]

Int64 = npt.NDArray[np.int64]
_VERSION: Final = 2
_SINCE_2: Final = {"reads_per_chunk": 1, "weights": None}
"""What a version 1 loader did, and had no name for."""


@dataclass(frozen=True, kw_only=True)
class LoaderState:
    """A loader's position."""

    epoch: int
    """From 0."""
    row: int
    """Rows of the epoch that all ranks together have taken."""
    identity: Mapping[str, Any]
    """What the order of the rows depends on."""

    def to_dict(self) -> dict[str, Any]:
        """Values that JSON can hold."""
        return {"version": _VERSION, "epoch": self.epoch, "row": self.row} | dict(self.identity)


def position_of(state: Mapping[str, Any], identity: Mapping[str, Any], num_rows: int) -> tuple[int, int]:
    """Epoch and row of a saved state.

    Args:
        state: what `state_dict` gave, of this version or the one before.
        identity: what the order depends on here.
        num_rows: rows an epoch.

    Raises:
        ConfigError: it is no such state, or its position would mean other rows here.
    """
    if not isinstance(state, Mapping):
        raise ConfigError(f"a loader state is what state_dict gave; got {state!r:.80}")
    version = state.get("version")
    if version not in (1, _VERSION):
        raise ConfigError(f"a loader state has version {_VERSION}, or 1; got {version!r:.80}")
    told = _SINCE_2 | dict(state) if version == 1 else state
    for field, here in identity.items():
        if told.get(field) != here:
            raise ConfigError(
                f"this loader's {field} is {here!r} and the state's is {told.get(field)!r}: its "
                "position would mean other rows; make the loader as it was, or start anew"
            )
    epoch = whole("epoch", state.get("epoch"), 0)
    if version == _VERSION:
        return epoch, whole("row", state.get("row"), 0, num_rows)
    batch = whole("batch", state.get("batch"), 0)
    row = batch * whole("batch_size", state.get("batch_size"), 1)
    if row and identity["shuffle"]:
        raise ConfigError(
            "a loader state of version 1 in the middle of an epoch means rows of an order that is no longer "
            f"made; got batch {batch} of epoch {epoch}; set its batch to 0 to begin that epoch again"
        )
    return epoch, whole("batch * batch_size", row, 0, num_rows)


def whole(name: str, value: object, least: int, stop: int = 1 << 63) -> int:
    """A whole number from `least` to below `stop`; NumPy's are taken too, truth values are not.

    Raises:
        ConfigError: it is something else.
    """
    number = operator.index(value) if hasattr(value, "__index__") else None
    if number is None or isinstance(value, bool) or not least <= number < stop:
        most = "below 2^63" if stop == 1 << 63 else f"below {stop}"
        raise ConfigError(f"{name} is a whole number, at least {least} and {most}; got {value!r:.80}")
    return number


def loadable_rows(store: Store, rows: RowSelection | None) -> Int64:
    """Rows that a loader may go through, ascending; all of them by default.

    Raises:
        ConfigError: a row is not there, bad, unwritten or named twice.
    """
    if rows is None:
        return store.valid_rows
    numbers = np.sort(check_rows(rows, store.num_rows))
    if (np.diff(numbers) == 0).any():
        raise ConfigError(
            f"rows are named once each; {numbers[:-1][np.diff(numbers) == 0][0]} is there twice"
        )
    refused = numbers[~np.isin(numbers, store.valid_rows)]
    if len(refused):
        raise ConfigError(
            f"a loader takes rows that are finished and ok (see Store.valid_rows); {len(refused)} of "
            f"{len(numbers)} are not (first: {refused[0]})"
        )
    return numbers
