"""A table of paths, CSV, TSV or Parquet, as rows: one image file each, with whatever columns stand beside.

    source = PathTable("lists/train.csv", SourceOptions(image_root="/data/photos"))

A path is relative to `image_root`, by default the table's own folder, which may be a URL. An absolute path or
a URL will do if it begins with the root. None leads out of the root: a `..` is refused, as is a control
character, so that a table from somebody else cannot name other files of this machine. The key is the path
below the root unless a column is named; the label is the column `label`, else the path's first folder. A
column `split` is the split. Values are text as they stand: `007` is not 7.
"""

from __future__ import annotations

import csv
import errno
import os
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.csv as pacsv

from activault.store.errors import ConfigError, ImageSourceError, StoreError
from activault.store.provenance import SourceInfo

from .decode import BadImage
from .listing import (
    Column,
    Listed,
    fingerprint_of,
    folder_split,
    label_of,
    refuse_repeats,
    reopened,
    split_word,
    unreadable,
    with_splits,
)
from .options import SourceOptions
from .parquet_columns import as_texts
from .parquet_images import open_parquet
from .places import SourceFile, find_files, is_url, open_place, read_whole, reading, source_name

__all__ = ["PathTable"]

_PATHS: Final = ("path", "file_name", "filename", "file")
_SURPRISING: Final = re.compile(r"(?:^|/)\.\.(?:/|$)|[\x00-\x1f\x7f]")
_MOST_TABLE: Final = 4 << 30
_MOST_IMAGE: Final = 1 << 30
_DELIMITERS: Final = {".csv": ",", ".tsv": "\t"}


