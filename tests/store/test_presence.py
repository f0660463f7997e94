from __future__ import annotations

from pathlib import Path

import pytest

from activault.store import Store
from activault.store.presence import file_faults, has_record, shards_named
from activault.store.records import mark_path, record_path, statistics_path
from activault.store.storage import Folder

from .conftest import Plan, make_manifest

NAMES = {
    "00000.json",
    "00002.json",
    "00001.stats.safetensors",
    ".00003.json.tmp",
    "00009.json",  # there are four shards
    "000001.json",
    "\u0660\u0660\u0660\u0660\u0661.json",  # digits, but not ours
    "00001.json.bak",
    "1.json",
    "x",
}


@pytest.mark.parametrize(
    ("path_of", "shards"), [(record_path, {0, 2}), (statistics_path, {1}), (mark_path, {3})]
)
def test_a_shard_has_one_name_of_each_sort(path_of: object, shards: set[int]) -> None:
    assert shards_named(NAMES, path_of, make_manifest()) == shards  # type: ignore[arg-type]


def test_a_record_that_is_known_is_not_parsed(copy: Path, written: Plan) -> None:
    storage = Folder(copy)
    assert has_record(storage, written.manifest, 1)
    (copy / record_path(1)).write_bytes(b"{}")
    assert not has_record(storage, written.manifest, 1)
    assert has_record(storage, written.manifest, 1, known=b"{}")
    (copy / record_path(1)).unlink()
    assert not has_record(storage, written.manifest, 1)


def test_files_that_are_not_as_recorded_are_named(copy: Path, store: Store) -> None:
    record = store._shards.record(1)
    assert not list(file_faults(Folder(copy), record))
    missing, short, folder = (record.files[place].path for place in (0, 2, 4))
    (copy / missing).unlink()
    (copy / short).write_bytes(b"x")
    (copy / folder).unlink()
    (copy / folder).mkdir()
    assert dict(file_faults(Folder(copy), record)) == {
        missing: "is missing",
        short: f"must have {record.files[2].bytes} bytes; it has 1",
        folder: f"is no file of a store ({folder} must be a plain file; it is a pipe, a device or a folder; "
        "remove it)",
    }
