"""Where a store lies: a folder, or a place behind a URL, under one contract of plain reads.

File names relative to the store in, bytes out. Nothing here knows what a store is made of. Places
that are no folders are in `remote.py`; `places.py` tells them apart.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self, TypeVar

from .errors import AccessDeniedError, CorruptStoreError, StorageError, StoreError, UnreachableError

__all__ = [
    "MAX_JSON_BYTES",
    "NUM_REQUESTS",
    "Folder",
    "OpenFile",
    "Storage",
    "another_size",
    "gather",
    "storage_error",
    "too_large",
]

Item = TypeVar("Item")
Result = TypeVar("Result")

MAX_JSON_BYTES: Final = 64 << 20
NUM_REQUESTS: Final = 32
"""Requests to a place that is no folder under way at once: they wait for answers, not for cores."""
_BLOCK_BYTES: Final = 4 << 20
_PASSING_BYTES: Final = 512 << 10
"""Stays in a core's own cache between the reading and the hashing of it."""
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

    def fill(self, block: memoryview, offset: int) -> None:
        """The same into memory that is there, as many bytes as it has."""

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

    def open(self, path: str, size: int | None = None) -> OpenFile:
        """One file for reading ranges.

        Raises:
            CorruptStoreError: it has another size than `size`; also raised by the first read.
        """

    def names(self, folder: str) -> list[str] | None:
        """Names of the files and folders in a folder, sorted; None where the place cannot list.

        An empty list where there is no such folder: object stores have none that are empty.
        """


def too_large(path: str, size: int, max_bytes: int) -> CorruptStoreError:
    """What to say of a file that must not be read whole."""
    return CorruptStoreError(f"{path} holds at most {max_bytes} bytes; it has {size}; restore it from a copy")


def another_size(path: str, size: int, found: int) -> CorruptStoreError:
    """What to say of a file that is longer or shorter than it must be."""
    return CorruptStoreError(f"{path} must have {size} bytes; it has {found}")


def gather(storage: Storage, work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """`work` of every item, in order; many at once where the files are not on this machine.

    Raises whatever `work` raises, for the first item of which it does.
    """
    items = list(items)
    if storage.folder is not None or len(items) < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(min(NUM_REQUESTS, len(items)), "activault-gather") as pool:
        try:
            return [done.result() for done in [pool.submit(work, item) for item in items]]
        finally:
            pool.shutdown(cancel_futures=True)


def refuse_no_file(found: os.stat_result, path: str) -> None:
    """Refuse what is no plain file.

    Links are followed: parts of a store may lie on another disk. Pipes and devices are no store's.

    Raises:
        CorruptStoreError: it is something else.
    """
    if not stat.S_ISREG(found.st_mode):
        raise CorruptStoreError(f"{path} must be a plain file; it is a pipe, a device or a folder; remove it")


def storage_error(exc: OSError, what: str) -> StoreError:
    """An `OSError` of a local read in words; a file that is absent is not one of them."""
    reason = exc.strerror or str(exc)
    if exc.errno == errno.ELOOP:
        return CorruptStoreError(f"{what} is a link that leads back to itself; remove it")
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
            found = (self.folder / path).stat()
        except (FileNotFoundError, NotADirectoryError) as exc:
            raise FileNotFoundError(path) from exc
        except OSError as exc:
            raise storage_error(exc, path) from exc
        refuse_no_file(found, path)
        return found.st_size

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

    def passing_blocks(self, path: str) -> Iterator[memoryview]:
        """The same, each block gone when the next is asked for.

        Pages that are faulted in anew for every block take two to four times as long as reading (2.4 against
        7.2 GB a second, page cache warm).
        """
        with _LocalFile(self.folder / path, path) as file:
            block = memoryview(bytearray(min(_PASSING_BYTES, max(file.size, 1))))
            offset = 0
            while count := file.read_into(block, offset):
                offset += count
                yield block[:count]

    def open(self, path: str, size: int | None = None) -> OpenFile:
        """One file for reading ranges."""
        file = _LocalFile(self.folder / path, path)
        if size is not None and size != file.size:
            file.close()
            raise another_size(path, size, file.size)
        return file

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
            self._handle = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # a pipe would wait
        except (FileNotFoundError, NotADirectoryError) as exc:
            raise FileNotFoundError(path) from exc
        except OSError as exc:
            raise storage_error(exc, path) from exc
        found = os.fstat(self._handle)
        try:
            refuse_no_file(found, path)
        except CorruptStoreError:
            self.close()
            raise
        self.size = found.st_size

    def read(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset` on."""
        parts: list[bytes] = []
        done = 0
        while done < length:  # Linux reads at most 2 GiB at once, and a network disk may give less
            try:
                part = os.pread(self._handle, length - done, offset + done)
            except OSError as exc:
                raise storage_error(exc, self._path) from exc
            if not part:
                raise CorruptStoreError(f"{self._path} ended {length - done} bytes early")
            parts.append(part)
            done += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def fill(self, block: memoryview, offset: int) -> None:
        """All of `block` from `offset` on."""
        done = 0
        while done < len(block):
            count = self.read_into(block[done:], offset + done)
            if not count:
                raise CorruptStoreError(f"{self._path} ended {len(block) - done} bytes early")
            done += count

    def read_into(self, block: memoryview, offset: int) -> int:
        """Fill `block` from `offset` on; returns how many bytes there were."""
        try:
            return os.preadv(self._handle, [block], offset)
        except OSError as exc:
            raise storage_error(exc, self._path) from exc

    def close(self) -> None:
        """Give the handle back."""
        os.close(self._handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
