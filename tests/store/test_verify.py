from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from activault.store import CorruptStoreError, NotAStoreError, open_store, verify_store

from .conftest import Plan

EVERY_FILE = {
    "manifest": "zarr.json",
    "layer group": "layer_00/zarr.json",
    "array metadata": "layer_02/cls/zarr.json",
    "array": "layer_04/patches/c/2/0/0",
    "short last shard": "layer_04/registers/c/3/0/0",
    "record": "shards/00001.json",
    "statistics": "shards/00003.stats.safetensors",
    "index": "index.parquet",
    "samples": "samples.parquet",
    "teacher weights": "teacher/model.safetensors",
    "teacher config": "teacher/config.json",
}


def named(path: Path, **options: bool) -> set[str]:
    return {fault.where for fault in verify_store(path, **options).faults}


def test_a_sound_store_has_no_faults(written: Plan) -> None:
    told: list[tuple[int, int]] = []
    report = verify_store(written.path, deep=True, complete=True, progress=lambda *done: told.append(done))
    assert report.ok
    assert report.complete
    assert (report.finished_shards, report.num_shards) == (4, 4)
    assert told[-1][0] == told[-1][1]
    assert sorted(told) == told


@pytest.mark.parametrize("shards", [[], [1], [0, 3]], ids=str)
def test_an_unfinished_sound_store_is_ok_unless_it_must_be_complete(plan: Plan, shards: list[int]) -> None:
    plan.write(shards)
    report = verify_store(plan.path, deep=True)
    assert report.ok
    assert report.finished_shards == len(shards)
    faults = verify_store(plan.path, complete=True).faults
    assert [str(fault) for fault in faults] == [
        f"store: must be complete; {len(shards)} of 4 shards are finished and index.parquet is not written; "
        "run again what made the store (extract, import, pull or merge)"
    ]


@pytest.mark.parametrize("name", EVERY_FILE.values(), ids=EVERY_FILE)
def test_a_deleted_file_is_named(copy: Path, name: str) -> None:
    (copy / name).unlink()
    if name == "zarr.json":
        with pytest.raises(NotAStoreError):
            verify_store(copy)
    elif name == "index.parquet":
        assert named(copy, complete=True) == {"store"}
    else:
        assert name in named(copy)


@pytest.mark.parametrize("name", EVERY_FILE.values(), ids=EVERY_FILE)
def test_a_truncated_file_is_named(copy: Path, name: str) -> None:
    (copy / name).write_bytes((copy / name).read_bytes()[:-1])
    assert name in named(copy)


@pytest.mark.parametrize("name", ["shards/00001.json", "samples.parquet", "teacher/config.json"])
def test_a_flipped_bit_in_an_unfinished_store_is_named(plan: Plan, name: str) -> None:
    plan.write([0, 1])
    content = bytearray((plan.path / name).read_bytes())
    content[len(content) // 2] ^= 4
    (plan.path / name).write_bytes(content)
    assert named(plan.path, deep=True) == {name}


def test_an_altered_record_makes_its_rows_unreadable_and_its_shard_unfinished(plan: Plan) -> None:
    plan.write([0, 1])
    file = plan.path / "shards" / "00001.json"
    file.write_bytes(file.read_bytes().replace(b"truncated", b"truncatee"))
    store = open_store(plan.path)
    with pytest.raises(CorruptStoreError, match="its checksum disagrees"):
        store.read([16], [0])
    assert np.array_equal(store.read([0], [0]), plan.stored[:1, :1])
    assert plan.open().unfinished == [1, 2, 3]


def test_every_fault_is_listed_not_the_first(copy: Path) -> None:
    faults: dict[str, Callable[[Path], object]] = {
        "layer_00/cls/c/0/0/0": lambda file: file.unlink(),
        "layer_00/cls/c/1/0/0": lambda file: file.write_bytes(b"x"),
        "layer_02/zarr.json": lambda file: file.unlink(),
        "shards/00002.json": lambda file: file.unlink(),
        "teacher/config.json": lambda file: file.write_text("[]"),
        "samples.parquet": lambda file: file.write_bytes(b""),
    }
    for name, damage in faults.items():
        damage(copy / name)
    assert named(copy, deep=True) == set(faults)


def test_samples_of_another_store_are_named(copy: Path, plan: Plan) -> None:
    plan.samples = plan.samples.slice(0, 50).set_column(2, "label", plan.samples["label"].fill_null("x"))
    plan.write()
    (copy / "samples.parquet").write_bytes((plan.path / "samples.parquet").read_bytes())
    assert named(copy) == {"samples.parquet"}
    with pytest.raises(CorruptStoreError, match=r"samples.parquet is of another store"):
        _ = open_store(copy).samples


def test_a_record_of_another_store_is_named(copy: Path, plan: Plan, make_plan: Callable[..., Plan]) -> None:
    other = make_plan("other.zarr", row_seed=5)
    other.write([1])
    (copy / "shards" / "00001.json").write_bytes((other.path / "shards" / "00001.json").read_bytes())
    assert named(copy) == {"shards/00001.json"}


def test_a_record_beyond_the_last_shard_is_named(copy: Path) -> None:
    (copy / "shards" / "00009.json").write_bytes((copy / "shards" / "00001.json").read_bytes())
    assert named(copy) == {"shards/00009.json"}
    assert open_store(copy).complete


def test_leftovers_are_no_faults(copy: Path) -> None:
    (copy / "layer_00" / "cls" / "c" / "0" / "0" / "0.abc.partial").write_bytes(b"x")
    (copy / "shards" / ".00001.json.abc.tmp").write_bytes(b"x")
    assert verify_store(copy, deep=True).ok


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotAStoreError, match="is not an activation store"):
        verify_store(tmp_path)
