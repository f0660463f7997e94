"""`index.parquet` is decoded as it is asked for: what it costs, and when what is wrong with it is found."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from activault.store import CorruptStoreError, open_store, verify_store
from activault.store.index import read_index
from activault.store.records import read_record
from activault.store.restoring import restore_records
from activault.store.root import read_root
from activault.store.sealed import SealedTable, write_sealed
from activault.store.storage import Folder

from .conftest import MakePlan, Plan


def rewrite(store: Path, change: Callable[[pa.Table], pa.Table], group_rows: int | None = None) -> None:
    """The index with another table, or other row groups, under the same summary."""
    table = pq.read_table(store / "index.parquet")
    metadata = {"activault.index": table.schema.metadata[b"activault.index"].decode()}
    write_sealed(
        store / "index.parquet", change(table.replace_schema_metadata(None)), metadata, group_rows=group_rows
    )


def with_record(table: pa.Table, shard: int, record: Any) -> pa.Table:
    records = table["record"].to_pylist()
    records[shard] = record
    place = table.schema.get_field_index("record")
    column = record if isinstance(record, pa.Array) else pa.array(records, pa.string())
    return table.set_column(place, "record", column)


@pytest.mark.parametrize("group_rows", [1, 3, 5, 12, 13, None])
def test_any_row_groups_are_read(copy: Path, written: Plan, group_rows: int | None) -> None:
    rewrite(copy, lambda table: table, group_rows)
    store, same = open_store(copy), open_store(written.path)
    for shard in (3, 0, 2, 1):
        found = read_record(Folder(copy), written.manifest, shard)
        assert found is not None
        assert tuple(store.chunks.files(shard)) == tuple(same.chunks.files(shard)[:]) == found[0].files
    assert store.statistics(4, "patches") == same.statistics(4, "patches")
    assert verify_store(copy, deep=True).faults == ()


def test_a_writer_groups_records_where_there_are_many(make_plan: MakePlan) -> None:
    plan = make_plan(num_rows=150, shard_rows=1, chunk_rows=1, layers=(0,), kinds=("cls",))
    plan.write()
    file = pq.ParquetFile(plan.path / "index.parquet")
    groups = [file.metadata.row_group(place).num_rows for place in range(file.metadata.num_row_groups)]
    assert groups == [64, 64, 23]
    assert verify_store(plan.path, deep=True).faults == ()
    assert open_store(plan.path).statistics(0, "cls").count == 150


def test_a_record_decodes_its_row_group_alone(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rewrite(copy, lambda table: table, 2)
    decoded: list[tuple[list[str], range | None]] = []
    original = SealedTable.read

    def counting(
        self: SealedTable, columns: Any = None, groups: range | None = None, **more: Any
    ) -> pa.Table:
        decoded.append((list(columns), groups))
        return original(self, columns, groups, **more)

    monkeypatch.setattr(SealedTable, "read", counting)
    index = read_index(Folder(copy), read_root(Folder(copy)))
    assert index is not None
    assert decoded == [(["shard"], None)]
    for shard in (2, 3, 2):
        index.record(shard)
    assert decoded[1:] == [(["record"], range(1, 2))]


def test_a_record_that_is_no_text(copy: Path) -> None:
    def harm(table: pa.Table) -> pa.Table:
        records = [text and text.encode() for text in table["record"].to_pylist()]
        records[1] = b"\xff\xfe"
        return with_record(table, 1, pa.array(records, pa.binary()).view(pa.string()))

    rewrite(copy, harm)
    store = open_store(copy)
    with pytest.raises(CorruptStoreError, match=r"the record of shard 1 is no text; delete index\.parquet"):
        store.read([16], [0])
    assert store.read([0], [0]).shape[0] == 1
    assert {fault.where for fault in verify_store(copy).faults} == {"index.parquet"}


def test_an_index_that_cannot_be_decoded_restores_nothing(copy: Path) -> None:
    """A page of zeros under a sound seal: found when its row group is decoded."""
    rewrite(copy, lambda table: table, 4)
    data = bytearray((copy / "index.parquet").read_bytes())
    file = pq.ParquetFile(pa.BufferReader(bytes(data)))
    place = file.schema_arrow.get_field_index("record")
    column = file.metadata.row_group(0).column(place)
    stop, half = column.data_page_offset + column.total_compressed_size, column.total_compressed_size // 2
    data[stop - half : stop] = bytes(half)
    seal(data)
    (copy / "index.parquet").write_bytes(data)
    store = open_store(copy)
    with pytest.raises(CorruptStoreError, match=r"index\.parquet cannot be read as Parquet"):
        store.read([0], [0])
    assert store.statistics(0, "cls").count
    assert {fault.where for fault in verify_store(copy).faults} == {"index.parquet"}
    (copy / "shards" / "00001.json").unlink()
    assert restore_records(copy) == []


def seal(data: bytearray) -> None:
    from activault.store.files import xxh3

    start = data.rfind(b"activault.seal") + 16
    data[start : start + 32] = b"0" * 32
    data[start : start + 32] = xxh3(data).encode()


@pytest.mark.parametrize("shards", [[0, 1, 1, 3], [0, 1, 2, None], [1, 0, 2, 3]], ids=str)
def test_missing_and_repeated_shards_are_found_at_opening(copy: Path, shards: list[int | None]) -> None:
    def harm(table: pa.Table) -> pa.Table:
        column = pa.array(shards + [None] * (len(table) - 4), pa.int64())
        return table.set_column(table.schema.get_field_index("shard"), "shard", column)

    rewrite(copy, harm)
    with pytest.raises(CorruptStoreError, match="must have a record for each of 4 shards"):
        open_store(copy)


OPEN = """
import re, sys
from pathlib import Path
from activault.store import open_store
open_store(sys.argv[2])  # with all that is imported for it

def resident(name):
    return int(re.search(name + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) << 10

before = resident("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
store = open_store(sys.argv[1])
print(resident("VmHWM") - before)
"""


def test_opening_decodes_no_record(copy: Path, written: Plan) -> None:
    """Of records of 64 MB in all, which pack into a few kilobytes, nothing is in memory."""
    text = json.dumps({"filled": "x" * (16 << 20)})
    rewrite(copy, lambda table: with_record(table, 0, pa.array([text] * 4 + [None] * 9, pa.string())), 1)
    arguments = [sys.executable, "-c", OPEN, str(copy), str(written.path)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 8 << 20
