from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activault.analyze import (
    LayerSimilarity,
    Phases,
    cost_curve,
    cut_stability,
    max_cut_phases,
    max_num_phases,
)
from activault.analyze.phases import block_costs
from activault.store.errors import ConfigError

# D between layers 1..12 of DINOv2 ViT-B/14 with registers, upper triangle, from the reference code.
FIXTURE = """
.08 .20 .26 .32 .37 .45 .63 .70 .81 .82 1.08
.11 .16 .21 .27 .36 .54 .64 .75 .75 1.09
.05 .15 .19 .32 .56 .70 .81 .79 1.11
.09 .15 .28 .52 .67 .78 .76 1.11
.09 .20 .39 .53 .65 .69 1.07
.10 .30 .45 .58 .62 1.06
.17 .30 .45 .54 1.04
.14 .30 .45 .94
.16 .35 .86
.25 .81
.75
"""


def dinov2_base() -> np.ndarray:
    distance = np.zeros((12, 12))
    distance[np.triu_indices(12, 1)] = [float(value) for value in FIXTURE.split()]
    return 1.0 - distance - distance.T


def planted(sizes: list[int], inside: float = 0.9, outside: float = 0.1) -> np.ndarray:
    label = np.repeat(np.arange(len(sizes)), sizes)
    matrix = np.where(label[:, None] == label[None, :], inside, outside)
    np.fill_diagonal(matrix, 1.0)
    return matrix


@pytest.mark.parametrize(
    ("cost", "cuts"),
    [
        ("ncut", {2: (7,), 3: (7, 10), 4: (4, 7, 10)}),
        ("sum", {2: (7,), 3: (5, 9), 4: (4, 7, 10)}),
    ],
)
def test_published_matrix_gives_the_published_phases(cost: str, cuts: dict[int, tuple[int, ...]]) -> None:
    assert {k: max_cut_phases(dinov2_base(), k, cost).cuts for k in cuts} == cuts


def test_ncut_is_the_default() -> None:
    assert max_cut_phases(dinov2_base(), 3).cost == "ncut"


@pytest.mark.parametrize("cost", ["ncut", "sum", "greedy"])
@pytest.mark.parametrize("sizes", [[3, 4], [2, 5, 3], [4, 2, 3, 3]], ids=str)
def test_planted_phases_are_found(cost: str, sizes: list[int]) -> None:
    assert max_cut_phases(planted(sizes), len(sizes), cost).cuts == tuple(np.cumsum(sizes)[:-1])


def brute_force(matrix: np.ndarray, k: int, cost: str) -> list[tuple[float, tuple[int, ...]]]:
    """Every division, straight from the definitions."""
    num, shortest = len(matrix), 2 if cost == "ncut" else 1
    found = []
    for cuts in itertools.combinations(range(1, num), k - 1):
        spans = list(itertools.pairwise((0, *cuts, num)))
        if min(end - start for start, end in spans) < shortest:
            continue
        value = 0.0
        for start, end in spans:
            inside = matrix[start:end, start:end]
            assoc = matrix[start:end].sum()
            value += (1 - inside).sum() if cost == "sum" else (assoc - inside.sum()) / assoc
        found.append((value, cuts))
    return sorted(found)


@settings(deadline=None, max_examples=60)
@given(
    num=st.integers(2, 10), seed=st.integers(0, 10_000), cost=st.sampled_from(["ncut", "sum"]), data=st.data()
)
def test_dynamic_programming_agrees_with_brute_force(
    num: int, seed: int, cost: str, data: st.DataObject
) -> None:
    matrix = np.random.default_rng(seed).uniform(0.05, 1, (num, num))
    matrix = (matrix + matrix.T) / 2
    k = data.draw(st.integers(1, max_num_phases(num, cost)))
    phases = max_cut_phases(matrix, k, cost)
    best, *others = brute_force(matrix, k, cost)
    assert phases.cuts == best[1]
    assert phases.value == pytest.approx(best[0])
    assert phases.second_cuts == (others[0][1] if others else None)
    if others:
        assert phases.second_value == pytest.approx(others[0][0])


