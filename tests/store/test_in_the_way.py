"""Folders and links where a file of a store should be: named, and no reason to lose anything."""

from __future__ import annotations

import pytest

from activault.store import StoreError, verify_store

from .conftest import Plan


@pytest.mark.parametrize("way", ["folder", "link to itself"])
def test_what_is_in_a_files_place_is_named(plan: Plan, way: str) -> None:
    plan.write()
    record, file = plan.path / "shards/00001.json", plan.path / "layer_00/cls/c/1/0/0"
    for path in (plan.path / "index.parquet", record, file):
        path.unlink()
    file.mkdir() if way == "folder" else file.symlink_to(file)
    with plan.open() as writer:
        assert writer.unfinished == [1]
        if way == "folder":
            with pytest.raises(StoreError, match=r"remove the folder .*layer_00/cls/c/1/0/0, which is in"):
                plan.publish(writer, 1)
            file.rmdir()
        plan.publish(writer, 1)
        writer.complete()
    assert verify_store(plan.path, deep=True).ok


@pytest.mark.parametrize("way", ["folder", "link to itself"])
def test_a_recorded_file_that_is_none_makes_its_shard_unfinished(plan: Plan, way: str) -> None:
    plan.write()
    file = plan.path / "layer_00/cls/c/1/0/0"
    file.unlink()
    file.mkdir() if way == "folder" else file.symlink_to(file)
    with plan.open() as writer:
        assert writer.unfinished == [1]
    faults = [fault for fault in verify_store(plan.path).faults if fault.where == "layer_00/cls/c/1/0/0"]
    assert len(faults) == 1
    assert "remove it" in faults[0].detail
