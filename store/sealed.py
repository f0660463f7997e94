"""Parquet files that carry a hash of themselves, so that no altered byte is ever believed.

A table in, a sealed file out; back comes a `SealedTable`, which decodes the columns and row groups that it is
asked for. The seal is 32 hexadecimal digits in the footer's key-value metadata: the xxh3 of the file with
those digits replaced by zeros. Any Parquet reader opens the file as usual. A seal is no signature: what a
sealed file says of itself is held against bounds before it is decoded.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash

from .arrow import pa, pc, pq
from .errors import CorruptStoreError
from .files import atomic_write, xxh3
from .remedies import delete_and_again
from .storage import Storage

__all__ = ["SealedTable", "open_sealed", "read_sealed", "sealed_bytes", "write_sealed"]

_BLANK = b"0" * 32
_MARK = b"activault.seal"
_UNIQUE: Final = frozenset({"row", "key", "record"})
"""Columns whose values hardly repeat, written without a dictionary: it would only cost time."""
_ROWS_AT_ONCE: Final = 1 << 20
"""Rows whose dictionaries are made plain at a time; as many as pyarrow writes in one row group."""


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


def sealed_bytes(
    table: pa.Table, metadata: Mapping[str, str] | None = None, group_rows: int | None = None
) -> bytes:
    """`table` as a sealed Parquet file, with further footer metadata.

    Args:
        table: what it holds.
        metadata: more of the footer's.
        group_rows: rows that a reader can decode alone; 1,048,576 by default.
    """
    sink = pa.BufferOutputStream()
    repeating: Any = [name for name in table.schema.names if name not in _UNIQUE]
    with pq.ParquetWriter(
        sink, table.schema, compression="zstd", store_schema=False, use_dictionary=repeating
    ) as writer:
        writer.write_table(table, row_group_size=group_rows)
        writer.add_key_value_metadata({**(metadata or {}), _MARK.decode(): _BLANK.decode()})
    data = bytearray(sink.getvalue().to_pybytes())
    digits = _digits(data)
    assert digits is not None, "pyarrow left out the footer's metadata"
    assert data[digits] == _BLANK, "pyarrow wrote the footer's metadata in an unknown way"
    data[digits] = _seal_of(data, digits)
    return bytes(data)


def write_sealed(
    path: Path, table: pa.Table, metadata: Mapping[str, str] | None = None, group_rows: int | None = None
) -> str:
    """Write a sealed Parquet file atomically; returns the xxh3 of its bytes. See `sealed_bytes`."""
    data = sealed_bytes(table, metadata, group_rows)
    atomic_write(path, data)
    return xxh3(data)


class SealedTable:
    """A sealed file whose seal and footer were checked, with its bytes; see `open_sealed`.

    May be shared between threads, and with a child that was forked: there is no lock in it.
    """

    def __init__(self, path: str, data: bytes, schema: pa.Schema, num_rows: int, max_bytes: int) -> None:
        self._path = path
        self._data = data
        self._schema = schema
        self._max_bytes = max_bytes
        with self._told():
            file = pq.ParquetFile(pa.BufferReader(data))
            _check_schema(file.schema_arrow, schema)
            _check_footer(file.metadata, schema, len(data), num_rows, max_bytes)
            self._footer = file.metadata
            sizes = (file.metadata.row_group(place).num_rows for place in range(file.metadata.num_row_groups))
            self.group_starts = list(accumulate(sizes, initial=0))
            """First row of each row group, and the number of rows."""
            found = (file.metadata.metadata or {}).items()
            self.metadata = {key.decode(): value.decode() for key, value in found}
            """The footer's."""

    @property
    def num_groups(self) -> int:
        """Row groups."""
        return len(self.group_starts) - 1

    @property
    def xxh3(self) -> str:
        """Of the file's bytes."""
        return xxh3(self._data)

    def group_of(self, row: int) -> int:
        """The row group that a row is in."""
        return bisect_right(self.group_starts, row) - 1

    def read(
        self,
        columns: Collection[str] | None = None,
        groups: range | None = None,
        *,
        keep_dictionaries: bool = False,
    ) -> pa.Table:
        """Some row groups of some columns, decoded and checked anew; all by default.

        Raises:
            CorruptStoreError: they cannot be decoded, or make more than what may be decoded.
        """
        names = [name for name in self._schema.names if columns is None or name in columns]
        plain = pa.schema([self._schema.field(name) for name in names])
        parts: list[pa.Table] = []
        sizes = dict.fromkeys(names, 0)
        with self._told():
            reader = pa.BufferReader(self._data)
            file = pq.ParquetFile(reader, metadata=self._footer, read_dictionary=_dictionaries(self._schema))
            for run in self._runs(range(self.num_groups) if groups is None else groups):
                part = file.read_row_groups(list(run), columns=names, use_threads=len(names) > 1)
                if len(part) != (rows := self.group_starts[run.stop] - self.group_starts[run.start]):
                    raise _Unlike(f"must have {rows} rows in a part; it has {len(part)}")
                self._count(part, sizes)
                parts.append(part if keep_dictionaries else part.cast(plain))
        return pa.concat_tables(parts)

    def _runs(self, groups: range) -> Iterator[range]:
        """Row groups to be decoded together: a million rows, so that their dictionaries are soon let go."""
        first = groups.start
        for group in groups:
            if self.group_starts[group + 1] - self.group_starts[first] >= _ROWS_AT_ONCE:
                yield range(first, group + 1)
                first = group + 1
        if first < groups.stop:
            yield range(first, groups.stop)

    def _count(self, part: pa.Table, sizes: dict[str, int]) -> None:
        """Refuse dictionaries that would make too much of their indices, all parts together."""
        for name, column in zip(part.column_names, part.columns, strict=True):
            if pa.types.is_dictionary(column.type):
                sizes[name] += _string_bytes(column, self._max_bytes // self.num_groups)
                if sizes[name] > self._max_bytes:
                    raise _Unlike(
                        f"must hold at most {self._max_bytes} bytes; {name} alone holds {sizes[name]}"
                    )

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except _Unlike as exc:
            raise CorruptStoreError(f"{self._path} {exc}; {delete_and_again(self._path)}") from exc
        except (pa.ArrowException, OSError, UnicodeDecodeError) as exc:
            raise CorruptStoreError(
                f"{self._path} cannot be read as Parquet ({exc}); {delete_and_again(self._path)}"
            ) from exc


def open_sealed(storage: Storage, path: str, schema: pa.Schema, num_rows: int, max_bytes: int) -> SealedTable:
    """A sealed Parquet file, read and checked but for what is in its columns, which are not decoded yet.

    Args:
        storage: the store.
        path: the file within it.
        schema: the columns that it must have.
        num_rows: how many rows it must say in its footer, before they are read.
        max_bytes: a larger file is not read at all, one that holds more than this is not decoded.

    Raises:
        CorruptStoreError: a byte of the file is not what was written, or it is not as asked.
        FileNotFoundError: there is no such file.
    """
    # Not a memory map: what lies in one can change after its seal was checked, or be gone with the disk.
    data = storage.read(path, max_bytes)
    digits = _digits(data)
    if digits is None or data[digits] != _seal_of(data, digits):
        raise CorruptStoreError(
            f"{path} is not what was written (its seal disagrees); {delete_and_again(path)}"
        )
    return SealedTable(path, data, schema, num_rows, max_bytes)


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
    """Table, footer metadata and xxh3 of a sealed Parquet file; arguments and errors as of `open_sealed`.

    Args:
        columns: which to decode; all by default. Of 3 million samples all take 1.4 s, `status` 0.01 s.
        keep_dictionaries: leave columns of strings that repeat as Arrow dictionaries.
    """
    file = open_sealed(storage, path, schema, num_rows, max_bytes)
    return file.read(columns, keep_dictionaries=keep_dictionaries), file.metadata, file.xxh3


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


def _string_bytes(column: Any, enough: int) -> int:
    """Bytes of a column of dictionaries made plain; where they are surely at most `enough`, a bound on it."""
    chunks: list[Any] = column.chunks
    # Without pyarrow.compute at first, which takes 0.1 s to import.
    bound = sum(_longest(chunk.dictionary) * len(chunk) for chunk in chunks)
    if bound <= enough:
        return bound
    taken: list[Any] = [pc.binary_length(chunk.dictionary).take(chunk.indices) for chunk in chunks]
    return sum(pc.sum(lengths).as_py() or 0 for lengths in taken)


def _longest(words: Any) -> int:
    """Bytes of the longest of these strings."""
    if len(words) == 0:
        return 0
    ends = np.frombuffer(words.buffers()[1], np.int32)[words.offset : words.offset + len(words) + 1]
    return int(np.diff(ends).max())
