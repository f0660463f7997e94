"""How tokens move through the layers: norms, direction convergence, angular speed, rank of the updates.

In: tokens x of rows, float32 (n, layers, tokens, D), batch by batch, a teacher's from a store or a
surrogate's roll-outs. Out: `Dynamics`, one `Curve` a measure and token kind, mean and standard error over
images; a value of an image is the mean over its tokens of that kind. With u = x / |x| the direction:

    norm          |x_l|                                           layers 0..L
    convergence   gamma_l = <u_l, u_L>, L the last layer           layers 0..L, in [-1, 1]
    speed         angle between u_{l-1} and u_l in radians         layers 1..L, in [0, pi]
    stable_rank   |U|_F^2 / |U|_2^2, U = u_l - u_{l-1}             layers 1..L, U (tokens, D) of one image
    entropy_rank  exp of the entropy of s_i / sum s                the same, s singular values of U
    energy_rank   exp of the entropy of s_i^2 / sum s^2            the same, the other convention in use

Where a layer in between is not kept, l - 1 is the layer kept before l. Sources: "Block-Recurrent Dynamics
in Vision Transformers", arXiv 2512.19941; effective rank, Roy and Vetterli, EUSIPCO 2007.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from activault.store.layout import TokenKind

__all__ = ["Curve", "Dynamics", "DynamicsSum", "Measure", "RowMoments", "update_ranks"]

FloatArray = npt.NDArray[np.float32]
DoubleArray = npt.NDArray[np.float64]
Measure = Literal["norm", "convergence", "speed", "stable_rank", "entropy_rank", "energy_rank"]
RANKS: tuple[Measure, ...] = ("stable_rank", "entropy_rank", "energy_rank")
UNITS: Mapping[Measure, str] = dict.fromkeys(get_args(Measure), "1") | {"speed": "radian"}
TINY = np.finfo(np.float32).tiny


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One measure of one token kind against the layers."""

    measure: Measure
    kind: TokenKind | Literal["all"]
    """Token kind; `all` for ranks, which are of all kept tokens of an image together."""
    layers: tuple[int, ...]
    mean: tuple[float, ...]
    """Mean over images, one value a layer."""
    stderr: tuple[float, ...]
    """Standard error of the mean over images; NaN for a single image."""
    num_rows: int
    """Images that were averaged over."""

    @property
    def unit(self) -> str:
        """Unit of the values; `1` for plain numbers."""
        return UNITS[self.measure]


@dataclass(frozen=True, kw_only=True)
class Dynamics:
    """All curves of one model."""

    curves: tuple[Curve, ...]

    def of(self, measure: Measure) -> tuple[Curve, ...]:
        """The curves of one measure, one a token kind."""
        return tuple(curve for curve in self.curves if curve.measure == measure)

    def curve(self, measure: Measure, kind: str = "all") -> Curve:
        """One curve.

        Raises:
            KeyError: that token kind was not kept, or the measure is not of that kind.
        """
        for curve in self.of(measure):
            if curve.kind == kind:
                return curve
        raise KeyError(f"no curve of {measure} for {kind}")


class RowMoments:
    """Mean and standard error over rows of values that come in batches, merged as Chan et al. (1979)."""

    def __init__(self, size: int) -> None:
        self.count = 0
        self.mean = np.zeros(size)
        self.spread = np.zeros(size)

    def add(self, values: DoubleArray) -> None:
        """Add rows of values, (n, size)."""
        if not len(values):
            return
        mean, total = values.mean(axis=0), self.count + len(values)
        gap = mean - self.mean
        self.spread += ((values - mean) ** 2).sum(axis=0) + gap**2 * (self.count * len(values) / total)
        self.mean += gap * (len(values) / total)
        self.count = total

    @property
    def stderr(self) -> DoubleArray:
        """Standard error of the mean, (size,); NaN for fewer than two rows."""
        if self.count < 2:
            return np.full_like(self.mean, np.nan)
        return np.asarray(np.sqrt(self.spread / (self.count - 1) / self.count))


