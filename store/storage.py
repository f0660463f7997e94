"""Where a store lies: a folder, or a place behind a URL, under one contract of plain reads.

File names relative to the store in, bytes out. Nothing here knows what a store is made of. Places
that are no folders are in `remote.py`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from .errors import AccessDeniedError, CorruptStoreError, StorageError, UnreachableError

__all__ = ["MAX_JSON_BYTES", "Folder", "OpenFile", "Storage", "storage_error"]

MAX_JSON_BYTES: Final = 64 << 20
_BLOCK_BYTES: Final = 4 << 20
_GONE: Final = {errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.ENODEV, errno.ENXIO, errno.ETIMEDOUT}


class OpenFile(Protocol):
    """One file, opened for reading ranges; a context manager. May be shared between threads."""

    @property
    def size(self) -> int:
        """Bytes in the file."""

    def read(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset` on.

        Raises:
            CorruptStoreError: the file ends before.
            StorageError: it cannot be read.
        """

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Storage(Protocol):
    """A place that holds a store's files. May be shared between threads and pickled.

    Every method raises `FileNotFoundError` for a file that is not there, `AccessDeniedError` for one that may
    not be read, and `UnreachableError` for a place that does not answer: three things that call for three
    different remedies.
    """

    @property
    def where(self) -> str:
        """The path or URL, for messages."""

    @property
    def name(self) -> str:
        """Its last part."""

    @property
    def folder(self) -> Path | None:
        """The folder, if it is one on this machine."""

    def size(self, path: str) -> int:
        """Bytes of one file."""

    def read(self, path: str, max_bytes: int = MAX_JSON_BYTES) -> bytes:
        """All of one file, which is refused before reading if it is larger than `max_bytes`.

        Raises:
            CorruptStoreError: it is larger.
        """

    def blocks(self, path: str) -> Iterator[bytes]:
        """One file from its start to its end, in blocks of a few MiB."""

    def open(self, path: str) -> OpenFile:
        """One file for reading ranges."""

    def names(self, folder: str) -> list[str] | None:
        """Names of the files and folders in a folder, sorted; None where the place cannot list.

        An empty list where there is no such folder: object stores have none that are empty.
        """


def too_large(path: str, size: int, max_bytes: int) -> CorruptStoreError:
    """What to say of a file that must not be read whole."""
    return CorruptStoreError(f"{path} holds at most {max_bytes} bytes; it has {size}; restore it from a copy")


def storage_error(exc: OSError, what: str) -> StorageError:
    """An `OSError` of a local read in words; a file that is absent is not one of them."""
    reason = exc.strerror or str(exc)
    if exc.errno in (errno.EACCES, errno.EPERM):
        return AccessDeniedError(f"{what} cannot be read ({reason}); grant the right to read it")
    if exc.errno in _GONE:
        return UnreachableError(
            f"{what} cannot be read ({reason}); mend the disk or the mount, then try again"
        )
    return StorageError(f"{what} cannot be read ({reason}); check the path")


class Folder:
    """A store in a folder of this machine."""

    def __init__(self, path: Path | str) -> None:
        self.folder: Path = Path(os.path.abspath(path))  # noqa: PTH100  (a link in it stays as it is)
        self.where = str(path)
        self.name = self.folder.name

    def __repr__(self) -> str:
        return f"Folder({self.where!r})"

    def size(self, path: str) -> int:
        """Bytes of one file."""
        try:
            return (self.folder / path).stat().st_size
        except (FileNotFoundError, NotADirectoryError) as exc:
            raise FileNotFoundError(path) from exc
        except OSError as exc:
            raise storage_error(exc, path) from exc

    def read(self, path: str, max_bytes: int = MAX_JSON_BYTES) -> bytes:
        """All of one file."""
        size = self.size(path)
        if size > max_bytes:
            raise too_large(path, size, max_bytes)
        with self.open(path) as file:
            return file.read(0, file.size)

    def blocks(self, path: str) -> Iterator[bytes]:
        """One file in blocks of 4 MiB."""
        with self.open(path) as file:
            for start in range(0, file.size, _BLOCK_BYTES):
                yield file.read(start, min(_BLOCK_BYTES, file.size - start))

    def open(self, path: str) -> OpenFile:
        """One file for reading ranges."""
        return _LocalFile(self.folder / path, path)

    def names(self, folder: str) -> list[str] | None:
        """Names in a folder."""
        try:
            return sorted(entry.name for entry in (self.folder / folder).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as exc:
            raise storage_error(exc, folder or self.where) from exc


class _LocalFile:
    """A file of this machine."""

    def __init__(self, file: Path, path: str) -> None:
        self._path = path
        try:
            self._handle = os.open(file, os.O_RDONLY)
        except (FileNotFoundError, NotADirectoryError) as exc:
            raise FileNotFoundError(path) from exc
        except OSError as exc:
            raise storage_error(exc, path) from exc
        self.size = os.fstat(self._handle).st_size

    def read(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset` on."""
        try:
            data = os.pread(self._handle, length, offset)
            while len(data) < length:  # Linux reads at most 2 GiB at once, and a network disk may give less
                more = os.pread(self._handle, length - len(data), offset + len(data))
                if not more:
                    raise CorruptStoreError(f"{self._path} ended {length - len(data)} bytes early")
                data += more
        except OSError as exc:
            raise storage_error(exc, self._path) from exc
        return data

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._handle)