class PathTable(Listed):
    """Rows of one table; nothing is read of the images before `read`.

    Raises:
        ImageSourceError: the table is absent or damaged, has no rows, a path leads out of the root, or a key
            is empty or there twice.
        ConfigError: a column that is asked for is not there, none is a path's, or there are several tables.
    """

    def __init__(self, table: str, options: SourceOptions) -> None:
        self._where, self._options = table, options
        file, *others = find_files(table, (".csv", ".tsv", ".parquet"))
        if others:
            raise ConfigError(
                f"a table of paths is one file; {table} names {1 + len(others)}; join them to one"
            )
        self._table = _read(file)
        if not len(self._table):
            raise ImageSourceError(f"{file.where} has no rows")
        root = file.storage.where if options.image_root is None else options.image_root
        self._root = open_place(root if is_url(root) else os.path.abspath(root))  # noqa: PTH100
        self._paths = self._checked_paths(root)
        self._name_rows()

    def _checked_paths(self, root: str) -> list[str]:
        name = self._column_of(self._options.path_column, _PATHS, "path")
        assert name is not None, "it is required"
        prefixes = {f"{root.rstrip('/')}/", f"{self._root.where.rstrip('/')}/"}
        paths = []
        for row, path in enumerate(self._own_column(name)):
            below = path or ""
            for prefix in prefixes:
                below = below.removeprefix(prefix)
            below = below.removeprefix("./")
            if not below or below.startswith("/") or is_url(below) or _SURPRISING.search(below):
                raise ImageSourceError(
                    f"a path is one below {root}, without '..'; row {row} of {self._where} has {path!r}; set "
                    "--image-root to the folder or URL that holds all images"
                )
            paths.append(below)
        return paths

    def _name_rows(self) -> None:
        key = self._column_of(self._options.key_column, (), "key")
        keys = self._paths if key is None else self._own_column(key)
        if None in keys:
            raise ImageSourceError(
                f"each row has a key; row {list(keys).index(None)} of {self._where} has none in {key!r}"
            )
        label = self._column_of(self._options.label_column, ("label",), "label")
        if label is not None:
            self.labels = self._own_column(label)
        else:
            same: dict[str | None, str | None] = {}
            self.labels = [same.setdefault(found, found) for found in map(label_of, self._paths)]
        if "split" in self._table.column_names:
            written = self._own_column("split")
            self._splits: Column = [word and (split_word(word) or word) for word in written]
            folders = [split if split and split_word(split) else None for split in self._splits]
        else:
            folders = [folder_split(path) for path in self._paths]
            self._splits = folders
        self.keys = with_splits([name for name in keys if name is not None], folders)
        remedy = "leave one out, or name another column with --key-column"
        refuse_repeats(self.keys, lambda row: f"row {row} of {self._where}", remedy)

    def _column_of(self, asked: str | None, usual: Sequence[str], what: str) -> str | None:
        names = self._table.column_names
        if asked is None:
            found = [name for name in usual if name in names]
            if not found and what == "path":
                raise ConfigError(
                    f"a table of images has a column of paths ({', '.join(usual)}); {self._where} has "
                    f"{', '.join(names)}; name it with --path-column"
                )
            return found[0] if found else None
        if asked not in names:
            raise ConfigError(f"{self._where} has no column {asked!r}; it has {', '.join(names)}")
        return asked

    @property
    def own_columns(self) -> Sequence[str]:
        """All columns of the table but `split`, which has its own form."""
        return [name for name in self._table.column_names if name != "split"]

    def _own_column(self, name: str) -> Column:
        return [text or None for text in as_texts(self._table[name])]

    @cached_property
    def info(self) -> SourceInfo:
        """The table's name, and a hash over keys, paths and, on this machine, the files' sizes."""
        lines = [f"{key}\0{path}" for key, path in zip(self.keys, self._paths, strict=True)]
        fingerprint = fingerprint_of(lines, self._sizes())
        return SourceInfo(kind="table", name=source_name(self._where), fingerprint=fingerprint)

    def _sizes(self) -> list[int]:
        """Bytes of each file, -1 where it is not there; behind a URL nobody asks a million times."""
        folder = self._root.folder
        if folder is None:
            return [0] * len(self)
        sizes = []
        for path in self._paths:
            try:
                sizes.append(os.stat(f"{folder}/{path}").st_size)  # noqa: PTH116  (a third of Path's time)
            except OSError:
                sizes.append(-1)
        return sizes

    def __reduce__(self) -> tuple[Any, ...]:
        return reopened, (PathTable, (self._where, self._options), self.info.fingerprint)

    def read(self, row: int) -> bytes | BadImage:
        """The bytes of one file; may be called from several threads."""
        path, folder = self._paths[row], self._root.folder
        try:
            return read_whole(self._root, path, _MOST_IMAGE)
        except FileNotFoundError:
            if folder is not None:
                unreadable(FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)), folder)
            return BadImage(status="unreadable", reason="there is no such file")
        except StoreError as exc:
            if folder is None:
                raise ImageSourceError(str(exc)) from exc
            if isinstance(exc.__cause__, OSError):
                return unreadable(exc.__cause__, folder)
            return BadImage(status="unreadable", reason=f"the file cannot be read ({type(exc).__name__})")


def _read(file: SourceFile) -> pa.Table:
    """All columns as text; of a Parquet file those of single values."""
    ending = Path(file.path).suffix.lower()
    if ending == ".parquet":
        with open_parquet(file) as opened:
            table = opened.read()
        single = [
            name for name in table.column_names if not pa.types.is_nested(table.schema.field(name).type)
        ]
        return table.select(single)
    data = reading(file.where, lambda: read_whole(file.storage, file.path, _MOST_TABLE))
    delimiter = _DELIMITERS[ending]
    source: Any = pa.BufferReader(data)
    try:
        head = data[: 1 << 20].decode("utf-8-sig", "ignore").partition("\n")[0]
        names = next(csv.reader([head], delimiter=delimiter), [])
        if len(set(names)) < len(names):
            raise ImageSourceError(f"{file.where} has a column twice in its first line: {', '.join(names)}")
        return pacsv.read_csv(
            source,
            parse_options=pacsv.ParseOptions(delimiter=delimiter),
            convert_options=pacsv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False
            ),
        )
    except pa.ArrowException as exc:
        raise ImageSourceError(
            f"{file.where} is no table of {ending[1:]} with a first line of names ({exc})"
        ) from exc
