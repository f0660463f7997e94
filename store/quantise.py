"""int8 codes of patches, error-bounded: steps from seeded rows, and values to codes and back.

Float32 patches (rows, tokens, dim) of the calibration rows in, `Quantisation` (a step and an offset a
channel) out; with it values become int8 codes, and codes float32 again. FORMAT.md says what a code means.

    moments = PatchMoments(dim=384)
    moments.add(patches)                      # as often as wanted, any number of rows at a time
    quantisation = moments.quantisation(num_rows=50_000)

Steps grow with the root of a channel's deviation. One step for all would be best if every channel were coded
for itself, steps that grow with the deviation if all channels had to share one code; the codec shares it
among channels, and half-way between the two took fewest bits (docs/decisions.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from .codecs import BLOCK_VALUES, FILL_CODE, MAX_CODE
from .errors import NonFiniteError, PrecisionError
from .manifest import Quantisation

__all__ = ["MAX_ERROR", "PatchMoments", "Steps"]

Codes = npt.NDArray[np.int8]
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

MAX_ERROR: Final = 1e-3
"""Most that 1 - R2 of a layer's patches may be."""
_HEADROOM: Final = 1.25
"""Codes reach this many times as far as the calibration rows do."""
_DEVIATIONS: Final = 3.0
"""Standard errors by which the variance of all rows may lie below that of the calibration rows."""
_RESERVE: Final = 0.01
"""Share of the error that is kept back for steps and offsets in float32, and for clipping."""
_SCATTER: Final = 4 * 0.9
"""Over the root of the number of values: how far their mean squared error may lie above step**2 / 12, as four
standard errors of the square of an evenly distributed number. A shard may have as little as one good row."""
_LEAST_STEP: Final = 2.0**-56
"""Finer steps are refused: the squares of errors a hundred times smaller would get lost in float32."""
_SCALE_BITS: Final = np.uint32(0xFFFF_FF00)
"""Scales have 16 significant bits: their product with a code is exact, so that readers cannot differ."""
_TILE_TOKENS: Final = 16


