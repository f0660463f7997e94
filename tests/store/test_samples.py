from __future__ import annotations

import numpy as np
import pytest

from activault.store import ConfigError, Outcome, plan_samples, split_of, split_rows
from activault.store.samples import SAMPLES_SCHEMA, content_hash, with_outcomes


def test_a_planned_table_numbers_its_rows_and_is_pending() -> None:
    table = plan_samples(["b.jpg", "a.jpg"], ["x", None], "images")
    assert table.schema.equals(SAMPLES_SCHEMA)
    assert table["row"].to_pylist() == [0, 1]
    assert table["key"].to_pylist() == ["b.jpg", "a.jpg"]
    assert table["label"].to_pylist() == ["x", None]
    assert table["status"].to_pylist() == ["pending", "pending"]


@pytest.mark.parametrize(
    ("keys", "labels", "message"),
    [
        ([], [], "samples need a key and a label"),
        (["a"], [], "got 1 and 0"),
        (["a", "b", "a"], [None] * 3, "'a' is there twice"),
    ],
)
def test_unusable_keys_are_refused(keys: list[str], labels: list[str | None], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_samples(keys, labels, "images")


@pytest.mark.parametrize(
    ("keys", "labels"),
    [
        pytest.param(["a", "c"], ["x", "y"], id="key"),
        pytest.param(["a", "b"], ["x", None], id="label missing"),
        pytest.param(["a", "b"], ["xy", ""], id="same letters, parted otherwise"),
        pytest.param(["b", "a"], ["x", "y"], id="order"),
    ],
)
def test_content_hash_tells_plans_apart(keys: list[str], labels: list[str | None]) -> None:
    first = content_hash(plan_samples(["a", "b"], ["x", "y"], "images"))
    assert content_hash(plan_samples(keys, labels, "images")) != first


def test_outcomes_do_not_change_the_content_hash() -> None:
    table = plan_samples(["a", "b", "c"], [None] * 3, "images")
    done = with_outcomes(
        table, [(range(1, 3), [Outcome(status="empty", reason="0 bytes"), Outcome(status="ok", width=3)])]
    )
    assert content_hash(done) == content_hash(table)
    assert done["status"].to_pylist() == ["pending", "empty", "ok"]
    assert done["reason"].to_pylist() == [None, "0 bytes", None]
    assert done["width"].to_pylist() == [None, None, 3]


def test_pending_is_no_outcome() -> None:
    with pytest.raises(ConfigError, match="a status is 'ok' or a short reason code"):
        Outcome(status="pending")


@pytest.mark.parametrize(
    ("key", "split"),
    [
        ("train/cat/1.jpg", "train"),
        ("val/cat/1.jpg", "test"),
        ("validation/1.jpg", "test"),
        ("Test/1.jpg", "test"),
        ("cats/train/1.jpg", None),
        ("train", None),
    ],
)
def test_split_of(key: str, split: str | None) -> None:
    assert split_of(key) == split


def test_rows_split_by_folder_where_all_have_one() -> None:
    table = plan_samples(["train/a", "test/b", "train/c"], [None] * 3, "images")
    parts = split_rows(table, np.array([2, 1, 0]))
    assert parts["train"].tolist() == [2, 0]
    assert parts["test"].tolist() == [1]


@pytest.mark.parametrize("stray", ["stray.jpg", "other/stray.jpg"])
def test_a_stray_file_goes_to_training_and_moves_no_other(stray: str) -> None:
    keys = [f"{'train' if row < 50 else 'test'}/{row}.jpg" for row in range(100)] + [stray]
    table = plan_samples(keys, [None] * 101, "images")
    parts = split_rows(table, np.arange(101))
    assert parts["train"].tolist() == [*range(50), 100]
    assert parts["test"].tolist() == list(range(50, 100))


def test_the_whole_table_decides_not_the_rows_asked_for() -> None:
    keys = [f"{row}.jpg" for row in range(100)] + ["test/a.jpg"]
    parts = split_rows(plan_samples(keys, [None] * 101, "images"), np.arange(100))
    assert (len(parts["train"]), len(parts["test"])) == (100, 0)


def test_no_rows_split_into_none() -> None:
    parts = split_rows(plan_samples(["a"], [None], "images"), np.empty(0, np.int64))
    assert (len(parts["train"]), len(parts["test"])) == (0, 0)


def test_rows_split_by_key_keep_their_side_in_another_store() -> None:
    keys = [f"{row}.jpg" for row in range(2000)]
    whole = split_rows(plan_samples(keys, [None] * 2000, "images"), np.arange(2000))
    assert 0.17 < len(whole["test"]) / 2000 < 0.23
    assert sorted([*whole["train"], *whole["test"]]) == list(range(2000))
    half = split_rows(plan_samples(keys[1000:], [None] * 1000, "images"), np.arange(1000))
    assert (half["test"] + 1000).tolist() == [row for row in whole["test"] if row >= 1000]
