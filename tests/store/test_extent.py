"""Files and bytes that follow from a manifest are those that a finished store has."""

from __future__ import annotations

from typing import Any

import pytest

from activault.store import TokenLayout
from activault.store.chunk_index import read_chunk_index
from activault.store.extent import index_bytes, num_array_files, num_files
from activault.store.records import read_record
from activault.store.storage import Folder

from .conftest import MakePlan


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"kinds": ("cls",), "layers": (4,)},
        {"shard_rows": 64, "chunk_rows": 8},
        {"layout": TokenLayout(num_cls=0, num_registers=0, grid=(2, 3)), "kinds": ("patches",)},
    ],
    ids=["all", "cls", "one-shard", "patches"],
)
def test_files_are_counted_exactly(make_plan: MakePlan, changes: dict[str, Any]) -> None:
    plan = make_plan(**changes)
    plan.write()
    files = [path for path in plan.path.rglob("*") if path.is_file()]
    assert num_files(plan.manifest, num_teacher_files=2) == len(files)
    values = [path for path in files if "/c/" in path.as_posix()]
    assert num_array_files(plan.manifest) == len(values)


def test_a_file_is_its_chunks_and_an_index_of_fixed_size(make_plan: MakePlan) -> None:
    plan = make_plan(shard_rows=24, chunk_rows=4)
    plan.write()
    storage = Folder(plan.path)
    found = read_record(storage, plan.manifest, 0)
    assert found is not None
    for record in found[0].files:
        with storage.open(record.path, record.bytes) as file:
            index = read_chunk_index(file, record, plan.manifest.chunks_per_shard)
        assert record.bytes == int(index.entries.sum(axis=1).max()) + index_bytes(plan.manifest)
