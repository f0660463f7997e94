"""Contiguous max-cut phases: which consecutive layers of a Vision Transformer act as one recurrent block.

In: a similarity S of layers 1..L with themselves, float64 (L, L); D = 1 - S. Out: `Phases`, the cuts that
divide the layers into k runs; a cut c ends a phase after layer c. Layer 0 (the embedded input) is no block's
output and takes no part.

    phases = max_cut_phases(layer_similarity(store), k=3)        # .cuts == (7, 10) for DINOv2 ViT-B/14

Exact by dynamic programming, F[k][e] = min over a of F[k-1][a] + c(a, e), with block costs from prefix sums:
O(k L^2). Costs: `ncut` (default), `sum` and `greedy`, see `max_cut_phases`. Method and published phases:
"Block-Recurrent Dynamics in Vision Transformers", arXiv 2512.19941.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from activault.store.errors import ConfigError

from .similarity import LayerSimilarity

__all__ = ["Cost", "Phases", "cost_curve", "cut_stability", "max_cut_phases", "max_num_phases"]

Cost = Literal["ncut", "sum", "greedy"]
FloatMatrix = npt.NDArray[np.float64]
# Shortest phase: a block that is applied once is no recurrence; `sum` is left free.
MIN_LENGTH = {"ncut": 2, "sum": 1, "greedy": 2}
# One partition and its cost; cuts count layers from the first one of the matrix.
Partition = tuple[float, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class Phases:
    """A division of layers into k contiguous phases."""

    layers: tuple[int, ...]
    """The layers that were divided, ascending; usually 1..L."""
    cuts: tuple[int, ...]
    """k - 1 layers, ascending; each is the last of its phase."""
    cost: Cost
    """What was minimised."""
    value: float
    """Cost of this division; lower is better, comparable only within one cost and one k."""
    second_cuts: tuple[int, ...] | None
    """The next best division into k phases, None if there is no other."""
    second_value: float | None
    """Cost of the next best division."""
    stability: tuple[float, ...] | None = None
    """Share of bootstrap resamples in which each cut is found again (`cut_stability`), if measured."""

    @property
    def k(self) -> int:
        """Number of phases."""
        return len(self.cuts) + 1

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """First and last layer of every phase, both included."""
        ends = [*(self.layers.index(cut) for cut in self.cuts), len(self.layers) - 1]
        starts = [0, *(end + 1 for end in ends[:-1])]
        return tuple((self.layers[a], self.layers[e]) for a, e in zip(starts, ends, strict=True))


def max_num_phases(num_layers: int, cost: Cost = "ncut") -> int:
    """The most phases that `num_layers` layers can have under a cost's shortest phase."""
    return num_layers // MIN_LENGTH[cost]


def max_cut_phases(similarity: LayerSimilarity | FloatMatrix, k: int, cost: Cost = "ncut") -> Phases:
    """Divide the layers into `k` contiguous phases.

    Args:
        similarity: measured layer similarities (layer 0 is left out), or a matrix (L, L) over layers 1..L.
        k: number of phases.
        cost: `ncut`: sum over phases of cut/assoc on S, diagonal included, phases of 2 layers or more;
            assoc is a phase's similarity to all layers, cut its similarity to those outside it.
            `sum`: sum of D inside the phases (both triangles).
            `greedy`: recursive bisection, each time the split, over all phases so far, with the largest
            D across it, phases of 2 layers or more; its value is the negative sum of those, and its
            second-best division differs in the last split only.
            Only `ncut` gives the published phases of DINOv2 ViT-B/14.

    Raises:
        ConfigError: the matrix is not square, symmetric and finite, the cost is unknown, or `k` phases
            do not fit.
    """
    matrix, layers = _matrix_and_layers(similarity)
    _check(matrix, k, cost)
    best = _best_two(matrix, k, cost)
    if not best:
        raise ConfigError(
            f"no division into {k} phases has positive similarity in every phase; "
            "use cost='sum' or fewer phases"
        )
    named = [(value, tuple(layers[cut - 1] for cut in cuts)) for value, cuts in best]
    second = named[1] if len(named) > 1 else (None, None)
    return Phases(
        layers=layers,
        cuts=named[0][1],
        cost=cost,
        value=named[0][0],
        second_value=second[0],
        second_cuts=second[1],
    )


def cost_curve(
    similarity: LayerSimilarity | FloatMatrix, cost: Cost = "ncut", ks: Iterable[int] | None = None
) -> tuple[Phases, ...]:
    """The best division for every number of phases, by default for all that fit, from k = 1."""
    num_layers = len(_matrix_and_layers(similarity)[1])
    return tuple(
        max_cut_phases(similarity, k, cost) for k in ks or range(1, max_num_phases(num_layers, cost) + 1)
    )


def cut_stability(
    similarity: LayerSimilarity, phases: Phases, num_resamples: int = 200, seed: int = 0
) -> tuple[float, ...]:
    """Share of bootstrap resamples over images in which each of the cuts is found again, each in [0, 1].

    Deterministic in `seed`. With many images the resampled units are random groups of images (see
    `LayerSimilarity.resample`).
    """
    keep = np.searchsorted(similarity.layers, phases.layers)
    counts = dict.fromkeys(phases.cuts, 0)
    for matrix in similarity.resample(num_resamples, seed):
        (_, cuts), *_ = _best_two(matrix[np.ix_(keep, keep)], phases.k, phases.cost) or [(0.0, ())]
        for cut in cuts:
            layer = phases.layers[cut - 1]
            counts[layer] = counts.get(layer, 0) + 1
    return tuple(counts[cut] / num_resamples for cut in phases.cuts)


