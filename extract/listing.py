"""What every source of images is: rows with a key, a label and a split, whose bytes are read one at a time.

    source.keys[7], source.labels[7], source.read(7)

The sources themselves are `images.py` (folders), `tar_images.py` (WebDataset tars), `parquet_images.py`
(Parquet with the bytes inside) and `path_table.py` (tables of paths); `sources.py` tells which one a path is.
What is the same for all is here: unique keys, names of splits, and that a source pickled for another process
is opened again there by its path.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

import numpy as np

from activault.store.errors import ConfigError, ImageSourceError
from activault.store.provenance import SourceInfo
from activault.store.samples import split_of

from .decode import BadImage

__all__ = [
    "IMAGE_COLUMNS",
    "ImageSource",
    "Listed",
    "file_split",
    "fingerprint_of",
    "folder_split",
    "label_of",
    "refuse_repeats",
    "reopened",
    "split_word",
    "unreadable",
    "with_splits",
]

Column = Sequence[str | None]
Kind = TypeVar("Kind", bound="Listed")

IMAGE_COLUMNS: Final = ("key", "label", "split")
"""Columns that every source has, to choose rows by."""
_SPLITS: Final = {"train": "train", "test": "test"} | dict.fromkeys(
    ("val", "valid", "validation"), "validation"
)
_WORDS: Final = re.compile(r"[A-Za-z]+")
_OF_AN_IMAGE: Final = frozenset(
    {
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.EACCES,
        errno.EPERM,
        errno.EIO,
    }
)
"""Errors of one file. Any other is of its disk, its mount or this process, and the file is good tomorrow."""


@runtime_checkable
class ImageSource(Protocol):
    """Rows of images. `read` may be called from several threads; a pickle holds the path, not the rows."""

    keys: Sequence[str]
    """One a row, each once."""
    labels: Column
    """The class, or None."""
    faults: Sequence[str]
    """What is wrong with the source itself, beside its rows: a line for each tar that is cut off."""

    @property
    def rows_at_once(self) -> int:
        """Neighbouring rows that are read together, whichever of them is asked for."""

    @property
    def info(self) -> SourceInfo:
        """Kind, name, and a hash over the keys and sizes of all images."""

    def __len__(self) -> int: ...

    def column(self, name: str) -> Column:
        """`key`, `label`, `split`, or a column of the source's own, as text.

        Raises:
            ConfigError: there is no such column.
        """

    def read(self, row: int) -> bytes | BadImage:
        """The bytes of one image's file, or why there are none.

        Raises:
            ImageSourceError: the place where the images lie is gone, or holds other files than were listed.
        """


class Listed:
    """A source whose rows were listed when it was opened; what its kinds have in common."""

    keys: Sequence[str]
    labels: Column
    faults: Sequence[str] = ()
    _splits: Column

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def rows_at_once(self) -> int:
        """See `ImageSource`."""
        return 1

    @property
    def info(self) -> SourceInfo:
        """See `ImageSource`."""
        raise NotImplementedError

    @property
    def own_columns(self) -> Sequence[str]:
        """Names of further columns."""
        return ()

    def column(self, name: str) -> Column:
        """See `ImageSource`; a column of the source's own comes before one that is made up here."""
        if name in self.own_columns and name not in ("key", "label"):
            return self._own_column(name)
        if name not in IMAGE_COLUMNS:
            columns = ", ".join((*IMAGE_COLUMNS, *self.own_columns))
            raise ConfigError(
                f"rows are chosen by a column of their source; got {name!r}, there are {columns}"
            )
        return {"key": self.keys, "label": self.labels, "split": self._splits}[name]

    def _own_column(self, name: str) -> Column:
        raise NotImplementedError


