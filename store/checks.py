"""What is held against a shard before anything of it is written: finite values, and int8's promise.

A `ShardBuffer` and which rows are ok in; the content of every array out, with its absolute maxima, or the
error that names row, layer and value.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .buffer import ShardBuffer
from .codecs import BLOCK_VALUES, MAX_CODE, non_finite, to_float32
from .conversion import MAX_BFLOAT16, MAX_FLOAT16
from .cores import in_threads
from .errors import NonFiniteError, PrecisionError
from .manifest import Manifest
from .quantise import MAX_ERROR, Steps
from .records import ArrayKey, arrays_of
from .shard_writing import Content
from .statistics import ChannelStats

__all__ = ["checked_contents", "refuse_imprecise_store"]

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
_REMEDY: Final = "plan the store with dtype bfloat16, or with another seed: it calibrates on other rows"


def checked_contents(
    manifest: Manifest, buffer: ShardBuffer, is_ok: Mask, keys: Any, threads: int
) -> dict[ArrayKey, Content]:
    """Every array of a shard, each looked at in one of some threads.

    Args:
        manifest: of the store.
        buffer: all values of the shard.
        is_ok: (rows,); other rows have no say.
        keys: a column with the key of every row of the store, for messages.
        threads: how many.

    Raises:
        NonFiniteError: a row that is ok holds a NaN, an infinity or a value that the dtype cannot hold.
        PrecisionError: int8 codes are further off than the format allows.
    """
    arrays = list(arrays_of(manifest))
    checked = in_threads(lambda array: _content(manifest, buffer, array, is_ok, keys), arrays, threads)
    contents = dict(zip(arrays, checked, strict=True))
    for array, content in contents.items():
        _refuse_imprecise(manifest, buffer, array, content)
    return contents


def _content(manifest: Manifest, buffer: ShardBuffer, array: ArrayKey, is_ok: Mask, keys: Any) -> Content:
    steps = steps_of(manifest, array)
    held = buffer.held(array)
    absmax = absmax_of(held, is_ok, steps)
    if not np.isfinite(absmax).all():
        raise _non_finite_error(buffer, array, is_ok, keys)
    return Content(held, is_ok, absmax, steps)


def steps_of(manifest: Manifest, array: ArrayKey) -> Steps | None:
    """What decodes one array's codes; None where it holds none."""
    quantisation = manifest.quantisation_of(array.layer, array.kind)
    return None if quantisation is None else Steps.of(quantisation)


def absmax_of(held: Array, is_ok: Mask, steps: Steps | None) -> Float64:
    """(dim,) largest absolute value of the ok rows; not finite if any value is not. 0 without such rows.

    Floats without their sign bit are ordered as the integers of the same bits, infinity and NaN above all.
    """
    is_codes = held.dtype == np.int8
    bits = held if is_codes else held.view(f"u{held.itemsize}")
    dim = held.shape[-1]
    low, high = np.zeros((2, dim), bits.dtype)
    if is_codes:
        low[:], high[:] = MAX_CODE, -MAX_CODE
    step = max(1, BLOCK_VALUES // held[0].size)
    for start in range(0, len(held), step):
        ok = is_ok[start : start + step]
        block = bits[start : start + step]
        tokens = (block if ok.all() else block[ok]).reshape(-1, dim)
        if not len(tokens):
            continue
        if is_codes:
            np.minimum(low, tokens.min(axis=0), out=low)
        else:
            tokens = tokens & bits.dtype.type(np.iinfo(bits.dtype).max >> 1)
        np.maximum(high, tokens.max(axis=0), out=high)
    if steps is None:
        with np.errstate(invalid="ignore"):  # a NaN of float16 may be one that signals
            return np.asarray(to_float32(high.view(held.dtype)), np.float64)
    if not is_ok.any():
        return np.zeros(dim)
    ends = to_float32(np.stack([low, high]), steps.scale, steps.offset)
    return np.asarray(np.abs(ends).max(axis=0), np.float64)


def _non_finite_error(buffer: ShardBuffer, array: ArrayKey, is_ok: Mask, keys: Any) -> NonFiniteError:
    for offset in np.flatnonzero(is_ok):
        held = buffer.held(array)[offset]
        wrong = non_finite(held)
        if not wrong.any():
            continue
        row = buffer.rows[offset]
        given = buffer.refused(array, int(offset))
        value = given if given is not None else _shown(held[wrong][0])
        rule, remedy = "values must be finite", "check the teacher's weights and its precision"
        if np.isfinite(value):
            rule, remedy = _range_exceeded(held.dtype)
        return NonFiniteError(
            f"{rule}; row {row} ({keys[row].as_py()}) holds {value:g} in layer {array.layer}, "
            f"{array.kind} ({int(wrong.sum())} values); {remedy}; the shard was not published"
        )
    raise AssertionError("an absolute maximum is not finite, so a value is not")


def _range_exceeded(held_type: Any) -> tuple[str, str]:
    """Rule and remedy for a finite value that became infinite."""
    if held_type == np.float16:
        return f"float16 holds values up to {MAX_FLOAT16:g}", "choose bfloat16, which holds it"
    return f"bfloat16 holds values up to {MAX_BFLOAT16:.6g}", "choose float32, which holds it"


def _shown(held: Any) -> float:
    with np.errstate(invalid="ignore"):
        return np.nan if held.dtype == np.int8 else float(to_float32(np.array([held]))[0])


def _refuse_imprecise(manifest: Manifest, buffer: ShardBuffer, array: ArrayKey, content: Content) -> None:
    """Refuse a shard whose quantised patches are further off than the format allows.

    Raises:
        PrecisionError: the layer's sum of squared errors is over the bound.
    """
    found, quantisation = buffer.errors(array), manifest.quantisation_of(array.layer, array.kind)
    if found is None or quantisation is None:
        return
    sse, clipped = found
    variance = quantisation.variance
    num_values = int(content.is_ok.sum()) * content.held[0].size
    share = float(sse.sum()) / num_values if num_values else 0.0
    if share <= MAX_ERROR * variance:
        return
    worst = int(sse.argmax())
    tokens = num_values // manifest.dim
    raise PrecisionError(
        f"int8 keeps the mean squared error of a layer's patches within {MAX_ERROR:g} of their variance: "
        f"{MAX_ERROR * variance:.3g}; in shard {buffer.shard}, layer {array.layer}, it is {share:.3g}, most "
        f"of it in channel {worst} (root mean square error {np.sqrt(sse[worst] / tokens):.3g}, "
        f"{clipped[worst]} of {tokens} values clipped); {_REMEDY}; the shard was not published"
    )


def refuse_imprecise_store(array: ArrayKey, stats: ChannelStats) -> None:
    """Refuse to complete a store of which a layer's patches as a whole are below R2 = 0.999.

    Raises:
        PrecisionError: they are.
    """
    if stats.losses is None:
        return
    if 1 - stats.r2 > MAX_ERROR:
        raise PrecisionError(
            f"int8 keeps R2 of every layer's patches at {1 - MAX_ERROR:g} or above; in layer {array.layer} "
            f"it is {stats.r2:.6f}, most of the error in channel {int(stats.losses.sse.argmax())}; {_REMEDY}"
        )
