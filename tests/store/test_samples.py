from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from activault.store import ConfigError, Outcome, plan_samples, split_of, split_rows
from activault.store.samples import (
    ABSENT,
    PENDING,
    content_hash,
    label_ids,
    outcome_columns,
    samples_schema,
    with_records,
)

Said = tuple[object, ...]  # width, height, status and reason of one row
TEXTS = st.text(st.sampled_from("ab/\u017fK\u00e9\n\U0001f408"), max_size=4)
SIZES = st.none() | st.integers(0, 2**31 - 1)
FOLDERS = st.sampled_from(["train/", "Val/", "te\u017ft/", "trainer/", "VALIDATION/", "x/test/", "", "é/"])


@dataclass(frozen=True)
class Record:
    """What a shard's record says of outcomes."""

    rows: tuple[int, int]
    sizes: Sequence[tuple[int | None, int | None, int]]
    bad: Sequence[tuple[int, str, str | None]] = ()


def cut(table: pa.Table, places: Sequence[int]) -> pa.Table:
    """The same rows in chunks that end at `places`, each a slice of a longer array."""
    bounds = [0, *sorted(min(place, len(table)) for place in places), len(table)]
    longer = pa.concat_tables([table, table]).combine_chunks()
    return pa.concat_tables([longer.slice(a, b - a) for a, b in pairwise(bounds)])


def hash_by_rows(samples: pa.Table) -> str:
    """The content hash as the format puts it, row by row."""
    state = hashlib.sha256()
    for name in ("key", "label", "source"):
        state.update(name.encode())
        texts = samples[name].to_pylist()
        for start in range(0, len(texts), 65_536):
            block = [None if text is None else text.encode() for text in texts[start : start + 65_536]]
            state.update(np.array([-1 if text is None else len(text) for text in block], "<i8").tobytes())
            state.update(b"".join(text for text in block if text is not None))
    return state.hexdigest()


def test_a_planned_table_numbers_its_rows_and_is_pending() -> None:
    table = plan_samples(["b.jpg", "a.jpg"], ["x", None], "images")
    assert table.schema.equals(samples_schema())
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


@pytest.mark.parametrize("repeat", [0, 70_001], ids=["few", "many"])
def test_the_first_key_that_comes_again_is_named(repeat: int) -> None:
    keys = [*map(str, range(repeat)), "b", "a", "c", "a", "b"]
    with pytest.raises(ConfigError, match="keys name one row each; 'a' is there twice"):
        plan_samples(keys, [None] * len(keys), "images")


def test_keys_that_only_share_a_hash_are_not_the_same() -> None:
    class Key(str):
        def __hash__(self) -> int:
            return 7

    assert plan_samples([Key("a"), Key("b")], [None] * 2, "images")["key"].to_pylist() == ["a", "b"]


def test_a_long_table_has_its_constants_in_every_row() -> None:
    table = plan_samples([str(row) for row in range(140_000)], [None] * 140_000, "images")
    assert table["source"].to_pylist() == ["images"] * 140_000
    assert table["status"].to_pylist() == [PENDING] * 140_000
    assert table["width"].null_count == table["reason"].null_count == 140_000


@given(st.lists(st.tuples(TEXTS, st.none() | TEXTS), min_size=1), st.lists(st.integers(0, 50), max_size=4))
def test_content_hash_is_as_the_format_says(rows: list[tuple[str, str | None]], places: list[int]) -> None:
    keys = [f"{row}{key}" for row, (key, _) in enumerate(rows)]
    table = cut(plan_samples(keys, [label for _, label in rows], "images"), places)
    assert content_hash(table) == hash_by_rows(table)


def test_content_hash_of_many_rows_in_uneven_chunks() -> None:
    count = 140_000
    labels = [None if row % 5 == 0 else f"é{row % 7}" for row in range(count)]
    table = plan_samples([f"{row}.jpg" for row in range(count)], labels, "images")
    assert content_hash(cut(table, (1, 65_535, 100_000))) == content_hash(table) == hash_by_rows(table)


def test_bytes_under_a_null_are_not_hashed() -> None:
    table = plan_samples(["a", "b", "c"], ["x", None, "y"], "images")
    buffers = [pa.py_buffer(b"\x05"), pa.py_buffer(np.array([0, 1, 4, 5], np.int32)), pa.py_buffer(b"x???y")]
    labels = pa.Array.from_buffers(pa.string(), 3, buffers)
    place = table.schema.get_field_index("label")
    assert content_hash(table.set_column(place, table.schema.field("label"), labels)) == content_hash(table)


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
    done = with_records(table, [Record((1, 3), [(None, None, 1), (3, None, 1)], [(1, "empty", "0 bytes")])])
    assert content_hash(done) == content_hash(table)
    assert done["status"].to_pylist() == ["pending", "empty", "ok"]
    assert done["reason"].to_pylist() == [None, "0 bytes", None]
    assert done["width"].to_pylist() == [None, None, 3]


