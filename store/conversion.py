"""Stored values as the numbers that a reader asked for.

Stored values of some rows (bfloat16 bit patterns, float16, float32 or int8 codes) in; float32, float64,
float16 or bfloat16 bit patterns out, into an array that is there. Work goes in blocks that stay in a core's
own cache.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final, Literal, get_args

import numpy as np
import numpy.typing as npt

from .codecs import BLOCK_VALUES, round_to_bfloat16, store_into
from .errors import ConfigError, PrecisionError
from .quantise import Steps

__all__ = ["MAX_BFLOAT16", "MAX_FLOAT16", "ReadDtype", "convert_rows", "numpy_dtype"]

Array = npt.NDArray[Any]
Int64 = npt.NDArray[np.int64]
ReadDtype = Literal["float32", "float64", "float16", "bfloat16"]
"""`bfloat16` comes as bit patterns in uint16, which torch views as its own type."""
MAX_BFLOAT16: Final = (2 - 2.0**-7) * 2.0**127
MAX_FLOAT16: Final = 65504.0
_SMALL_ROW: Final = 4096
"""Values from which on a row is worth a step of its own; smaller ones are gathered and scattered by NumPy."""
_MAGNITUDE: Final = np.uint16(0x7FFF)
_INFINITE: Final = np.uint16(0x7F80)
_HALF_BITS: Final = np.int32(~0x70001FFF)
"""Sign, exponent and fraction of a float16 that was shifted to a float32's place."""
_HALF_SCALE: Final = np.float32(2.0**112)
"""What a float16's exponent then lacks."""


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """The NumPy type of values that are read as `dtype`.

    Raises:
        ConfigError: there is no such dtype to read.
    """
    if dtype not in get_args(ReadDtype):
        raise ConfigError(f"values are read as {', '.join(get_args(ReadDtype))}; got {dtype!r}")
    return np.dtype(np.uint16 if dtype == "bfloat16" else dtype)


def convert_rows(stored: Array, local: Int64, out: Array, places: Int64, steps: Steps | None) -> None:
    """`out[places] = stored[local]`, converted.

    Args:
        stored: (rows, tokens, dim) stored values; bfloat16 ones as bit patterns in uint16.
        local: rows that are wanted.
        out: (more rows, tokens, dim); int8 takes codes as they are.
        places: where they go.
        steps: of int8 codes.

    Raises:
        PrecisionError: a value is beyond float16 or bfloat16.
    """
    row_values = stored[0].size
    if row_values < _SMALL_ROW:
        converted = np.empty((len(local), *stored.shape[1:]), out.dtype)
        _convert(stored[local], converted, steps)
        out[places] = converted
        return
    step = len(local) if stored.dtype == out.dtype else max(1, BLOCK_VALUES // row_values)
    breaks = np.flatnonzero((np.diff(local) != 1) | (np.diff(places) != 1)) + 1
    for start, stop in pairwise([0, *breaks.tolist(), len(local)]):
        for first in range(start, stop, step):
            rows = min(step, stop - first)
            here, there = int(local[first]), int(places[first])
            _convert(stored[here : here + rows], out[there : there + rows], steps)


def _convert(stored: Array, out: Array, steps: Steps | None) -> None:
    if stored.dtype == out.dtype:
        out[...] = stored
    elif out.dtype == np.float32:
        _widen(stored, out, steps)
    else:
        values = stored
        if stored.dtype != np.float32:
            values = np.empty(stored.shape, np.float32)
            _widen(stored, values, steps)
        if out.dtype == np.uint16:
            _round(values, out)
        elif out.dtype == np.float16:
            _narrow(values, out)
        else:
            out[...] = values


def _widen(stored: Array, out: Array, steps: Steps | None) -> None:
    """Anything else as float32."""
    if stored.dtype == np.uint16:
        store_into(stored, out)
    elif stored.dtype == np.int8:
        assert steps is not None
        steps.dequantise(stored, out)
    elif ((stored.view(np.uint16) & 0x7C00) == 0x7C00).any():
        out[...] = stored
    else:
        # NumPy's own conversion takes value by value, four times as long: here the bits are put in their
        # place, and the product, exact down to the least subnormal, mends the exponent.
        bits = out.view(np.int32)
        np.copyto(bits, stored.view(np.int16))
        bits <<= 13
        bits &= _HALF_BITS
        out *= _HALF_SCALE


def _round(values: Array, out: Array) -> None:
    bits = round_to_bfloat16(values)
    beyond = (bits & _MAGNITUDE) == _INFINITE
    if beyond.any():
        _refuse("bfloat16", MAX_BFLOAT16, values[beyond])
    out[...] = bits


def _narrow(values: Array, out: Array) -> None:
    with np.errstate(over="ignore"):
        out[...] = values
    beyond = np.isinf(out)
    if beyond.any():
        _refuse("float16", MAX_FLOAT16, values[beyond])


def _refuse(dtype: str, most: float, values: Array) -> None:
    """Refuse the values that became infinite, unless they were."""
    finite = values[np.isfinite(values)]
    if len(finite):
        raise PrecisionError(
            f"{dtype} holds values up to {most:.6g}; one is {finite[0]:.6g}; read them as float32"
        )
