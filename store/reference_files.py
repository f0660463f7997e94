"""The chunk files of a reference-layout array: which are there when it is opened, and whether they stay.

    files = list_chunks(Path("activations.zarr"), separator=".", counts=(10010, 13, 1, 1))
    files.read("12.0.0.0")  # its bytes, or an error if it is not the file that was listed

Zarr reads a chunk that is not there as fill, also one that was there a moment ago. So a file that was listed
must be there when it is read, and be the same afterwards; one that was not must still be absent.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from .errors import NotAStoreError, StoreMismatchError
from .storage import storage_error

__all__ = ["ChunkFiles", "FileState", "list_chunks"]

_CANONICAL: Final = re.compile(r"0|[1-9][0-9]{0,18}")
_REST: Final = "let the source come to rest and run the same import again"


class FileState(NamedTuple):
    """What tells a file from another one of its name, as far as it can be told without reading it."""

    num_bytes: int
    mtime_ns: int


@dataclass(frozen=True)
class ChunkFiles:
    """Files of chunks as they were when the array was opened; made by `list_chunks`."""

    path: Path
    separator: str
    counts: tuple[int, ...]
    """Chunks along each axis."""
    found: Mapping[str, FileState]
    """By name."""
    strangers: tuple[str, ...] = ()
    """What else is there, by name: no chunk of the array. Names that begin with a dot are left out."""

    @cached_property
    def present(self) -> npt.NDArray[np.bool_]:
        """(row chunks, layer chunks): whether all of the files of a block are there."""
        tally = np.zeros(self.counts[:2], np.int64)
        for place in self._places():
            tally[place] += 1
        return np.asarray(tally == math.prod(self.counts[2:]))

    @cached_property
    def newest(self) -> npt.NDArray[np.int64]:
        """(row chunks,) when a file of the chunk was last written, in nanoseconds; 0 where none is there."""
        newest = np.zeros(self.counts[0], np.int64)
        for (row, _), state in zip(self._places(), self.found.values(), strict=True):
            newest[row] = max(newest[row], state.mtime_ns)
        return newest

    def _places(self) -> Iterator[tuple[int, int]]:
        for name in self.found:
            row, layer = name.split(self.separator)[:2]
            yield int(row), int(layer)

    def fingerprint(self, metadata: bytes) -> str:
        """Hash of the array's metadata and of the names and sizes of all its chunk files."""
        state = hashlib.sha256(metadata)
        for name, (num_bytes, _) in sorted(self.found.items()):
            state.update(f"\n{name} {num_bytes}".encode())
        return state.hexdigest()

    def names(self, row: int, layer: int) -> Iterator[tuple[str, tuple[int, int]]]:
        """Files of the chunks of a block, each with its place along tokens and width."""
        for token, channel in product(*map(range, self.counts[2:])):
            yield self.separator.join(map(str, (row, layer, token, channel))), (token, channel)

    def read(self, name: str) -> bytes:
        """All bytes of a file that was listed.

        Raises:
            StoreMismatchError: it is not there any more, or another one.
            StorageError: it cannot be read.
        """
        self.refuse_changed(name)  # also: a pipe in its place would wait
        try:
            data = (self.path / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError) as exc:
            raise self._vanished(name) from exc
        except OSError as exc:
            raise storage_error(exc, str(self.path / name)) from exc
        self.refuse_changed(name)
        return data

    def refuse_changed(self, name: str) -> None:
        """Look at a file again.

        Raises:
            StoreMismatchError: it was written, changed or removed since the array was opened.
            StorageError: it cannot be looked at.
        """
        try:
            state = _state((self.path / name).stat())
        except (FileNotFoundError, NotADirectoryError):
            state = None
        except OSError as exc:
            raise storage_error(exc, str(self.path / name)) from exc
        before = self.found.get(name)
        if state == before:
            return
        if state is None:
            raise self._vanished(name)
        did = "appeared" if before is None else "was changed"
        raise StoreMismatchError(f"{self.path / name} {did} while the source was read; {_REST}")

    def _vanished(self, name: str) -> StoreMismatchError:
        return StoreMismatchError(
            f"{self.path / name} vanished while it was read; put it back and run the same import again, or "
            "import what is left into a new store"
        )


def _state(found: os.stat_result) -> FileState:
    return FileState(found.st_size, found.st_mtime_ns)


def list_chunks(path: Path, separator: str, counts: tuple[int, ...]) -> ChunkFiles:
    """Look for the files of all chunks of an array.

    Args:
        path: folder of the array.
        separator: between the numbers of a chunk's name, `.` or `/`.
        counts: chunks along each axis.

    Raises:
        NotAStoreError: there is something else than a file in the place of one, or far too few of them.
        StorageError: a folder cannot be looked into.
    """
    found: dict[str, FileState] = {}
    strangers: list[str] = []
    try:
        for name, entry, is_chunk in _walk(path, separator, counts, ()):
            if is_chunk:
                found[name] = _state(_stat_chunk(path / name, entry))
            else:
                strangers.append(name)
    except OSError as exc:
        raise storage_error(exc, str(exc.filename or path)) from exc
    if counts[0] * counts[1] > max(64 * len(found), 1 << 20):
        raise NotAStoreError(
            f"{path} says that it has {counts[0]} x {counts[1]} chunks of rows and layers; there are "
            f"{len(found)} files"
        )
    return ChunkFiles(path, separator, counts, found, tuple(sorted(strangers)))


def _walk(
    folder: Path, separator: str, counts: tuple[int, ...], above: tuple[str, ...]
) -> Iterator[tuple[str, os.DirEntry[str], bool]]:
    """Names below the array's folder, and whether they are chunks'; links to folders are followed."""
    with os.scandir(folder) as entries:
        for entry in entries:
            parts = (*above, *entry.name.split(separator))
            named = len(parts) <= len(counts) and all(map(_is_index, parts, counts))
            if named and len(parts) == len(counts):
                yield separator.join(parts), entry, True
            elif named and separator == "/" and entry.is_dir():
                yield from _walk(folder / entry.name, separator, counts, parts)
            elif not entry.name.startswith("."):
                yield separator.join(parts), entry, False


def _is_index(text: str, count: int) -> bool:
    """Whether text is one of `count` numbers as Zarr writes it: `01` is no other name of chunk 1."""
    return _CANONICAL.fullmatch(text) is not None and int(text) < count


def _stat_chunk(file: Path, entry: os.DirEntry[str]) -> os.stat_result:
    try:
        found = entry.stat()
    except FileNotFoundError as exc:
        raise NotAStoreError(
            f"{file} is a link to nothing that is there; mend it, or remove it: its rows are missing then"
        ) from exc
    if not stat.S_ISREG(found.st_mode):
        what = "a folder" if stat.S_ISDIR(found.st_mode) else "a pipe or a device"
        raise NotAStoreError(
            f"{file} has the name of a chunk and must be a file; it is {what}; put the file back, or remove "
            "it: its rows are missing then"
        )
    return found
