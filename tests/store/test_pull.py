from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from activault.store import (
    ConfigError,
    CorruptStoreError,
    NotAStoreError,
    StoreError,
    StoreMismatchError,
    open_store,
    verify_store,
)
from activault.store.fetching import Retries
from activault.store.files import canonical_json, xxh3
from activault.store.locks import LOCK
from activault.store.root import read_root
from activault.store.storage import Folder
from activault.store.transfer import plan_pull, pull

from .conftest import MakePlan, Plan

AT_ONCE = Retries(first_s=0.0)


def tree(folder: Path) -> dict[str, bytes]:
    files = (file for file in folder.rglob("*") if file.is_file() and file.name != LOCK)
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


def sound(path: Path, *, complete: bool = True) -> None:
    assert verify_store(path, deep=True, complete=complete).faults == ()


def test_a_whole_copy_is_the_store_byte_for_byte(written: Plan, tmp_path: Path) -> None:
    pull(written.path, tmp_path / "b.zarr")
    assert tree(tmp_path / "b.zarr") == tree(written.path)


@pytest.mark.parametrize(
    ("layers", "tokens", "rows"),
    [("2", None, None), (None, "cls", None), (None, None, "20:21"), ([4, 0], "patches,cls", "17:50")],
    ids=["a layer", "a kind", "a shard", "some of all"],
)
def test_a_part_is_a_store_of_its_own(
    written: Plan, tmp_path: Path, layers: Any, tokens: str | None, rows: str | None
) -> None:
    store = open_store(pull(written.path, tmp_path / "b.zarr", layers, tokens, rows))
    sound(tmp_path / "b.zarr")
    assert store.complete
    whole, held = open_store(written.path), store.finished_rows
    ours = store.read(held, store.layers, store.kinds)
    assert np.array_equal(ours, whole.read(held, store.layers, store.kinds), equal_nan=True)
    here, there = tree(tmp_path / "b.zarr"), tree(written.path)
    arrays = [name for name in here if name.startswith("layer_")]
    assert {name: here[name] for name in arrays} == {name: there[name] for name in arrays}
    status = np.array(store.samples["status"].to_pylist())
    assert (np.delete(status, held) == "absent").all()
    assert (status[held] == np.array(whole.samples["status"].to_pylist())[held]).all()
    assert store.samples.drop(["status", "width", "height", "reason"]).equals(
        whole.samples.drop(["status", "width", "height", "reason"])
    )


def test_a_part_says_first_how_much_it_is(written: Plan, tmp_path: Path) -> None:
    planned = plan_pull(written.path, layers="2", rows="16:40")
    destination = tmp_path / "b.zarr"
    assert not destination.exists()
    planned.run(destination)
    files = [
        file for file in destination.rglob("*") if file.parent.name == "0" or file.parent.name == "teacher"
    ]
    files += (destination / "shards").glob("*.safetensors")
    assert planned.num_files == len(files) == open_store(destination).info()["num_files"]
    arrays = sum(file.stat().st_size for file in files if "shards" not in file.parts)
    whole = sum((written.path / f"shards/0000{shard}.stats.safetensors").stat().st_size for shard in (1, 2))
    assert planned.num_bytes == arrays + whole
    assert planned.bytes_there(destination) > 0