@st.composite
def recorded(draw: st.DrawFn) -> tuple[list[Record], list[range], list[Said]]:
    """Records of some shards, rows of others that are absent, and what is to be said of every row."""
    num_rows, shard_rows = draw(st.integers(1, 40)), draw(st.integers(1, 12))
    expected: list[Said] = [(None, None, PENDING, None)] * num_rows
    records, absent = [], []
    for start in range(0, num_rows, shard_rows):
        rows = range(start, min(start + shard_rows, num_rows))
        state = draw(st.sampled_from(["recorded", PENDING, ABSENT]))
        if state == ABSENT:
            absent.append(rows)
            expected[start : rows.stop] = [(None, None, ABSENT, None)] * len(rows)
        if state != "recorded":
            continue
        sizes, bad, left = [], [], len(rows)
        while left:
            sizes.append((draw(SIZES), draw(SIZES), draw(st.integers(1, left))))
            left -= sizes[-1][2]
        expanded = [pair for *pair, times in sizes for _ in range(times)]
        for row, (width, height) in zip(rows, expanded, strict=True):
            status, reason = draw(
                st.sampled_from([("ok", None), ("empty", None), ("torn", "é"), ("torn", "x")])
            )
            if status != "ok":
                bad.append((row, status, reason))
            expected[row] = (width, height, status, reason)
        records.append(Record((rows.start, rows.stop), sizes, bad))
    return draw(st.permutations(records)), absent, expected


@given(recorded())
def test_columns_say_what_records_say(case: tuple[list[Record], list[range], list[Said]]) -> None:
    records, absent, expected = case
    columns = outcome_columns(len(expected), records, absent)
    rows = zip(*(columns[name].to_pylist() for name in ("width", "height", "status", "reason")), strict=True)
    assert list(rows) == expected


def test_records_replace_what_the_table_said_of_outcomes() -> None:
    planned = plan_samples(["a", "b", "c"], ["x", None, "x"], "images")
    first = with_records(planned, [Record((0, 2), [(4, 3, 2)], [(1, "torn", "x")])])
    assert first.schema.equals(samples_schema())
    assert first["status"].to_pylist() == ["ok", "torn", PENDING]
    again = with_records(first, [Record((2, 3), [(5, None, 1)])], [range(1)])
    assert again["status"].to_pylist() == [ABSENT, PENDING, "ok"]
    assert again["width"].to_pylist() == [None, None, 5]
    assert again["reason"].null_count == 3
    assert content_hash(again) == content_hash(planned)


def test_columns_of_many_rows() -> None:
    record = Record((0, 140_000), [(500, 375, 140_000)], [(139_999, "torn", "x")])
    columns = outcome_columns(140_000, [record])
    assert columns["width"].to_pylist() == [500] * 140_000
    assert columns["status"].to_pylist() == ["ok"] * 139_999 + ["torn"]
    assert columns["reason"].to_pylist() == [None] * 139_999 + ["x"]


def test_a_size_beyond_the_column_is_no_other_size() -> None:
    with pytest.raises(OverflowError):
        outcome_columns(1, [Record((0, 1), [(2**32 + 1, 1, 1)])])


@pytest.mark.parametrize("status", ["", "pending", "absent"])
def test_reserved_statuses_are_no_outcomes(status: str) -> None:
    with pytest.raises(ConfigError, match="a status is 'ok' or a short reason code"):
        Outcome(status=status)


@given(st.lists(st.none() | TEXTS, min_size=1), st.lists(st.integers(0, 50), max_size=4))
def test_labels_are_numbered_in_their_order(labels: list[str | None], places: list[int]) -> None:
    table = cut(plan_samples([str(row) for row in range(len(labels))], labels, "images"), places)
    classes, ids = label_ids(table)
    assert classes == tuple(sorted({label for label in labels if label is not None}))
    assert ids.dtype == np.int64
    assert [None if place < 0 else classes[place] for place in ids] == labels


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


@given(st.lists(st.tuples(FOLDERS, TEXTS), min_size=1), st.lists(st.integers(0, 50), max_size=4), st.data())
def test_rows_split_as_their_keys_one_by_one(
    parts: list[tuple[str, str]], places: list[int], data: st.DataObject
) -> None:
    keys = [f"{folder}{row}{text}" for row, (folder, text) in enumerate(parts)]
    rows = np.array(data.draw(st.lists(st.integers(0, len(keys) - 1))), np.int64)
    found = split_rows(cut(plan_samples(keys, [None] * len(keys), "images"), places), rows)
    in_test = [xxhash.xxh3_64_intdigest(keys[row].encode()) < int(0.2 * 2**64) for row in rows]
    if any(map(split_of, keys)):
        in_test = [split_of(keys[row]) == "test" for row in rows]
    assert found["test"].tolist() == [row for row, drawn in zip(rows, in_test, strict=True) if drawn]
    assert found["train"].tolist() == [row for row, drawn in zip(rows, in_test, strict=True) if not drawn]


def test_the_split_of_a_key_stays_for_ever() -> None:
    table = plan_samples([f"{row}.jpg" for row in range(70_000)], [None] * 70_000, "images")
    parts = split_rows(table, np.arange(70_000))
    assert parts["test"][:6].tolist() == [0, 1, 6, 10, 11, 15]
    assert split_rows(table, parts["test"][::-100])["test"].tolist() == parts["test"][::-100].tolist()
