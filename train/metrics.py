"""How well one set of layers reproduces another, per layer and token kind, in one pass.

    target, prediction (batch, layers, tokens, dim), batch after batch  ->  RolloutMetrics

R2 = 1 - sum (x - xhat)^2 / sum (x - mean)^2, the mean per channel over the evaluated rows and the tokens of
that kind, both sums over everything; it is not a mean of batches' R2, which depends on how rows fall into
batches. Also over all tokens of a layer, with the mean over all of them. Layer 0 is identical by construction
and never counted. A kind that does not vary (CLS at layer 0, say) has no R2 and is reported as constant.

eps is the mean over rows of |x - xhat|_F, the Frobenius norm over a row's tokens and channels: what bounds a
surrogate in "Block-Recurrent Dynamics in Vision Transformers" (arXiv 2512.19941).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from activault.store import Store
from activault.store.errors import ConfigError, RunError
from activault.store.layout import TokenLayout, require_all_layers, require_all_tokens

from .raptor import Raptor

__all__ = ["R2Accumulator", "RolloutMetrics", "evaluate_rollout"]

CONSTANT = 1e-20
"""A kind whose variance is this part of its mean square does not vary: float64 sums of equal float32 values
differ by about 1e-32 of it, and two neighbouring float32 values by 1e-14."""

SUMMED = ("cosine", "norm_ratio", "eps", "relative_eps")
TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True, kw_only=True)
class RolloutMetrics:
    """Figures of each layer; keys are the layout's token kinds and `all`."""

    layers: tuple[int, ...]
    """Layers measured, never layer 0."""
    num_rows: int
    """Rows measured."""
    r2: dict[str, tuple[float | None, ...]]
    """One value a layer; None where the kind is constant."""
    cosine: dict[str, tuple[float, ...]]
    """Mean over rows and tokens of the cosine between target and prediction, one value a layer."""
    norm_ratio: dict[str, tuple[float, ...]]
    """Mean over rows and tokens of |xhat| / |x|, one value a layer; tokens of norm 0 count as 1."""
    eps: dict[str, tuple[float, ...]]
    """Mean over rows of |x - xhat|_F, one value a layer."""
    relative_eps: dict[str, tuple[float, ...]]
    """Mean over rows of |x - xhat|_F / |x|_F, one value a layer."""

    @property
    def mean_r2(self) -> float:
        """R2 over all tokens, the mean over the layers that vary; 0 where none does."""
        values = [value for value in self.r2["all"] if value is not None]
        return sum(values) / max(1, len(values))

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON takes it; a constant kind's R2 is the word `constant`."""
        r2 = {
            kind: ["constant" if value is None else value for value in values]
            for kind, values in self.r2.items()
        }
        others = {
            name: {kind: list(values) for kind, values in getattr(self, name).items()}
            for name in ("cosine", "norm_ratio", "eps", "relative_eps")
        }
        return {"layers": list(self.layers), "num_rows": self.num_rows, "r2": r2, **others}


