"""Parquet files that carry a hash of themselves, so that no altered byte is ever believed.

The seal is 32 hexadecimal digits in the footer's key-value metadata: the xxh3 of the file with those digits
replaced by zeros. Any Parquet reader opens the file as usual.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from .errors import CorruptStoreError
from .files import atomic_write, xxh3
from .storage import Storage

__all__ = ["read_sealed", "sealed_bytes", "write_sealed"]

_BLANK = b"0" * 32
_MARK = b"activault.seal"


def _digits(data: bytes | bytearray) -> slice | None:
    """Where the seal's digits stand: after the last mark, one thrift field header and one length byte."""
    mark = data.rfind(_MARK)
    if mark < 0:
        return None
    start = mark + len(_MARK) + 2
    return slice(start, start + len(_BLANK))


def _seal_of(data: bytes | bytearray, digits: slice) -> bytes:
    state = xxhash.xxh3_128(memoryview(data)[: digits.start])
    state.update(_BLANK)
    state.update(memoryview(data)[digits.stop :])
    return state.hexdigest().encode()


def sealed_bytes(table: pa.Table, metadata: Mapping[str, str] | None = None) -> bytes:
    """`table` as a sealed Parquet file, with further footer metadata."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, compression="zstd", store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({**(metadata or {}), _MARK.decode(): _BLANK.decode()})
    data = bytearray(sink.getvalue().to_pybytes())
    digits = _digits(data)
    assert digits is not None, "pyarrow left out the footer's metadata"
    assert data[digits] == _BLANK, "pyarrow wrote the footer's metadata in an unknown way"
    data[digits] = _seal_of(data, digits)
    return bytes(data)


def write_sealed(path: Path, table: pa.Table, metadata: Mapping[str, str] | None = None) -> str:
    """Write a sealed Parquet file atomically; returns the xxh3 of its bytes."""
    data = sealed_bytes(table, metadata)
    atomic_write(path, data)
    return xxh3(data)


def read_sealed(
    storage: Storage, path: str, schema: pa.Schema, num_rows: int, max_bytes: int
) -> tuple[pa.Table, dict[str, str], str]:
    """Table, footer metadata and xxh3 of a sealed Parquet file.

    Args:
        storage: the store.
        path: the file within it.
        schema: the columns that it must have.
        num_rows: how many rows it must say in its footer, before they are read.
        max_bytes: a larger file is not read at all.

    Raises:
        CorruptStoreError: a byte of the file is not what was written, or it is not as asked.
        FileNotFoundError: there is no such file.
    """
    remedy = f"delete {path} and run the same `activault extract` again"
    data = storage.read(path, max_bytes)
    digits = _digits(data)
    if digits is None or data[digits] != _seal_of(data, digits):
        raise CorruptStoreError(f"{path} is not what was written (its seal disagrees); {remedy}")
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        if file.metadata.num_rows != num_rows:
            raise CorruptStoreError(
                f"{path} must have {num_rows} rows; it has {file.metadata.num_rows}; {remedy}"
            )
        table = file.read()
    except (pa.ArrowException, OSError) as exc:
        raise CorruptStoreError(f"{path} cannot be read as Parquet ({exc}); {remedy}") from exc
    metadata = {key.decode(): value.decode() for key, value in (file.metadata.metadata or {}).items()}
    if not table.schema.equals(schema):
        raise CorruptStoreError(
            f"{path} must have the columns {schema.names}; it has {table.schema.names}; {remedy}"
        )
    return table, metadata, xxh3(data)