@settings(deadline=None, max_examples=60)
@given(num=st.integers(2, 13), seed=st.integers(0, 10_000), data=st.data())
def test_greedy_always_finds_room_for_all_its_phases(num: int, seed: int, data: st.DataObject) -> None:
    matrix = np.random.default_rng(seed).uniform(0, 1, (num, num))
    matrix = (matrix + matrix.T) / 2
    k = data.draw(st.integers(1, num // 2))
    phases = max_cut_phases(matrix, k, "greedy")
    assert phases.k == k
    assert min(last - first for first, last in phases.spans) >= 1


def test_greedy_takes_the_heaviest_split_each_time() -> None:
    distance = 1 - dinov2_base()
    weights = {cut: distance[:cut, cut:].sum() for cut in range(2, 11)}
    assert max_cut_phases(dinov2_base(), 2, "greedy").cuts == (max(weights, key=weights.__getitem__),)


def test_spans_name_first_and_last_layers() -> None:
    assert max_cut_phases(dinov2_base(), 3).spans == ((1, 7), (8, 10), (11, 12))


def test_one_phase_spans_all_layers() -> None:
    phases = max_cut_phases(dinov2_base(), 1)
    assert (phases.cuts, phases.value, phases.second_cuts) == ((), pytest.approx(0, abs=1e-12), None)


def test_cost_curve_covers_every_possible_number_of_phases() -> None:
    assert [phases.k for phases in cost_curve(dinov2_base())] == [1, 2, 3, 4, 5, 6]
    assert [phases.k for phases in cost_curve(dinov2_base(), "sum", ks=(2, 5))] == [2, 5]


@pytest.mark.parametrize("k", [0, -1, 7, 13])
def test_an_impossible_number_of_phases_is_refused(k: int) -> None:
    with pytest.raises(ConfigError, match=rf"12 layers under cost 'ncut'.*allow k = 1 to 6; got k = {k}"):
        max_cut_phases(dinov2_base(), k)


def test_an_unknown_cost_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="ncut, sum, greedy; got 'cut'"):
        max_cut_phases(dinov2_base(), 2, "cut")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.ones((3, 4)), "square"),
        (np.array([[1, 0.5], [0.1, 1]]), "symmetric"),
        (np.full((4, 4), np.nan), "finite"),
        (2 * np.eye(4) - 1.5, "no division into 2 phases"),
    ],
    ids=["oblong", "lopsided", "nan", "opposed"],
)
def test_a_matrix_that_is_no_similarity_is_refused(matrix: np.ndarray, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        max_cut_phases(matrix, 2)


def test_block_costs_are_infinite_where_no_run_is() -> None:
    costs = block_costs(dinov2_base(), "ncut")
    assert np.isinf(costs[np.tril_indices(13)]).all()
    assert np.isfinite(costs[np.triu_indices(13, 1)]).all()


def similarity_of(images: np.ndarray) -> LayerSimilarity:
    """One group an image, layer 0 in front with no similarity to the others."""
    num = images.shape[1] + 1
    sums = np.zeros((len(images), num, num))
    sums[:, 1:, 1:] = images
    sums[:, 0, 0] = 1
    return LayerSimilarity(
        layers=tuple(range(num)), group_sums=sums, group_counts=np.ones(len(images), dtype=np.int64)
    )


def test_layer_0_takes_no_part() -> None:
    phases = max_cut_phases(similarity_of(dinov2_base()[None]), 3)
    assert (phases.layers, phases.cuts) == (tuple(range(1, 13)), (7, 10))


def test_cuts_are_named_by_layer_where_layers_are_missing() -> None:
    similarity = LayerSimilarity(
        layers=(0, 2, 4, 6, 8),
        group_sums=similarity_of(planted([2, 2])[None]).group_sums,
        group_counts=np.ones(1, dtype=np.int64),
    )
    assert max_cut_phases(similarity, 2).cuts == (4,)
    assert max_cut_phases(similarity, 2).spans == ((2, 4), (6, 8))


def test_a_planted_cut_is_stable_and_a_contested_one_is_not() -> None:
    agreed = similarity_of(np.stack([planted([4, 4])] * 20))
    split = similarity_of(np.stack([planted([3, 5])] * 10 + [planted([5, 3])] * 10))
    assert cut_stability(agreed, max_cut_phases(agreed, 2)) == (1.0,)
    (share,) = cut_stability(split, max_cut_phases(split, 2))
    assert 0.2 < share < 0.8
    assert cut_stability(split, max_cut_phases(split, 2)) == (share,)
    assert cut_stability(split, max_cut_phases(split, 2), seed=1) != (share,)


def test_phases_are_frozen() -> None:
    phases = max_cut_phases(dinov2_base(), 2)
    assert isinstance(phases, Phases)
    with pytest.raises(AttributeError):
        phases.cuts = (3,)  # type: ignore[misc]
