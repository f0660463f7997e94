"""Least squares in one pass: what has to be summed over rows to solve for a linear map, and solving for it.

    x, y (samples, dim), batch after batch  ->  Moments  ->  y = (x - mean_x) W^T + mean_y

Sums are float64 and taken about a point near the means, so that channels whose mean is far above their spread
lose nothing. Memory is 2 dim^2 + 2 dim values for a map, whatever the number of samples.

With C = sum dx dx^T and R = sum dy dx^T about the means, W = R (C + ridge tr(C) / dim I)^-1; directions in
which x does not vary at all are left out, as in the pseudo-inverse. A ridge is relative to the mean variance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from activault.store.errors import ConfigError

__all__ = ["RIDGES", "AffineMap", "Moments", "best_ridge", "solve"]

RIDGES = (1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Ridges that held-out rows choose among."""
SMALLEST = 1e-13
"""Least part of the largest variance that a direction has to have; float64 sums do not see less."""


@dataclass(frozen=True, kw_only=True)
class AffineMap:
    """y = (x - centre) weight^T + bias, in float64."""

    weight: Float64[Tensor, "dim dim"]
    centre: Float64[Tensor, " dim"]
    bias: Float64[Tensor, " dim"]


class Moments:
    """Sums of one map's samples about `x_origin` and `y_origin`, each (dim,)."""

    def __init__(self, x_origin: Float64[Tensor, " dim"], y_origin: Float64[Tensor, " dim"]) -> None:
        self.x_origin, self.y_origin = x_origin, y_origin
        dim = len(x_origin)
        self.count = 0
        self.x, self.y = x_origin.new_zeros(dim), x_origin.new_zeros(dim)
        self.xx, self.yx = x_origin.new_zeros(dim, dim), x_origin.new_zeros(dim, dim)
        self.yy = 0.0

    def update(self, x: Float64[Tensor, "samples dim"], y: Float64[Tensor, "samples dim"]) -> None:
        """Count samples of the same map."""
        x, y = x - self.x_origin, y - self.y_origin
        self.count += len(x)
        self.x += x.sum(dim=0)
        self.y += y.sum(dim=0)
        self.xx.addmm_(x.T, x)
        self.yx.addmm_(y.T, x)
        self.yy += float(y.square().sum())

    def __add__(self, other: Moments) -> Moments:
        """Both sets of samples together; they are about the same origin."""
        both = Moments(self.x_origin, self.y_origin)
        both.count = self.count + other.count
        both.x, both.y = self.x + other.x, self.y + other.y
        both.xx, both.yx = self.xx + other.xx, self.yx + other.yx
        both.yy = self.yy + other.yy
        return both

    def error(self, found: AffineMap) -> float:
        """Sum over the samples of the squared error of a map."""
        # About the origins, the map is y = W x + shift.
        shift = found.bias - self.y_origin - found.weight @ (found.centre - self.x_origin)
        product = found.weight @ self.xx
        return float(
            self.yy
            - 2 * (found.weight * self.yx).sum()
            + (product * found.weight).sum()
            + self.count * shift.square().sum()
            + 2 * shift @ (found.weight @ self.x - self.y)
        )


def solve(moments: Moments, ridges: Sequence[float]) -> list[AffineMap]:
    """The least-squares map under each ridge; one decomposition serves them all.

    Raises:
        ConfigError: there are no samples, or a ridge is negative.
    """
    if not moments.count:
        raise ConfigError("a linear map is fitted to at least one row; got none, give rows of the store")
    if min(ridges) < 0:
        raise ConfigError(f"a ridge is at least 0; got {min(ridges)}")
    mean_x, mean_y = moments.x / moments.count, moments.y / moments.count
    covariance = moments.xx - moments.count * torch.outer(mean_x, mean_x)
    cross = moments.yx - moments.count * torch.outer(mean_y, mean_x)
    variances, directions = torch.linalg.eigh((covariance + covariance.T) / 2)
    varies = variances > SMALLEST * variances[-1].clamp(min=0)
    rotated = cross @ directions
    found = []
    for ridge in ridges:
        inverse = torch.where(varies, 1 / (variances + ridge * variances.clamp(min=0).mean()), 0.0)
        found.append(
            AffineMap(
                weight=(rotated * inverse) @ directions.T,
                centre=moments.x_origin + mean_x,
                bias=moments.y_origin + mean_y,
            )
        )
    return found


def best_ridge(fitted: Moments, held_out: Moments, ridges: Sequence[float] = RIDGES) -> float:
    """The ridge under which a map of the one set of samples errs least on the other."""
    errors = [held_out.error(found) for found in solve(fitted, ridges)]
    return ridges[min(range(len(ridges)), key=errors.__getitem__)]
