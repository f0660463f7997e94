"""What is brought to disk before what, so that a power cut never leaves a record of what is not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from activault.store import pull, verify_store
from activault.store.repair import forget_shards, rebuild
from activault.store.repair_plan import plan_repair

from .conftest import Plan


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Files and folders in the order in which they are brought to disk."""
    names: list[str] = []

    def note(handle: int) -> None:
        names.append(str(Path(f"/proc/self/fd/{handle}").readlink()))

    monkeypatch.setattr(os, "fsync", note)
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
    record, statistics = first(synced, "/.00000.json.tmp"), first(synced, "/.00000.stats")
    assert folders <= set(synced[:record])
    places = [place for place, name in enumerate(synced) if "/c/0/0/.0." in name]
    assert len(places) == 9
    removed = synced.index(str(path))
    assert removed < synced.index(str(path / "shards"), removed) < min(places)
    assert max(places) < statistics < record
    assert synced[record + 1] == str(path / "shards")


def test_everything_is_on_disk_before_the_record(plan: Plan, synced: list[str]) -> None:
    writer = plan.open()
    synced.clear()
    plan.publish(writer, 0)
    assert_in_order(plan.path, synced)
    assert synced[-1] == str(plan.path / "shards")


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
    assert synced == [shards, str(copy), shards], "records first, then the index's removal, then the record's"
