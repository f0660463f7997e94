"""Parquet files that carry a hash of themselves, so that no altered byte is ever believed.

The seal is 32 hexadecimal digits in the footer's key-value metadata: the xxh3 of the file with those digits
replaced by zeros. Any Parquet reader opens the file as usual. A seal is no signature: what a sealed file says
of itself is held against bounds before it is decoded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import xxhash

from .deferred import Deferred
from .errors import CorruptStoreError
from .files import atomic_write, xxh3
from .remedies import delete_and_again
from .storage import Storage

if TYPE_CHECKING:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
else:
    pc, pq = Deferred("pyarrow.compute"), Deferred("pyarrow.parquet")

__all__ = ["read_sealed", "sealed_bytes", "write_sealed"]

_BLANK = b"0" * 32
_MARK = b"activault.seal"
_UNIQUE: Final = frozenset({"row", "key", "record"})
"""Columns whose values hardly repeat, written without a dictionary: it would only cost time."""


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
    repeating: Any = [name for name in table.schema.names if name not in _UNIQUE]
    with pq.ParquetWriter(
        sink, table.schema, compression="zstd", store_schema=False, use_dictionary=repeating
    ) as writer:
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
    storage: Storage,
    path: str,
    schema: pa.Schema,
    num_rows: int,
    max_bytes: int,
    *,
    columns: Collection[str] | None = None,
    keep_dictionaries: bool = False,
) -> tuple[pa.Table, dict[str, str], str]:
    """Table, footer metadata and xxh3 of a sealed Parquet file.

    Args:
        storage: the store.
        path: the file within it.
        schema: the columns that it must have.
        num_rows: how many rows it must say in its footer, before they are read.
        max_bytes: a larger file is not read at all, one that holds more than this is not decoded.
        columns: which to decode; all by default. Of 3 million samples all take 1.4 s, `status` 0.01 s.
        keep_dictionaries: leave columns of strings that repeat as Arrow dictionaries.

    Raises:
        CorruptStoreError: a byte of the file is not what was written, or it is not as asked.
        FileNotFoundError: there is no such file.
    """
    remedy = delete_and_again(path)
    # Not a memory map: what lies in one can change after its seal was checked, or be gone with the disk.
    data = storage.read(path, max_bytes)
    digits = _digits(data)
    if digits is None or data[digits] != _seal_of(data, digits):
        raise CorruptStoreError(f"{path} is not what was written (its seal disagrees); {remedy}")
    names = [name for name in schema.names if columns is None or name in columns]
    try:
        _check_schema(pq.read_schema(pa.BufferReader(data)), schema)
        file = pq.ParquetFile(pa.BufferReader(data), read_dictionary=_dictionaries(schema))
        _check_footer(file.metadata, schema, len(data), num_rows, max_bytes)
        table = file.read(columns=names)
        _check_strings(table, max_bytes)
        if not keep_dictionaries:
            table = table.cast(pa.schema([schema.field(name) for name in names]))
        metadata = {key.decode(): value.decode() for key, value in (file.metadata.metadata or {}).items()}
    except _Unlike as exc:
        raise CorruptStoreError(f"{path} {exc}; {remedy}") from exc
    except (pa.ArrowException, OSError, UnicodeDecodeError) as exc:
        raise CorruptStoreError(f"{path} cannot be read as Parquet ({exc}); {remedy}") from exc
    return table, metadata, xxh3(data)


class _Unlike(Exception):  # noqa: N818  (never leaves this file)
    """The file is not as asked; says how."""


def _dictionaries(schema: pa.Schema) -> list[str]:
    """Columns that are read as dictionaries: a short file cannot make long strings of them."""
    return [field.name for field in schema if pa.types.is_string(field.type) and field.name not in _UNIQUE]


def _check_schema(found: pa.Schema, schema: pa.Schema) -> None:
    if not found.equals(schema):
        raise _Unlike(f"must have the columns {schema.names}; it has {found.names}")


def _check_footer(metadata: Any, schema: pa.Schema, size: int, num_rows: int, max_bytes: int) -> None:
    """Hold what the footer states against what is asked and allowed, before anything is decoded.

    Arrow believes a page's own header beyond this: one that lies can still make it allocate 2 GiB.
    """
    if metadata.num_rows != num_rows:
        raise _Unlike(f"must have {num_rows} rows; it has {metadata.num_rows}")
    if num_rows > size:
        # Nulls and equal values pack into nothing, but keys and records differ: 2.6 bytes a row at least.
        raise _Unlike(f"must have a byte a row; it has {size} bytes for {num_rows} rows")
    groups = [metadata.row_group(place) for place in range(metadata.num_row_groups)]
    if any(group.num_rows < 1 for group in groups) or sum(group.num_rows for group in groups) != num_rows:
        raise _Unlike(f"must have {num_rows} rows in its parts; they say otherwise")
    nested = {field.name for field in schema if pa.types.is_list(field.type)}
    total = 0
    for group in groups:
        for place in range(group.num_columns):
            column = group.column(place)
            name = column.path_in_schema.partition(".")[0]
            if name not in nested and column.num_values != group.num_rows:
                raise _Unlike(f"must have a value a row in {name}; it says otherwise")
            if name in _UNIQUE and column.has_dictionary_page:
                raise _Unlike(f"must have no dictionary for {name}; it has one")
            # Equal values pack into nothing; lists hold float64.
            total += max(column.total_uncompressed_size, 8 * column.num_values * (name in nested))
    if total > max_bytes:
        raise _Unlike(f"must hold at most {max_bytes} bytes; it says that it holds {total}")


def _check_strings(table: pa.Table, max_bytes: int) -> None:
    """Refuse dictionaries that would make too much of their indices."""
    for name, column in zip(table.column_names, table.columns, strict=True):
        if pa.types.is_dictionary(column.type):
            chunks: list[Any] = column.chunks
            # Without pyarrow.compute at first, which takes 0.1 s to import.
            if sum(_longest(chunk.dictionary) * len(chunk) for chunk in chunks) <= max_bytes:
                continue
            taken: list[Any] = [pc.binary_length(chunk.dictionary).take(chunk.indices) for chunk in chunks]
            total = sum(pc.sum(lengths).as_py() or 0 for lengths in taken)
            if total > max_bytes:
                raise _Unlike(f"must hold at most {max_bytes} bytes; {name} alone holds {total}")


def _longest(words: Any) -> int:
    """Bytes of the longest of these strings."""
    if len(words) == 0:
        return 0
    ends = np.frombuffer(words.buffers()[1], np.int32)[words.offset : words.offset + len(words) + 1]
    return int(np.diff(ends).max())
