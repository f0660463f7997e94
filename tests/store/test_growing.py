"""A finished store with more rows, layers or kinds is the very store that had them from the start."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from activault.store import (
    CorruptStoreError,
    IncompleteStoreError,
    Outcome,
    StoreError,
    StoreMismatchError,
    create_store,
    growing_writer,
    open_store,
    pull,
    verify_store,
)
from activault.store.growing import GROWING, JOINING
from activault.store.growing_join import finish_join, join_growth
from activault.store.growing_writer import GrowingWriter
from activault.store.parts import part_samples

from .conftest import MakePlan, Plan
from .grown import more_arrays, more_rows, publish, write_part

DTYPES = ("bfloat16", "float16", "float32", "int8")


def pair(
    make_plan: MakePlan, old: int, new: int, dtype: str = "bfloat16", bad: tuple[int, ...] = ()
) -> tuple[Plan, Plan]:
    """A written store of `old` rows, and a plan of the one with `new` rows."""
    few = make_plan("few.zarr", num_rows=old, dtype=dtype, bad_rows=[row for row in bad if row < old])
    few.write()
    steps = few.manifest.quantisation
    return few, make_plan("whole.zarr", num_rows=new, dtype=dtype, bad_rows=bad, quantisation=steps)


def assert_is(path: Path, whole: Plan) -> None:
    store = open_store(path)
    assert store.digest == open_store(whole.path).digest
    assert np.array_equal(store.read(slice(None), store.layers), whole.stored, equal_nan=True)
    report = verify_store(path, values=True, complete=True)
    assert (report.faults, report.notes) == ((), ())
    assert not [file.name for file in path.iterdir() if file.name in (GROWING, JOINING)]


@pytest.mark.parametrize(
    ("old", "dtype"),
    [*((35, dtype) for dtype in DTYPES), (32, "bfloat16"), (32, "int8"), (5, "int8")],
    ids=lambda value: {35: "partial last shard", 32: "full last shard", 5: "one short shard"}.get(
        value, value
    ),
)
def test_a_store_with_more_rows(make_plan: MakePlan, old: int, dtype: str) -> None:
    few, whole = pair(make_plan, old, 54, dtype, bad=(2, 33, 34, 50))
    whole.write()
    write_part(few.path, whole)
    assert join_growth(few.path)
    assert_is(few.path, whole)


def test_rows_added_twice_within_one_shard(make_plan: MakePlan) -> None:
    few, more = pair(make_plan, 33, 37, bad=(32, 36))
    whole = make_plan("whole.zarr", num_rows=41, bad_rows=(32, 36))
    whole.write()
    for each in (more, whole):
        write_part(few.path, each)
        assert join_growth(few.path)
    assert_is(few.path, whole)


def test_an_old_shard_of_which_every_row_was_bad(make_plan: MakePlan) -> None:
    few, whole = pair(make_plan, 18, 20, "int8", bad=(16, 17))
    whole.write()
    write_part(few.path, whole)
    join_growth(few.path)
    assert_is(few.path, whole)


@pytest.mark.parametrize(
    ("part", "dtype"),
    [
        ({"layers": "0,4"}, "bfloat16"),
        ({"layers": "2"}, "int8"),
        ({"tokens": "cls"}, "bfloat16"),
        ({"tokens": "cls"}, "int8"),
        ({"tokens": "registers,patches"}, "bfloat16"),
    ],
    ids=lambda value: "-".join(value.values()) if isinstance(value, dict) else value,
)
def test_a_store_with_more_layers_or_kinds(
    make_plan: MakePlan, tmp_path: Path, part: dict[str, Any], dtype: str
) -> None:
    whole = make_plan("whole.zarr", dtype=dtype, bad_rows=(7, 20))
    whole.write()
    path = pull(whole.path, tmp_path / "part.zarr", **part)
    write_part(path, whole)
    assert join_growth(path)
    assert_is(path, whole)


def test_a_partial_copy_of_some_rows_with_more_layers(written: Plan, tmp_path: Path) -> None:
    asked = pull(written.path, tmp_path / "asked.zarr", rows="16:48")
    path = pull(written.path, tmp_path / "part.zarr", rows="16:48", layers="4")
    write_part(path, written, range(1, 3))
    assert join_growth(path)
    assert open_store(path).digest == open_store(asked).digest
    assert verify_store(path, values=True, complete=True).ok


def test_old_files_are_not_written_again(make_plan: MakePlan) -> None:
    few, whole = pair(make_plan, 35, 54)
    old = {file: file.stat().st_ino for file in few.path.glob("layer_*/*/c/[01]/0/0")}
    write_part(few.path, whole)
    new = {file.stat().st_ino for file in few.path.glob(f"{GROWING}/layer_*/*/c/*/0/0")}
    join_growth(few.path)
    assert old == {file: file.stat().st_ino for file in old}
    assert new == {file.stat().st_ino for file in few.path.glob("layer_*/*/c/[23]/0/0")}


def test_until_it_is_joined_the_store_is_the_old_one(make_plan: MakePlan, tmp_path: Path) -> None:
    few, whole = pair(make_plan, 35, 54, bad=(34,))
    digest = open_store(few.path).digest
    write_part(few.path, whole, range(2, 3))
    assert open_store(few.path).digest == digest
    report = verify_store(few.path, values=True, complete=True)
    assert report.ok
    assert len(report.notes) == 1
    assert "1 of 2 shards are there" in str(report.notes[0])
    copied = pull(few.path, tmp_path / "copy.zarr")
    assert open_store(copied).digest == digest
    assert not (copied / GROWING).exists()
    with pytest.raises(IncompleteStoreError, match=r"shard 3 is not finished; run the same command again"):
        join_growth(few.path)
    assert few.open().unfinished == []
    assert open_store(few.path).digest == digest


def test_a_reader_that_has_it_open_goes_on(make_plan: MakePlan) -> None:
    few, whole = pair(make_plan, 35, 54, bad=(34,))
    at_work, opened = open_store(few.path), open_store(few.path)
    assert np.array_equal(at_work.read([1], at_work.layers), few.stored[[1]])
    write_part(few.path, whole)
    join_growth(few.path)
    assert np.array_equal(at_work.read(slice(0, 32), at_work.layers), few.stored[:32])
    for store in (at_work, opened):
        with pytest.raises(StoreMismatchError, match="added to it since; open it again"):
            store.read(slice(32, 35), store.layers)
    assert open_store(few.path).num_rows == 54


def test_an_edited_card_stays(make_plan: MakePlan) -> None:
    few, whole = pair(make_plan, 35, 54)
    (few.path / "CARD.md").write_text("ours")
    write_part(few.path, whole)
    join_growth(few.path)
    assert (few.path / "CARD.md").read_text() == "ours"


def test_nothing_to_join(written: Plan, tmp_path: Path) -> None:
    assert not finish_join(written.path)
    assert not join_growth(shutil.copytree(written.path, tmp_path / "a.zarr"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"status": "truncated"},
            r"the status of row 17 \(folder/017.jpg, shard 1\) is 'ok' .* 'truncated' now",
        ),
        ({"width": 99}, r"the width of row 17 .* is 41 .* and 99 now"),
    ],
    ids=["outcome", "size"],
)
def test_layers_of_another_image(
    written: Plan, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = pull(written.path, tmp_path / "part.zarr", layers="4")
    there = open_store(path)
    part, samples = more_arrays(there, written)
    outcomes = written.outcomes(range(16, 32))
    outcomes[1] = Outcome(**{**vars(outcomes[1]), **changes})
    with GrowingWriter(create_store(path / GROWING, part, part_samples(samples, part), {}), there) as writer:
        buffer = writer.buffer(1)
        for place, layer in enumerate((0, 2)):
            buffer.write(layer, 0, written.values[16:32, place])
        with pytest.raises(StoreMismatchError, match=message):
            writer.publish(buffer, outcomes)
        assert writer.unfinished == [0, 1, 2, 3]


def test_old_values_that_are_not_what_was_recorded(
    make_plan: MakePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, whole = pair(make_plan, 35, 54)
    there = open_store(few.path)
    part, samples = more_rows(there, whole)
    stored = growing_writer._stored_rows
    monkeypatch.setattr(growing_writer, "_stored_rows", lambda *asked: stored(*asked) + 1)
    with GrowingWriter(
        create_store(few.path / GROWING, part, part_samples(samples, part), {}), there
    ) as writer:
        with pytest.raises(CorruptStoreError, match="rows 32 to 34 are not what their record says"):
            publish(writer, there, whole, 2)
        assert 2 in writer.unfinished


def test_something_in_the_way_of_a_new_layer(written: Plan, tmp_path: Path) -> None:
    path = pull(written.path, tmp_path / "part.zarr", layers="4")
    digest = open_store(path).digest
    write_part(path, written)
    (path / "layer_02" / "cls").mkdir(parents=True)
    with pytest.raises(StoreError, match="layer_02/cls is no part of the store and in the way"):
        join_growth(path)
    assert open_store(path).digest == digest
    shutil.rmtree(path / "layer_02")
    assert join_growth(path)
    assert_is(path, written)


def test_what_is_renamed_is_on_disk_before_the_store_is_the_grown_one(
    make_plan: MakePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, whole = pair(make_plan, 35, 54)
    write_part(few.path, whole)
    seen, replace = list[str](), os.replace

    def named(source: Path, target: Path) -> None:
        replace(source, target)
        seen.append(f"named {target}")

    def synced(handle: int) -> None:
        seen.append(str(Path(f"/proc/self/fd/{handle}").readlink()))

    monkeypatch.setattr(os, "replace", named)
    monkeypatch.setattr(os, "fsync", synced)
    join_growth(few.path)
    path = few.path
    joining, root = seen.index(f"named {path / JOINING}"), seen.index(f"named {path / 'zarr.json'}")
    gathered = path / GROWING / "joined"
    assert {str(gathered), str(gathered / "shards"), str(path / GROWING)} <= set(seen[:joining])
    assert len([name for name in seen[:joining] if "/joined/shards/." in name]) >= 4  # records and statistics
    taken = [place for place, name in enumerate(seen) if name.startswith(f"named {path}/layer_")]
    assert joining < min(taken)
    assert max(taken) < root
    for array in ("layer_00/cls", "layer_04/patches"):
        last = max(place for place in taken if f"/{array}/" in seen[place])
        assert str(path / array) in seen[last:root]
        assert str(path / array / "c") in seen[joining:root]
        assert str(path / array / "c/2/0") in seen[joining:root]
    assert str(path) in seen[joining:root], "that its zarr.json is gone, before anything is replaced"
    assert str(path) in seen[root:]


def test_a_store_that_became_another_meanwhile(make_plan: MakePlan, tmp_path: Path) -> None:
    few, whole = pair(make_plan, 35, 54)
    write_part(few.path, whole)
    other = make_plan("other.zarr", num_rows=35, row_seed=1)
    other.write()
    (few.path / GROWING).rename(other.path / GROWING)
    with pytest.raises(StoreMismatchError, match="row_seed is 1 there and 0 in what is being added"):
        join_growth(other.path)
    assert open_store(other.path).num_rows == 35
