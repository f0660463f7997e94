from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from activault.store.errors import CorruptStoreError
from activault.store.sealed import read_sealed, sealed_bytes, write_sealed
from activault.store.storage import Folder

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string())])
TABLE = pa.table({"a": [1, 2, 3], "b": ["x", None, "z"]}, schema=SCHEMA)
SEALED = sealed_bytes(TABLE)


def test_a_sealed_file_is_plain_parquet(tmp_path: Path) -> None:
    write_sealed(tmp_path / "t.parquet", TABLE, {"more": "words"})
    assert pq.read_table(tmp_path / "t.parquet").equals(TABLE)
    table, metadata, _ = read_sealed(Folder(tmp_path), "t.parquet", SCHEMA, 3, 1 << 20)
    assert table.equals(TABLE)
    assert metadata["more"] == "words"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(st.data())
def test_any_altered_byte_is_seen(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "t.parquet"
    content = bytearray(SEALED)
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    with pytest.raises(CorruptStoreError, match="its seal disagrees"):
        read_sealed(Folder(path.parent), path.name, SCHEMA, 3, 1 << 20)


@pytest.mark.parametrize("size", [0, 10, 500])
def test_a_truncated_file_is_seen(tmp_path: Path, size: int) -> None:
    path = tmp_path / "t.parquet"
    write_sealed(path, TABLE)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(CorruptStoreError, match="its seal disagrees"):
        read_sealed(Folder(path.parent), path.name, SCHEMA, 3, 1 << 20)


def test_other_columns_are_refused(tmp_path: Path) -> None:
    write_sealed(tmp_path / "t.parquet", TABLE)
    with pytest.raises(CorruptStoreError, match=r"must have the columns \['c'\]"):
        read_sealed(Folder(tmp_path), "t.parquet", pa.schema([("c", pa.int64())]), 3, 1 << 20)


def test_other_rows_are_refused(tmp_path: Path) -> None:
    write_sealed(tmp_path / "t.parquet", TABLE)
    with pytest.raises(CorruptStoreError, match="must have 4 rows; it has 3"):
        read_sealed(Folder(tmp_path), "t.parquet", SCHEMA, 4, 1 << 20)


def test_a_larger_file_is_not_read(tmp_path: Path) -> None:
    write_sealed(tmp_path / "t.parquet", TABLE)
    with pytest.raises(CorruptStoreError, match=r"t.parquet holds at most 100 bytes; it has"):
        read_sealed(Folder(tmp_path), "t.parquet", SCHEMA, 3, 100)