class R2Accumulator:
    """Streams targets and predictions; memory is a few vectors a layer, whatever the number of rows.

    Means and squared deviations are merged batch by batch in float64 (Chan, Golub, LeVeque 1983), so the
    result does not depend on the batches and does not suffer where a channel's mean is far above its spread.
    """

    def __init__(self, layout: TokenLayout, layers: Sequence[int], dim: int) -> None:
        if 0 in layers:
            raise ConfigError(
                "layer 0 is the roll-out's own input and is never counted; measure layers from 1"
            )
        self.layout = layout
        self.layers = tuple(layers)
        self.num_rows = 0
        shape = (len(layout.kinds), len(layers))
        self._mean = np.zeros((*shape, dim))
        self._deviation = np.zeros((*shape, dim))
        self._error = np.zeros(shape)
        self._sums = {name: np.zeros((shape[0] + 1, shape[1])) for name in SUMMED}
        """Sums over tokens or rows by kind; the last one over all kinds."""

    def update(
        self,
        target: Float[Tensor, "batch layers tokens dim"],
        prediction: Float[Tensor, "batch layers tokens dim"],
    ) -> None:
        """Count one batch, its layers in the order given at the start."""
        for position in range(len(self.layers)):
            squares = []
            for number, kind in enumerate(self.layout.kinds):
                span = self.layout.span(kind)
                x, made = (_wide(layers[:, position, span]) for layers in (target, prediction))
                squares.append(self._count_kind(number, position, x, made))
                before = self.num_rows * self.layout.count(kind)
                self._merge(number, position, before, x.reshape(-1, x.shape[-1]))
            self._count_frobenius(len(squares), position, *(sum(part) for part in zip(*squares, strict=True)))
        self.num_rows += len(target)

    def _count_kind(
        self,
        number: int,
        position: int,
        x: Float[Tensor, "batch tokens dim"],
        made: Float[Tensor, "batch tokens dim"],
    ) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"]]:
        """Count one kind at one layer; gives each row's squared error and squared norm."""
        error, square = ((values.square().sum(dim=(1, 2))) for values in (x - made, x))
        self._error[number, position] += float(error.sum())
        norms = x.norm(dim=-1)
        ratio = torch.where(norms > 0, made.norm(dim=-1) / norms.clamp(min=TINY), 1.0)
        for name, values in (("cosine", torch.cosine_similarity(x, made, dim=-1)), ("norm_ratio", ratio)):
            self._sums[name][[number, -1], position] += float(values.sum())
        self._count_frobenius(number, position, error, square)
        return error, square

    def _count_frobenius(self, number: int, position: int, error: Tensor, square: Tensor) -> None:
        """Each row's Frobenius error, as it is and relative to the target's norm."""
        self._sums["eps"][number, position] += float(error.sqrt().sum())
        self._sums["relative_eps"][number, position] += float((error / square.clamp(min=TINY)).sqrt().sum())

    def merge(self, other: R2Accumulator) -> None:
        """Take in what another one has counted of other rows."""
        for number, kind in enumerate(self.layout.kinds):
            ours, theirs = (each.num_rows * self.layout.count(kind) for each in (self, other))
            if theirs:
                self._mean[number], self._deviation[number] = _merged(
                    (ours, self._mean[number], self._deviation[number]),
                    (theirs, other._mean[number], other._deviation[number]),
                )
        self._error += other._error
        for name, sums in self._sums.items():
            sums += other._sums[name]
        self.num_rows += other.num_rows

    def _merge(self, number: int, position: int, before: int, x: Float[Tensor, "tokens dim"]) -> None:
        mean = x.mean(dim=0)
        deviation = (x - mean).square().sum(dim=0)
        self._mean[number, position], self._deviation[number, position] = _merged(
            (before, self._mean[number, position], self._deviation[number, position]),
            (len(x), mean.cpu().numpy(), deviation.cpu().numpy()),
        )

    def result(self) -> RolloutMetrics:
        """The figures over all batches so far.

        Raises:
            ConfigError: there were none.
        """
        if not self.num_rows:
            raise ConfigError("R2 is measured on at least one row; got none, give rows of the store")
        kinds = self.layout.kinds
        names = [*kinds, "all"]
        counts = [self.num_rows * self.layout.count(kind) for kind in kinds]
        tokens, rows = np.array([*counts, sum(counts)]), np.full(len(names), self.num_rows)
        figures = {
            name: {
                kind: tuple(float(value) for value in values / count)
                for kind, values, count in zip(
                    names, sums, rows if name in ("eps", "relative_eps") else tokens, strict=True
                )
            }
            for name, sums in self._sums.items()
        }
        parts = [*([number] for number in range(len(kinds))), [*range(len(kinds))]]
        r2 = {
            name: tuple(self._r2(numbers, position) for position in range(len(self.layers)))
            for name, numbers in zip(names, parts, strict=True)
        }
        return RolloutMetrics(layers=self.layers, num_rows=self.num_rows, r2=r2, **figures)

    def _r2(self, numbers: list[int], position: int) -> float | None:
        """R2 of some kinds together at one layer."""
        count, mean, deviation = 0, np.zeros_like(self._mean[0, 0]), np.zeros_like(self._mean[0, 0])
        for number in numbers:
            more = self.num_rows * self.layout.count(self.layout.kinds[number])
            mean, deviation = _merged(
                (count, mean, deviation),
                (more, self._mean[number, position], self._deviation[number, position]),
            )
            count += more
        total = float(deviation.sum())
        if total <= CONSTANT * count * float(np.square(mean).sum()):
            return None
        return 1 - float(self._error[numbers, position].sum()) / total


def _wide(tensor: Tensor) -> Tensor:
    """In float64, on the CPU where the device has none."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()


Moments = tuple[int, np.ndarray, np.ndarray]


def _merged(first: Moments, second: Moments) -> tuple[np.ndarray, np.ndarray]:
    """Mean and squared deviations of two sets of (count, mean, squared deviations) together."""
    (n, mean, deviation), (m, other_mean, other_deviation) = first, second
    delta = other_mean - mean
    return mean + delta * (m / (n + m)), deviation + other_deviation + delta**2 * (n * m / (n + m))


@torch.no_grad()
def evaluate_rollout(
    model: Raptor | Callable[[Tensor], Tensor],
    store: Store,
    rows: np.ndarray,
    batch_size: int = 64,
    device: torch.device | str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> RolloutMetrics:
    """R2 and cosine of a closed loop from the store's layer 0, against the store's layers 1 to L.

    `model` maps layer 0 (batch, tokens, dim) to layers 1 to L (batch, L, tokens, dim) on `device`; a Raptor
    does. Memory is `batch_size` rows of all layers. `progress` is told (rows done, rows in all).

    Raises:
        ConfigError: a layer or a token kind is not in the store, or there are no rows.
        RunError: the roll-out does not stay finite; names the first such layer.
    """
    num_layers = store.manifest.teacher.num_blocks
    require_all_layers(store.layers, num_layers, "a closed loop")
    require_all_tokens(store.layout, store.kinds, "a closed loop")
    accumulator = R2Accumulator(store.layout, range(1, num_layers + 1), store.dim)
    for first in range(0, len(rows), batch_size):
        layers = store.read(rows[first : first + batch_size], range(num_layers + 1), "all")
        tokens = torch.from_numpy(layers).to(device)
        accumulator.update(tokens[:, 1:], model(tokens[:, 0]))
        if progress:
            progress(min(first + batch_size, len(rows)), len(rows))
    measured = accumulator.result()
    for layer, eps in zip(measured.layers, measured.eps["all"], strict=True):
        if not math.isfinite(eps):
            raise RunError(
                f"figures are of a roll-out that stays finite; this one has |x - xhat| = {eps} at layer "
                f"{layer} of {num_layers}: train the model anew, at a lower learning_rate"
            )
    return measured
