from __future__ import annotations

import numpy as np
import pytest

from activault.store import ConfigError, hold_out_rows, plan_samples, split_rows

KEYS = [f"images/{number}.jpg" for number in range(4000)]
TABLE = plan_samples(KEYS, [None] * len(KEYS), "images")
ROWS = np.arange(len(KEYS))


def test_every_row_goes_to_one_side() -> None:
    kept, held = hold_out_rows(TABLE, ROWS[::-3], 0.1)
    assert sorted([*kept, *held]) == sorted(ROWS[::-3])
    assert (np.diff(kept) < 0).all(), "in their order"


def test_the_first_of_the_held_out_are_those_of_a_smaller_fraction() -> None:
    """Whatever the order of the rows."""
    few, many = (hold_out_rows(TABLE, ROWS, fraction)[1] for fraction in (0.1, 0.3))
    assert many[: len(few)].tolist() == few.tolist()
    assert hold_out_rows(TABLE, ROWS[::-1], 0.1)[1].tolist() == few.tolist()


@pytest.mark.parametrize("fraction", [0.05, 0.5])
def test_the_fraction_is_held_out_of_training_rows_too(fraction: float) -> None:
    """A hash that is shared with `split_rows` would hold out none of the rows that it kept, or all."""
    train = split_rows(TABLE, ROWS)["train"]
    held = hold_out_rows(TABLE, train, fraction)[1]
    assert len(held) / len(train) == pytest.approx(fraction, abs=0.03)
    other = hold_out_rows(TABLE, train, fraction, seed=1)[1]
    assert len(np.intersect1d(held, other)) / len(held) == pytest.approx(fraction, abs=0.06)


def test_appended_rows_move_none() -> None:
    longer = plan_samples([*KEYS, *(f"more/{number}.png" for number in range(500))], [None] * 4500, "images")
    assert hold_out_rows(longer, ROWS, 0.1)[1].tolist() == hold_out_rows(TABLE, ROWS, 0.1)[1].tolist()
    few = plan_samples(KEYS[1000:], [None] * 3000, "images")
    held = hold_out_rows(few, np.arange(3000), 0.1)[1] + 1000
    assert held.tolist() == [row for row in hold_out_rows(TABLE, ROWS, 0.1)[1] if row >= 1000]


def test_a_larger_fraction_holds_out_the_same_rows_and_more() -> None:
    small, large = (set(hold_out_rows(TABLE, ROWS, fraction)[1].tolist()) for fraction in (0.1, 0.2))
    assert small < large
    assert not hold_out_rows(TABLE, ROWS, 0)[1].size
    assert not hold_out_rows(TABLE, ROWS, 1)[0].size


def test_the_held_out_rows_stay_for_ever() -> None:
    assert hold_out_rows(TABLE, ROWS, 0.002)[1].tolist() == [1000, 2386, 3945, 2325, 3149, 3654, 2634]


def test_a_split_takes_a_fraction_and_a_seed() -> None:
    whole = split_rows(TABLE, ROWS)
    assert split_rows(TABLE, ROWS, fraction=0.2, seed=0)["test"].tolist() == whole["test"].tolist()
    tenth = split_rows(TABLE, ROWS, fraction=0.1)["test"]
    assert set(tenth.tolist()) < set(whole["test"].tolist())
    assert split_rows(TABLE, ROWS, seed=1)["test"].tolist() != whole["test"].tolist()


@pytest.mark.parametrize(
    ("fraction", "seed"), [(-0.1, 0), (1.1, 0), (float("nan"), 0), (0.1, -1), (0.1, 2**32)]
)
def test_what_is_no_fraction_or_seed_is_refused(fraction: float, seed: int) -> None:
    with pytest.raises(ConfigError, match=r"a fraction of 0 to 1 and a seed below 2.32; got"):
        hold_out_rows(TABLE, ROWS, fraction, seed=seed)