def unreadable(exc: OSError, folder: Path) -> BadImage:
    """The bad row of a file below `folder` that could not be read.

    Raises:
        ImageSourceError: that is no fault of the file: the folder is gone, the disk does not answer, this
            process has too many files open. Every further row would be bad as well, and for ever.
    """
    reason = exc.strerror or str(exc)
    if not os.path.isdir(folder):  # noqa: PTH112  (False whatever the mount says, where Path may raise)
        raise ImageSourceError(
            f"the folder {folder} is gone ({reason}); bring it back, then run the same command again: "
            "finished shards are kept"
        ) from exc
    if exc.errno not in _OF_AN_IMAGE:
        raise ImageSourceError(
            f"an image in {folder} cannot be read, which is no fault of its own ({reason}); mend that, then "
            "run the same command again: finished shards are kept"
        ) from exc
    return BadImage(status="unreadable", reason=f"the file cannot be read ({type(exc).__name__})")


def reopened(kind: Callable[..., Kind], arguments: tuple[Any, ...], fingerprint: str) -> Kind:
    """A source opened again in another process; row numbers mean the same there or it is refused.

    Raises:
        ImageSourceError: keys or sizes have changed.
    """
    source = kind(*arguments)
    if source.info.fingerprint != fingerprint:
        raise ImageSourceError(
            f"images must not change during an extraction; keys or sizes in {source.info.name} have; start "
            "again"
        )
    return source


def fingerprint_of(keys: Iterable[str], sizes: Iterable[int]) -> str:
    """Hash over keys and sizes in row order; no content is read for it."""
    digest = hashlib.sha256()
    for key, size in zip(keys, sizes, strict=True):
        digest.update(f"{key}\0{size}\n".encode())
    return digest.hexdigest()


def refuse_repeats(keys: Sequence[str], where: Callable[[int], str], remedy: str) -> None:
    """Refuse keys that two rows have.

    Args:
        keys: one a row.
        where: the place of a row.
        remedy: what to do.

    Raises:
        ImageSourceError: a key is there twice.
    """
    if (pair := _first_repeat(keys)) is not None:
        first, second = map(where, pair)
        raise ImageSourceError(
            f"keys name one row each; {keys[pair[0]]!r} is in {first} and in {second}; {remedy}"
        )


def _first_repeat(keys: Sequence[str]) -> tuple[int, int] | None:
    """Two rows that have one key, the earliest such pair.

    1.28 million keys: 0.3 s and 10 MB, where a set of them would take 64 MB.
    """
    hashes = np.fromiter(map(hash, keys), np.int64, len(keys))
    hashes.sort()
    if (hashes[1:] != hashes[:-1]).all():
        return None
    seen: dict[str, int] = {}
    for row, key in enumerate(keys):
        if seen.setdefault(key, row) != row:
            return seen[key], row
    return None


def split_word(word: str) -> str | None:
    """`train`, `validation` or `test` for the words that are used for them (`val`, `Valid`), else None."""
    return _SPLITS.get(word.lower())


def label_of(key: str) -> str | None:
    """The first folder of a key, after a leading split folder: `train/cat/a/1.jpg` is a `cat`.

    What a split folder is, `activault.store.split_of` says.
    """
    folders = key.split("/")[:-1]
    if split_of(key) is not None:
        folders = folders[1:]
    return folders[0] if folders else None


def folder_split(key: str) -> str | None:
    """The split that a key's first folder names."""
    folder, slash, _ = key.partition("/")
    return split_word(folder) if slash else None


def file_split(name: str) -> str | None:
    """The split that a file's name names as a word of its own: `in1k-train-00017.tar`, `data/val/0.parquet`.

    The last one counts: `train/part-val.tar` is of `val`.
    """
    words = [split for word in _WORDS.findall(os.path.splitext(name)[0]) if (split := split_word(word))]  # noqa: PTH122
    return words[-1] if words else None


def with_splits(keys: Sequence[str], splits: Column) -> list[str]:
    """Keys under a folder of their split, which is what later tells training from test rows.

    Only where there is more than one split: as with a folder, the files of one split alone have none.
    """
    if len(Counter(splits)) < 2:
        return list(keys)
    return [
        key if split is None or folder_split(key) == split else f"{split}/{key}"
        for key, split in zip(keys, splits, strict=True)
    ]