def _matrix_and_layers(similarity: LayerSimilarity | FloatMatrix) -> tuple[FloatMatrix, tuple[int, ...]]:
    if isinstance(similarity, LayerSimilarity):
        blocks = similarity.blocks_only()
        return blocks.matrix, blocks.layers
    matrix = np.asarray(similarity, dtype=np.float64)
    return matrix, tuple(range(1, len(matrix) + 1))


def _check(matrix: FloatMatrix, k: int, cost: Cost) -> None:
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ConfigError(f"a similarity of layers is a square matrix; got shape {matrix.shape}")
    if not np.isfinite(matrix).all() or not np.allclose(matrix, matrix.T, atol=1e-6):
        raise ConfigError("a similarity of layers is finite and symmetric; this matrix is not")
    if cost not in get_args(Cost):
        raise ConfigError(f"phase costs are {', '.join(get_args(Cost))}; got {cost!r}")
    most = max_num_phases(len(matrix), cost)
    if not 1 <= k <= most:
        raise ConfigError(
            f"{len(matrix)} layers under cost {cost!r} (phases of at least {MIN_LENGTH[cost]}) "
            f"allow k = 1 to {most}; got k = {k}"
        )


def _best_two(matrix: FloatMatrix, k: int, cost: Cost) -> list[Partition]:
    """The best and, where there is one, the second-best partition; empty if all cost infinity."""
    if cost == "greedy":
        return _bisect(1.0 - matrix, k)
    return _divide(block_costs(matrix, cost), k, MIN_LENGTH[cost])


def block_costs(matrix: FloatMatrix, cost: Cost) -> FloatMatrix:
    """c(a, e) of layers a+1..e, float64 (L + 1, L + 1), infinite where a >= e; for `ncut` and `sum`."""
    num = len(matrix)
    prefix = np.zeros((num + 1, num + 1))
    prefix[1:, 1:] = matrix.cumsum(0).cumsum(1)
    corner = np.diag(prefix)
    inside = corner[None, :] - prefix - prefix.T + corner[:, None]
    runs = np.triu(np.ones_like(prefix, dtype=bool), k=1)
    costs = np.full_like(prefix, np.inf)
    if cost == "sum":
        length = np.arange(num + 1)[None, :] - np.arange(num + 1)[:, None]
        costs[runs] = (length.astype(np.float64) ** 2 - inside)[runs]
        return costs
    assoc = prefix[:, -1][None, :] - prefix[:, -1][:, None]
    # Dissimilar layers can make a run's association zero or negative, where cut/assoc means nothing.
    runs &= assoc > 0
    costs[runs] = 1.0 - inside[runs] / assoc[runs]
    return costs


def _divide(costs: FloatMatrix, k: int, min_length: int) -> list[Partition]:
    """The two cheapest partitions into `k` runs, by dynamic programming over where the last run starts."""
    num = len(costs) - 1
    table: list[list[Partition]] = [[(0.0, ())], *([] for _ in range(num))]
    for step in range(1, k + 1):
        grown: list[list[Partition]] = [[] for _ in range(num + 1)]
        for end in range(step * min_length, num + 1):
            options = (
                (value + float(costs[start, end]), (*cuts, start) if start else cuts)
                for start in range((step - 1) * min_length, end - min_length + 1)
                for value, cuts in table[start]
            )
            grown[end] = sorted(option for option in options if np.isfinite(option[0]))[:2]
        table = grown
    return table[num]


def _bisect(distance: FloatMatrix, k: int) -> list[Partition]:
    """Recursive bisection: the best partition, and the one that takes the next best last split."""
    num = len(distance)
    cuts: list[int] = []
    value = 0.0
    for _ in range(k - 2):
        (gain, cut), *_ = _splits(distance, [0, *cuts, num], k - 1 - len(cuts))
        cuts, value = sorted([*cuts, cut]), value - gain
    if k == 1:
        return [(0.0, ())]
    last = _splits(distance, [0, *cuts, num], k - 1 - len(cuts))[:2]
    return [(value - gain, tuple(sorted([*cuts, cut]))) for gain, cut in last]


def _splits(distance: FloatMatrix, bounds: list[int], still: int) -> list[tuple[float, int]]:
    """Every split that leaves room for `still - 1` more, largest D across first, then the earlier cut."""
    shortest = MIN_LENGTH["greedy"]
    room = sum((end - start) // shortest - 1 for start, end in itertools.pairwise(bounds))
    found = []
    for start, end in itertools.pairwise(bounds):
        for cut in range(start + shortest, end - shortest + 1):
            lost = (end - start) // shortest - (cut - start) // shortest - (end - cut) // shortest
            if room - 1 - lost >= still - 1:
                found.append((float(distance[start:cut, cut:end].sum()), cut))
    return sorted(found, key=lambda split: (-split[0], split[1]))