class DynamicsSum:
    """Adds up every measure batch by batch; memory does not grow with the rows.

    Args:
        num_rows: rows that will come, in all.
        layers: layers of a batch, ascending, two or more.
        spans: where each kept token kind stands on a batch's token axis.
        rank_rows: images whose update ranks are computed, evenly spread over the rows; a rank takes an
            eigenvalue decomposition a layer and image (about 0.5 ms at 50 tokens, 10 ms at 261).
    """

    def __init__(
        self, num_rows: int, layers: Sequence[int], spans: Mapping[TokenKind, slice], rank_rows: int = 256
    ) -> None:
        self.layers = tuple(layers)
        self.spans = dict(spans)
        self.ranked = np.unique(
            np.linspace(0, num_rows - 1, min(num_rows, rank_rows)).round().astype(np.int64)
        )
        full, steps = len(self.layers), len(self.layers) - 1
        self.moments: dict[tuple[Measure, TokenKind | Literal["all"]], RowMoments] = {}
        for kind in self.spans:
            self.moments["norm", kind] = RowMoments(full)
            self.moments["convergence", kind] = RowMoments(full)
            self.moments["speed", kind] = RowMoments(steps)
        self.moments.update({(measure, "all"): RowMoments(steps) for measure in RANKS})

    def add(self, start: int, tokens: FloatArray) -> None:
        """Add rows `start`, `start + 1`, ... of the selection: float32 (n, layers, tokens, D)."""
        num, full, num_tokens, _ = tokens.shape
        ranked = self.ranked[(self.ranked >= start) & (self.ranked < start + num)] - start
        norms = np.empty((num, full, num_tokens))
        gammas, angles = np.empty_like(norms), np.empty((num, full - 1, num_tokens))
        ranks = np.empty((len(RANKS), len(ranked), full - 1))
        last, _ = _directions(tokens[:, -1])
        before: FloatArray | None = None
        # Layer by layer, so that directions and updates of one layer only are alive at a time.
        for place in range(full):
            unit, norms[:, place] = _directions(tokens[:, place])
            gammas[:, place] = np.einsum("ntd,ntd->nt", unit, last)
            if before is not None:
                update = unit - before
                angles[:, place - 1] = _angles(update)
                ranks[:, :, place - 1] = update_ranks(update[ranked])
            before = unit
        for kind, span in self.spans.items():
            self.moments["norm", kind].add(norms[:, :, span].mean(axis=2))
            self.moments["convergence", kind].add(gammas[:, :, span].mean(axis=2))
            self.moments["speed", kind].add(angles[:, :, span].mean(axis=2))
        for measure, values in zip(RANKS, ranks, strict=True):
            self.moments[measure, "all"].add(values)

    def result(self) -> Dynamics:
        """What has been added."""
        return Dynamics(
            curves=tuple(
                Curve(
                    measure=measure,
                    kind=kind,
                    layers=self.layers[-len(moments.mean) :],
                    mean=tuple(moments.mean.tolist()),
                    stderr=tuple(moments.stderr.tolist()),
                    num_rows=moments.count,
                )
                for (measure, kind), moments in self.moments.items()
            )
        )


def update_ranks(updates: FloatArray) -> DoubleArray:
    """Stable, entropy and energy rank of updates (n, tokens, D): float64 (3, n); 0 for no update."""
    wide = updates.astype(np.float64)
    if wide.shape[1] > wide.shape[2]:
        wide = wide.transpose(0, 2, 1)
    energies = np.maximum(np.linalg.eigvalsh(wide @ wide.transpose(0, 2, 1)), 0.0)
    largest = np.maximum(energies.max(axis=-1, initial=0.0), np.finfo(np.float64).tiny)
    moved = energies.sum(axis=-1) > 0
    ranks = (energies.sum(axis=-1) / largest, _entropy_rank(np.sqrt(energies)), _entropy_rank(energies))
    return np.stack([np.where(moved, rank, 0.0) for rank in ranks])


def _directions(tokens: FloatArray) -> tuple[FloatArray, DoubleArray]:
    """Unit vectors (n, tokens, D), a zero vector staying zero, and the norms (n, tokens)."""
    norms = np.sqrt(np.einsum("ntd,ntd->nt", tokens, tokens))
    return tokens / np.maximum(norms, TINY)[..., None], norms.astype(np.float64)


def _angles(update: FloatArray) -> DoubleArray:
    """Angle in radians between unit vectors from their difference (n, tokens, D).

    2 arcsin(|u - v| / 2) is exact for small angles, where an arccos of a float32 cosine has no digits left.
    """
    half = np.sqrt(np.einsum("ntd,ntd->nt", update, update)).astype(np.float64) / 2
    return np.asarray(2 * np.arcsin(np.minimum(half, 1.0)))


def _entropy_rank(weights: DoubleArray) -> DoubleArray:
    """Exponential of the entropy of weights (n, m) that are scaled to sum to 1, (n,)."""
    shares = weights / np.maximum(weights.sum(axis=-1, keepdims=True), np.finfo(np.float64).tiny)
    logs = np.log(np.where(shares > 0, shares, 1.0))
    return np.asarray(np.exp(-(shares * logs).sum(axis=-1)))
