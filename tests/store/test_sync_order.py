"""What is brought to disk before what, so that a power cut never leaves a record of what is not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from activault.store import pull, verify_store
from activault.store.repair import forget_shards, rebuild
from activault.store.repair_plan import plan_repair

from .conftest import Plan

NAMED = "named "


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Files and folders as they are brought to disk, and files as they get their names."""
    names: list[str] = []
    replace = os.replace

    def note(handle: int) -> None:
        names.append(str(Path(f"/proc/self/fd/{handle}").readlink()))

    def named(source: Path, target: Path) -> None:
        replace(source, target)
        names.append(NAMED + str(target))

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(os, "replace", named)
    return names


def first(names: list[str], part: str) -> int:
    return next(place for place, name in enumerate(names) if part in name)


def assert_in_order(path: Path, synced: list[str]) -> None:
    """No record before its files and folders, and no file before the old index and record are gone."""
    arrays = [str(file) for file in path.glob("layer_*/*/c/0/0/0")]
    assert len(arrays) == 9
    folders = {str(folder) for folder in path.glob("layer_*/*/c/0/**") if folder.is_dir()}
    folders |= {str(folder) for folder in path.glob("layer_*/*/c")}
    folders |= {str(folder) for folder in path.glob("layer_*/*") if folder.is_dir()}
    record, shards = synced.index(f"{NAMED}{path}/shards/00000.json"), str(path / "shards")
    assert folders <= set(synced[:record])
    for file in arrays:
        assert synced.index(NAMED + file) < synced.index(str(Path(file).parent))
    places = [synced.index(NAMED + file) for file in (*arrays, f"{path}/shards/00000.stats.safetensors")]
    contents = [place for place, name in enumerate(synced) if "0-0-0.tmp" in name or "/c/0/0/.0." in name]
    assert len([name for name in contents if name < record]) == 9
    removed = synced.index(str(path))
    assert removed < synced.index(shards, removed) < min(places)
    assert max(places) < record
    assert shards in synced[max(places) : record]
    assert ".00000" in synced[record - 1]
    assert synced[record + 1] == shards


def test_everything_is_on_disk_before_the_record(plan: Plan, synced: list[str]) -> None:
    writer = plan.open()
    synced.clear()
    plan.publish(writer, 0)
    assert_in_order(plan.path, synced)
    assert synced[-1] == str(plan.path / "shards")
    assert not [name for name in synced if name.startswith(NAMED) and "/shards/" in name and ".tmp" in name]


def test_so_it_is_in_a_copy(written: Plan, plan: Plan, synced: list[str]) -> None:
    """Of one shard that was copied before: what is left of its index and record goes first."""
    path = pull(written.path, plan.path)
    for name in ("index.parquet", "shards/00000.json"):
        (path / name).unlink()
    for file in path.glob("layer_*/*/c/0/0/0"):
        file.unlink()
    synced.clear()
    pull(written.path, path, num_threads=1)
    assert_in_order(path, synced)


def test_a_repair_brings_the_removal_of_the_index_to_disk(copy: Path, synced: list[str]) -> None:
    (copy / "layer_00/cls/c/0/0/0").unlink()
    repair = plan_repair(verify_store(copy))
    rebuild(copy, repair)
    synced.clear()
    assert forget_shards(copy, repair) == [0]
    shards = str(copy / "shards")
    brought = [name for name in synced if not name.startswith(NAMED)]
    assert brought == [shards, str(copy), shards], "records, then the index's removal, then the record's"