@dataclass(frozen=True)
class Steps:
    """One layer's quantisation as arrays: `value = code * scale + offset`."""

    scale: Float32
    """(dim,)"""
    offset: Float32
    """(dim,)"""
    _tiles: dict[int, tuple[Float32, Float32]] = field(default_factory=dict, repr=False)

    @staticmethod
    def of(quantisation: Quantisation) -> Steps:
        """As the manifest has them."""
        return Steps(np.array(quantisation.scale, np.float32), np.array(quantisation.offset, np.float32))

    def quantise(self, values: Float32, codes: Codes) -> tuple[Float64, npt.NDArray[np.int64]]:
        """Nearest codes of some rows, and for every row what they cost.

        Args:
            values: (rows, tokens, dim) float32.
            codes: the same shape; it is filled. A value that is not finite becomes -128.

        Returns:
            (rows, dim) sum of squared errors, not finite where a value is not; (rows, dim) values that were
            clipped.
        """
        num_rows, num_tokens, dim = values.shape
        errors, clipped = np.empty((num_rows, dim)), np.empty((num_rows, dim), np.int64)
        step = max(1, BLOCK_VALUES // max(1, num_tokens * dim))
        for start in range(0, num_rows, step):
            rows = slice(start, start + step)
            self._block(values[rows], codes[rows], errors[rows], clipped[rows])
        return errors, clipped

    def _block(self, values: Float32, codes: Codes, errors: Float64, clipped: npt.NDArray[np.int64]) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            lines = np.ascontiguousarray(values)
            scale, offset = self._wide(lines.size // len(self.scale))
            lines = lines.reshape(-1, len(scale))
            ratio = lines - offset
            ratio /= scale
            np.rint(ratio, out=ratio)
            clipped[...] = 0
            if not (ratio.max() <= MAX_CODE and ratio.min() >= -MAX_CODE):  # also if one is NaN
                np.sum(np.abs(ratio.reshape(values.shape)) > MAX_CODE, axis=1, out=clipped)
                np.clip(ratio, -MAX_CODE, MAX_CODE, out=ratio)
            gaps = ratio * scale
            gaps += offset
            gaps -= lines
            gaps *= gaps
            # Summed row by row, so that the sums do not depend on how many rows come at a time.
            np.sum(gaps.reshape(values.shape), axis=1, dtype=np.float64, out=errors)
            if not np.isfinite(errors).all():
                ratio[~np.isfinite(lines)] = FILL_CODE
            codes[...] = ratio.reshape(values.shape)

    def dequantise(self, codes: Codes, out: Float32) -> None:
        """Values of codes; -128 becomes NaN.

        Args:
            codes: (..., dim).
            out: the same shape; it is filled.
        """
        out[...] = codes
        values, scale, offset = out, self.scale, self.offset
        if out.flags.c_contiguous and out.size:
            scale, offset = self._wide(out.size // len(scale))
            values = out.reshape(-1, len(scale))
        values *= scale
        values += offset
        if codes.size and codes.min() == FILL_CODE:
            out[codes == FILL_CODE] = np.nan

    def _wide(self, num_tokens: int) -> tuple[Float32, Float32]:
        """Scale and offset of several tokens in a row: NumPy's loops are short along one token's channels."""
        times = math.gcd(num_tokens, _TILE_TOKENS)
        if times not in self._tiles:
            self._tiles[times] = np.tile(self.scale, times), np.tile(self.offset, times)
        return self._tiles[times]


class PatchMoments:
    """What the steps of one layer follow from, gathered row by row, however many come at a time."""

    def __init__(self, dim: int) -> None:
        self._means: list[Float64] = []
        self._variances: list[Float64] = []
        self._low = np.full(dim, np.inf)
        self._high = np.full(dim, -np.inf)
        self._row_values = 1

    def __len__(self) -> int:
        return len(self._means)

    def add(self, patches: Float32) -> None:
        """Take in rows, (rows, tokens, dim) float32.

        Raises:
            NonFiniteError: a value is NaN or infinite.
        """
        if not len(patches):
            return
        self._row_values = patches[0].size
        for row in patches:
            if not np.isfinite(row).all():
                raise NonFiniteError(
                    f"values must be finite; a calibration row holds {row[~np.isfinite(row)][0]}"
                )
            tokens = row.astype(np.float64)
            mean = tokens.mean(axis=0)
            self._means.append(mean)
            tokens -= mean
            self._variances.append(np.einsum("td,td->d", tokens, tokens) / len(tokens))
            np.minimum(self._low, row.min(axis=0), out=self._low)
            np.maximum(self._high, row.max(axis=0), out=self._high)

    def quantisation(self, num_rows: int) -> Quantisation:
        """Steps with which 1 - R2 of a store of `num_rows` rows stays below 0.001.

        Raises:
            PrecisionError: single values lie so far out that no steps reach it, or all so near to each other
                that the steps would be too fine to count what they cost.
        """
        assert self._means
        means, variances = np.stack(self._means), np.stack(self._variances)
        offset = means.mean(axis=0).astype(np.float32).astype(np.float64)
        # Every row's own contribution to the variance: how much they differ says how sure its mean is.
        parts = (variances + (means - offset) ** 2).mean(axis=1)
        variance = float(parts.mean())
        left_out = max(0.0, 1 - len(parts) / num_rows)
        doubt = _DEVIATIONS * float(parts.std()) * np.sqrt(left_out / len(parts))
        reserve = min(max(_RESERVE, _SCATTER / np.sqrt(self._row_values)), 0.5)
        allowed = MAX_ERROR * (1 - reserve) * max(variance - doubt, variance / 4)
        deviation = np.sqrt((variances + (means - offset) ** 2).mean(axis=0))
        reach = np.maximum(self._high - offset, offset - self._low) / MAX_CODE
        return Quantisation(
            scale=tuple(_rounded(_steps(deviation, reach, allowed)).tolist()),
            offset=tuple(offset.tolist()),
            variance=variance,
        )


def _steps(deviation: Float64, reach: Float64, allowed: float) -> Float64:
    """(dim,) steps whose mean squared error, step**2 / 12, is `allowed`, and which do not clip.

    Args:
        deviation: (dim,) standard deviation of each channel.
        reach: (dim,) least step with which no calibration value is clipped.
        allowed: mean over channels of the squared error.
    """
    budget = 12 * allowed
    if not budget:
        return np.full_like(deviation, 1.0)
    least = _HEADROOM * reach
    if (least**2).mean() > budget:
        least = reach
    if (least**2).mean() > budget:
        worst = int(reach.argmax())
        times = MAX_CODE * reach[worst] / max(deviation[worst], np.finfo(np.float32).tiny)
        raise PrecisionError(
            f"int8 holds patches that reach {MAX_CODE} steps; channel {worst} reaches {times:.0f} of its "
            "standard deviations, too far for an R2 of 0.999; choose bfloat16"
        )
    # A channel without any spread would get no step at all, and one row that differs would then clip.
    shape = np.sqrt(np.maximum(deviation, deviation.max() / 1e3))
    low, high = 0.0, np.sqrt(budget * len(shape)) / shape.min()
    for _ in range(100):
        middle = (low + high) / 2
        within = (np.maximum(middle * shape, least) ** 2).mean() <= budget
        low, high = (middle, high) if within else (low, middle)
    steps: Float64 = np.maximum(low * shape, least)
    if steps.min() < _LEAST_STEP:
        finest = int(steps.argmin())
        raise PrecisionError(
            f"int8 has steps of at least {_LEAST_STEP:.3g}; channel {finest}, of a standard deviation of "
            f"{deviation[finest]:.3g}, needs {steps[finest]:.3g}; choose bfloat16, or scale the values"
        )
    return steps


def _rounded(steps: Float64) -> Float32:
    """Steps as float32 of 16 significant bits, never larger than they were."""
    single = np.nextafter(steps.astype(np.float32), np.float32(0))
    return (single.view(np.uint32) & _SCALE_BITS).view(np.float32)