def test_progress_ends_at_what_was_told(written: Plan, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    pull(written.path, tmp_path / "b.zarr", progress=lambda *step: told.append(step))
    assert told[-1] == (told[0][1], told[0][1])


def test_pulling_again_copies_nothing(written: Plan, tmp_path: Path) -> None:
    path = pull(written.path, tmp_path / "b.zarr")
    before = {file: file.stat().st_ino for file in path.rglob("*")}
    pull(written.path, path)
    assert {file: file.stat().st_ino for file in path.rglob("*")} == before


def test_what_is_missing_is_copied_again(written: Plan, tmp_path: Path) -> None:
    path = pull(written.path, tmp_path / "b.zarr")
    for name in ("layer_02/cls/c/1/0/0", "shards/00002.json", "samples.parquet", "teacher/config.json"):
        (path / name).unlink()
    pull(written.path, path)
    assert tree(path) == tree(written.path)


@pytest.mark.parametrize("name", ["layer_02/cls/c/1/0/0", "shards/00001.stats.safetensors"])
def test_a_flipped_byte_in_the_copy_is_mended_as_the_message_says(
    written: Plan, tmp_path: Path, name: str
) -> None:
    path = pull(written.path, tmp_path / "b.zarr")
    data = bytearray((path / name).read_bytes())
    data[len(data) // 2] ^= 1
    (path / name).write_bytes(data)
    fault = next(fault for fault in verify_store(path, deep=True).faults if fault.where == name)
    assert "delete shards/00001.stats.safetensors and run again what made the store" in fault.detail
    (path / "shards/00001.stats.safetensors").unlink()
    pull(written.path, path)
    assert tree(path) == tree(written.path)


def test_an_unfinished_source_gives_what_is_finished(
    make_plan: MakePlan, written: Plan, tmp_path: Path
) -> None:
    source = make_plan("growing.zarr", bad_rows=(7, 20))
    source.write([0, 2])
    planned = plan_pull(source.path, rows="0:48")
    assert planned.num_unfinished == 1
    copy = tmp_path / "copy.zarr"
    pull(source.path, copy)
    sound(copy, complete=False)
    assert open_store(copy).finished_rows.tolist() == [*range(16), *range(32, 48)]
    source.write()
    assert open_store(pull(source.path, copy)).digest == open_store(written.path).digest
    assert tree(copy) == tree(written.path)


def test_another_store_is_never_overwritten(written: Plan, make_plan: MakePlan, tmp_path: Path) -> None:
    other = make_plan("other.zarr", row_seed=5)
    other.write()
    before = tree(other.path)
    with pytest.raises(StoreMismatchError, match=r"row_seed is 5 there and 0 here; .*activault merge"):
        pull(written.path, other.path)
    assert tree(other.path) == before


def test_another_part_goes_elsewhere(written: Plan, tmp_path: Path) -> None:
    path = pull(written.path, tmp_path / "b.zarr", layers="2")
    before = tree(path)
    with pytest.raises(
        StoreMismatchError, match=r"layers is \[2\] there and \[2, 4\] here; .*activault merge"
    ):
        pull(written.path, path, layers="2,4")
    assert tree(path) == before


def test_other_values_of_the_same_plan_are_kept(written: Plan, make_plan: MakePlan) -> None:
    other = make_plan("other.zarr", bad_rows=(7, 20))
    other.values[:16] += 1
    other.write([0])
    before = tree(other.path)
    with pytest.raises(StoreMismatchError, match="holds other values of the same plan: layer_00/cls/c/0/0/0"):
        pull(written.path, other.path)
    assert tree(other.path) == before


def test_something_else_is_left_alone(written: Plan, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/a.jpg").write_bytes(b"a")
    (tmp_path / "file").write_bytes(b"a")
    for name in ("photos", "file"):
        with pytest.raises(NotAStoreError, match="not an activation store"):
            pull(written.path, tmp_path / name)
    assert tree(tmp_path / "photos") == {"a.jpg": b"a"}
    with pytest.raises(ConfigError, match="a copy lies outside its source"):
        pull(written.path, written.path / "copy.zarr")
    with pytest.raises(NotAStoreError, match="does not exist"):
        pull(tmp_path / "nothing.zarr", tmp_path / "b.zarr")


DAMAGE = {
    "an array's file": "layer_02/patches/c/1/0/0",
    "statistics": "shards/00001.stats.safetensors",
    "the teacher": "teacher/model.safetensors",
    "samples": "samples.parquet",
    "the index": "index.parquet",
}


@pytest.mark.parametrize("name", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_is_never_left_in_the_copy(
    copy: Path, written: Plan, tmp_path: Path, name: str
) -> None:
    data = bytearray((copy / name).read_bytes())
    data[len(data) // 2] ^= 1
    (copy / name).write_bytes(data)
    with pytest.raises(CorruptStoreError, match=Path(name).name):
        pull(copy, tmp_path / "b.zarr", retries=AT_ONCE)
    assert not (tmp_path / "b.zarr" / name).exists() or name == "samples.parquet"
    if (tmp_path / "b.zarr/zarr.json").exists():
        sound(tmp_path / "b.zarr", complete=False)
    pull(written.path, tmp_path / "b.zarr")  # from a sound source it goes on
    assert tree(tmp_path / "b.zarr") == tree(written.path)


def test_a_missing_file_is_named(copy: Path, tmp_path: Path) -> None:
    (copy / "layer_00/cls/c/3/0/0").unlink()
    with pytest.raises(
        CorruptStoreError, match=r"layer_00/cls/c/3/0/0 is missing in .*copy from another source"
    ):
        pull(copy, tmp_path / "b.zarr", retries=AT_ONCE)


def test_missing_statistics_are_named_with_what_to_do(copy: Path, tmp_path: Path) -> None:
    (copy / "shards/00001.stats.safetensors").unlink()
    said = (
        r"00001.stats.safetensors is missing in .*copy.zarr; copy from another source, or, if it changed mean"
    )
    with pytest.raises(CorruptStoreError, match=said):
        pull(copy, tmp_path / "b.zarr", retries=AT_ONCE)


def test_a_source_that_is_not_there_is_no_store_to_be_made(tmp_path: Path) -> None:
    with pytest.raises(NotAStoreError, match=r"nothing.zarr does not exist; check the path$"):
        pull(tmp_path / "nothing.zarr", tmp_path / "b.zarr")


def test_a_longer_file_is_not_read_to_its_end(copy: Path, tmp_path: Path) -> None:
    with (copy / "layer_00/cls/c/3/0/0").open("ab") as file:
        file.truncate(1 << 40)  # takes no room, and would fill any disk as a copy
    said = r"c/3/0/0 must have \d+ bytes; it has 1099511627776; so it is damaged in .*copy.zarr: copy from"
    with pytest.raises(CorruptStoreError, match=said):
        pull(copy, tmp_path / "b.zarr", retries=AT_ONCE)


def rewrite_record(path: Path, shard: int, change: Callable[[dict[str, Any]], None]) -> None:
    """A record that lies, with a checksum that agrees."""
    file = path / f"shards/{shard:05d}.json"
    body = json.loads(file.read_bytes())
    body.pop("checksum")
    change(body)
    file.write_bytes(canonical_json(body | {"checksum": xxh3(canonical_json(body))}))
    (path / "index.parquet").unlink(missing_ok=True)


def test_absurd_sizes_are_refused_before_anything_is_written(copy: Path, tmp_path: Path) -> None:
    def claim(place: str) -> Callable[[dict[str, Any]], None]:
        def change(body: dict[str, Any]) -> None:
            file = body["files"][0] if place == "files" else body["statistics"]
            file["bytes"] = 1 << 50

        return change

    for shard, place in ((1, "files"), (2, "statistics")):
        shutil.copytree(copy, tmp_path / place)
        rewrite_record(tmp_path / place, shard, claim(place))
        with pytest.raises(CorruptStoreError, match=f"can have at most .* its record says {1 << 50}"):
            pull(tmp_path / place, tmp_path / "b.zarr")
    assert not (tmp_path / "b.zarr").exists()


@pytest.mark.parametrize(
    "name",
    [
        *("teacher/../../out", "teacher//etc", "teacher/.hidden", "teacher/a\nb", "teacher/" + "x" * 300),
        *("teacher/weights.tmp", "teacher/weights.partial", "teacher/a\\b", "teacher/", "else/a"),
    ],
)
def test_names_that_lead_elsewhere_are_refused(copy: Path, tmp_path: Path, name: str) -> None:
    root = read_root(Folder(copy))
    file = next(iter(root.teacher.values()))
    (copy / "zarr.json").write_bytes(type(root)(root.manifest, root.samples, {name: file}).to_bytes())
    with pytest.raises(StoreError, match="do not use this store"):
        pull(copy, tmp_path / "b.zarr")
    assert not (tmp_path / "b.zarr").exists()


def test_links_in_the_copy_are_not_followed(written: Plan, tmp_path: Path) -> None:
    path = pull(written.path, tmp_path / "b.zarr")
    victim = tmp_path / "victim"
    victim.write_bytes((path / "layer_00/cls/c/0/0/0").read_bytes())
    (path / "layer_00/cls/c/0/0/0").unlink()
    (path / "layer_00/cls/c/0/0/0").symlink_to(victim)
    (path / "shards/00000.json").unlink()
    pull(written.path, path)
    assert not (path / "layer_00/cls/c/0/0/0").is_symlink()
    assert tree(path) == tree(written.path)
