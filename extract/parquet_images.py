"""Images inside Parquet files, as Hugging Face data sets ship them: a struct of bytes and path, and a label.

    source = ParquetImages("imagenet-1k/data/train-*.parquet", SourceOptions())

A column of plain bytes will do as well. Rows are those of the files, in order. A key is the path that stands
beside the bytes, or the file's name and the row's number where some row has none; a label's name comes from
the `huggingface` metadata where it has them. Bytes are read a row group at a time, and the last few are kept:
in the files' own order each is read once, while shuffled rows read a whole group for nearly each row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from activault.store.errors import ConfigError, ImageSourceError
from activault.store.provenance import SourceInfo

from .decode import BadImage
from .listing import (
    Column,
    Listed,
    file_split,
    fingerprint_of,
    folder_split,
    label_of,
    refuse_repeats,
    reopened,
    with_splits,
)
from .options import SourceOptions
from .parquet_columns import as_texts, class_names, image_column, is_single, label_column
from .places import RangeReader, SourceFile, find_files, source_name
from .row_groups import RowGroupCache

__all__ = ["ParquetImages", "open_parquet"]


class ParquetImages(Listed):
    """Rows of one or many Parquet files.

    Raises:
        ImageSourceError: a file is absent, is no Parquet file or has no images, or a key is there twice.
        ConfigError: there are several columns of images or labels, and none of them is chosen.
    """

    def __init__(self, images: str, options: SourceOptions) -> None:
        self._images, self._options = images, options
        self._files = find_files(images, (".parquet",))
        footers = [_footer(file) for file in self._files]
        self._schema: pa.Schema = footers[0].schema.to_arrow_schema()
        found = image_column(self._schema, options)
        if found is None:
            raise ImageSourceError(
                f"{self._files[0].where} has no column of images (a struct with bytes, or plain bytes); its "
                f"columns are {', '.join(self._schema.names)}"
            )
        self._column = found
        self._footers = footers
        self._list_groups()
        self._name_rows()
        self._groups = RowGroupCache(self._load)

    def _list_groups(self) -> None:
        groups = [
            (file, group, footer.row_group(group).num_rows, footer.row_group(group).total_byte_size)
            for file, footer in enumerate(self._footers)
            for group in range(footer.num_row_groups)
        ]
        self._places = [(file, group) for file, group, _, _ in groups]
        self._group_bytes = [size for *_, size in groups]
        self._starts = np.cumsum([0, *(rows for _, _, rows, _ in groups)])
        if self._starts[-1] == 0:
            raise ImageSourceError(f"{self._images} has no rows")

    def _name_rows(self) -> None:
        keys, splits = list[str](), list[str | None]()
        names = self._names()
        for file, footer in zip(self._files, self._footers, strict=True):
            split, stem = file_split(file.name), file.name.removesuffix(".parquet")
            own = range(len(keys), len(keys) + footer.num_rows)
            keys += [f"{stem}/{row - own.start:07d}" if names is None else names[row] for row in own]
            splits += [split] * footer.num_rows
        if names is not None:
            splits = [folder_split(key) or split for key, split in zip(keys, splits, strict=True)]
        self.keys, self._splits = with_splits(keys, splits), splits
        column = label_column(self._schema, self._options)
        same: dict[str | None, str | None] = {}
        folders = (label_of(key) for key in names) if names is not None else [None] * len(keys)
        self.labels = (
            [same.setdefault(label, label) for label in folders]
            if column is None
            else self._own_column(column)
        )
        remedy = "take --keys place, which names rows by their file and number"
        if names is None:
            remedy = "rename one of these files"
        elif self._options.key_column is not None:
            remedy = "name another column with --key-column, or leave that out and take --keys place"
        refuse_repeats(self.keys, self._where, remedy)

    def _names(self) -> list[str] | None:
        """The images' own names; None where they have none, or are not wanted."""
        key = self._options.key_column
        if self._options.keys == "place" or (key is None and not self._column.has_path):
            return None
        if key is not None:
            column = self._own_column(key)
            if None in column:
                where = self._where(column.index(None))
                raise ImageSourceError(f"a key is text or a number; the column {key!r} has none in {where}")
        else:
            column = _flat(self._read(f"{self._column.name}.path", self._column.name), "path")
            if None in column:
                return None
        # Data sets that were made from files on somebody's disk may hold whole paths of it.
        return [
            name.rpartition("/")[2] if name.startswith("/") else name for name in column if name is not None
        ]

    @property
    def rows_at_once(self) -> int:
        """Rows of a row group, which are read together."""
        return int(np.median(np.diff(self._starts)))

    @property
    def own_columns(self) -> Sequence[str]:
        """Columns of single values."""
        return [field.name for field in self._schema if is_single(field.type)]

    def _own_column(self, name: str) -> Column:
        if name not in self.own_columns:
            columns = ", ".join(self.own_columns) or "none"
            raise ConfigError(
                f"keys and labels are columns of single values; got {name!r}, there are {columns}"
            )
        return as_texts(self._read(name, name), class_names(self._schema).get(name))

    def _read(self, leaf: str, name: str) -> pa.ChunkedArray[Any]:
        """A column of all files."""
        chunks: list[Any] = []
        for file in self._files:
            with open_parquet(file) as opened:
                table = _columns(opened, leaf, file.where)
            if table.schema.names != [name]:
                raise ImageSourceError(
                    f"all files of a source have the same columns; {file.where} has no {leaf!r}"
                )
            chunks += table[name].chunks
        return pa.chunked_array(chunks)

    @cached_property
    def info(self) -> SourceInfo:
        """The file's name, or the pattern's, and a hash over keys and the sizes of row groups."""
        groups = [f"{self._files[file].name} {group}" for file, group in self._places]
        sizes = [0] * len(self) + self._group_bytes
        fingerprint = fingerprint_of([*self.keys, *groups], sizes)
        return SourceInfo(kind="parquet", name=source_name(self._images), fingerprint=fingerprint)

    def __reduce__(self) -> tuple[Any, ...]:
        return reopened, (ParquetImages, (self._images, self._options), self.info.fingerprint)

    def read(self, row: int) -> bytes | BadImage:
        """The bytes of one image; may be called from several threads."""
        group = int(np.searchsorted(self._starts, row, "right")) - 1
        try:
            column = self._groups.get(group)
        except (pa.ArrowException, OSError) as exc:
            return BadImage(status="unreadable", reason=f"its row group is damaged ({type(exc).__name__})")
        value = column[row - int(self._starts[group])].as_py()
        data = value.get("bytes") if isinstance(value, dict) else value
        if data is None:
            return BadImage(status="unreadable", reason="the row has no bytes")
        return bytes(data)

    def _load(self, group: int) -> pa.ChunkedArray[Any]:
        number, place = self._places[group]
        with open_parquet(self._files[number], self._footers[number]) as opened:
            return opened.read_row_group(place, columns=[self._column.leaf])[self._column.name]

    def _where(self, row: int) -> str:
        group = int(np.searchsorted(self._starts, row, "right")) - 1
        file = self._places[group][0]
        first = next(
            start for start, place in zip(self._starts, self._places, strict=False) if place[0] == file
        )
        return f"{self._files[file].where}, row {row - int(first)}"


@contextmanager
def open_parquet(file: SourceFile, footer: Any = None) -> Iterator[pq.ParquetFile]:
    """One file, opened for reading.

    Raises:
        ImageSourceError: it is absent, cannot be read, or is no Parquet file.
    """
    with RangeReader(file) as reader:
        readable: Any = reader
        try:
            opened = pq.ParquetFile(readable, metadata=footer)
        except (pa.ArrowException, OSError) as exc:
            raise ImageSourceError(f"{file.where} is no Parquet file, or a damaged one ({exc})") from exc
        yield opened


def _footer(file: SourceFile) -> Any:
    with open_parquet(file) as opened:
        return opened.metadata


def _columns(opened: pq.ParquetFile, leaf: str, where: str) -> pa.Table:
    try:
        return opened.read(columns=[leaf])
    except (pa.ArrowException, OSError) as exc:
        raise ImageSourceError(f"{where}: the column {leaf!r} is damaged ({exc})") from exc


def _flat(column: pa.ChunkedArray[Any], field: str) -> list[str | None]:
    return [text for chunk in column.chunks for text in pc.struct_field(chunk, field).to_pylist()]
