"""Phases as cuts and groups, and the controls drawn at random."""

from __future__ import annotations

from collections import Counter

import pytest

from activault.store.errors import ConfigError
from activault.train.phases import (
    phases_of_cuts,
    phases_of_groups,
    random_cuts,
    runs_of,
    shuffled_groups,
    spoken_phases,
)


@pytest.mark.parametrize(
    ("phase", "runs"),
    [
        ((1, 2, 3), [range(1, 4)]),
        ((2, 4, 5), [range(2, 3), range(4, 6)]),
        ((1, 3, 5), [range(1, 2), range(3, 4), range(5, 6)]),
        (range(4, 7), [range(4, 7)]),
    ],
    ids=["whole", "hole", "alternating", "range"],
)
def test_runs_are_the_layers_that_follow_one_another(phase: tuple[int, ...], runs: list[range]) -> None:
    assert list(runs_of(phase)) == runs


def test_contiguous_groups_are_the_phases_of_cuts() -> None:
    groups = ((1, 2), (3, 4, 5), (6,))
    assert phases_of_groups(groups, 6) == phases_of_cuts((2, 5), 6)
    assert phases_of_groups(((1, 3), (2,)), 3) == ((1, 3), range(2, 3))
    assert spoken_phases(phases_of_groups(((1, 3, 4), (2, 5)), 5)) == "1+3-4, 2+5"


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (((1, 2), ()), r"at least one layer, and its layers rise; got \[\]"),
        (((2, 1), (3,)), r"its layers rise; got \[2, 1\]"),
        (((1, 2),), r"every layer of 1-3 once; absent \[3\], named twice \[\], outside \[\]"),
        (((1, 2), (2, 3)), r"absent \[\], named twice \[2\], outside \[\]"),
        (((0, 1, 2), (3, 4)), r"absent \[\], named twice \[\], outside \[0, 4\]"),
    ],
    ids=["empty", "falling", "absent", "twice", "outside"],
)
def test_groups_that_are_no_phases_are_refused(groups: tuple[tuple[int, ...], ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        phases_of_groups(groups, 3)


def test_random_cuts_are_seeded_and_each_division_is_as_likely() -> None:
    drawn = [random_cuts(5, 3, seed) for seed in range(600)]
    assert drawn == [random_cuts(5, 3, seed) for seed in range(600)]
    assert all(len(phases_of_cuts(cuts, 5)) == 3 for cuts in drawn)
    counts = Counter(drawn)
    assert len(counts) == 6, "4 places for 2 cuts"
    assert min(counts.values()) > 60
    assert random_cuts(5, 1, 0) == ()
    assert random_cuts(5, 5, 0) == (1, 2, 3, 4)


@pytest.mark.parametrize("num", [0, 6])
def test_phases_that_do_not_fit_the_layers_are_refused(num: int) -> None:
    with pytest.raises(ConfigError, match=f"1 to 5 phases fit 5 layers; got {num}"):
        random_cuts(5, num, 0)


def test_shuffled_groups_keep_lengths_and_have_a_hole() -> None:
    phases = phases_of_cuts((2, 5), 6)
    drawn = [shuffled_groups(phases, seed) for seed in range(40)]
    assert drawn == [shuffled_groups(phases, seed) for seed in range(40)]
    assert len(set(drawn)) > 20
    for groups in drawn:
        assert [len(group) for group in groups] == [2, 3, 1]
        assert any(len(runs_of(phase)) > 1 for phase in phases_of_groups(groups, 6))


@pytest.mark.parametrize("phases", [(range(1, 5),), (range(1, 2), range(2, 3)), ((1,), (2,), (3,))])
def test_phases_that_cannot_have_a_hole_are_refused(phases: tuple[range, ...]) -> None:
    with pytest.raises(ConfigError, match="shuffled phases need two phases, one of them of two layers"):
        shuffled_groups(phases, 0)
