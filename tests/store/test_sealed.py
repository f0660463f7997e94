from __future__ import annotations

from pathlib import Path

import numpy as np
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


def test_some_columns_are_decoded_alone(tmp_path: Path) -> None:
    write_sealed(tmp_path / "t.parquet", TABLE)
    table, _, _ = read_sealed(Folder(tmp_path), "t.parquet", SCHEMA, 3, 1 << 20, columns=["b"])
    assert table.equals(TABLE.select(["b"]))
    kept, _, _ = read_sealed(
        Folder(tmp_path), "t.parquet", SCHEMA, 3, 1 << 20, columns=["b"], keep_dictionaries=True
    )
    assert pa.types.is_dictionary(kept.schema.field("b").type)
    assert kept.cast(table.schema).equals(table)


def test_rows_keys_and_records_are_written_without_a_dictionary() -> None:
    table = pa.table({"row": [0, 1], "key": ["a", "b"], "label": ["x", "x"]})
    group = pq.ParquetFile(pa.BufferReader(sealed_bytes(table))).metadata.row_group(0)
    assert [group.column(place).has_dictionary_page for place in range(3)] == [False, False, True]


def read_hostile(tmp_path: Path, table: pa.Table, max_bytes: int) -> None:
    write_sealed(tmp_path / "t.parquet", table)
    read_sealed(Folder(tmp_path), "t.parquet", table.schema, len(table), max_bytes)


def test_a_short_file_of_many_bytes_is_not_decoded(tmp_path: Path) -> None:
    """Half a MB of zeros packs into a few bytes."""
    table = pa.table({"a": np.zeros(1, np.int64), "key": ["0" * 500_000]})
    with pytest.raises(CorruptStoreError, match=r"must hold at most 100000 bytes; it says that it holds \d+"):
        read_hostile(tmp_path, table, 100_000)


def test_a_dictionary_is_not_blown_up(tmp_path: Path) -> None:
    """One long string and a hundred references to it."""
    table = pa.table({"b": ["0" * 100_000] * 100})
    with pytest.raises(CorruptStoreError, match="must hold at most 1000000 bytes; b alone holds 10000000"):
        read_hostile(tmp_path, table, 1_000_000)


def test_a_list_of_many_equal_values_is_not_decoded(tmp_path: Path) -> None:
    table = pa.table({"a": pa.array([np.zeros(200_000)], pa.list_(pa.float64()))})
    with pytest.raises(CorruptStoreError, match="must hold at most 1000000 bytes; it says that it holds 160"):
        read_hostile(tmp_path, table, 1_000_000)
