"""A store that is far away, with a cache on this machine of what was read of it.

Array files are cached in blocks of 4 MiB under their content's hash, which the store's records say: what is
found there is what the origin would give, whatever its URL and however long ago it was fetched. Metadata are
asked for anew each time; only where the origin does not answer are those of the last time taken. They bind
one another and the array files, so that a store which was cached whole can be read without a network.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from .cache_folder import CacheFolder
from .errors import ConfigError, CorruptStoreError, UnreachableError
from .records import FileRecord
from .storage import MAX_JSON_BYTES, OpenFile, Storage

__all__ = ["CachedStorage", "forget_recorded", "open_recorded", "with_cache"]

BLOCK_BYTES: Final = 4 << 20
"""Bytes of a file that are fetched and kept together."""
_LEAST_BLOCKS: Final = 16
_DEFAULT_BYTES: Final = 64 << 30


def with_cache(storage: Storage, folder: Path | str | None, max_bytes: int | None) -> Storage:
    """A storage with a cache, if it is far away and a folder is named, here or by ACTIVAULT_CACHE_DIR.

    Raises:
        ConfigError: the size, or ACTIVAULT_CACHE_BYTES, is no number of at least 64 MiB.
        StorageError: the folder cannot be made.
    """
    folder = folder or os.environ.get("ACTIVAULT_CACHE_DIR")
    if storage.folder is not None or not folder:
        return storage
    if max_bytes is None:
        asked = os.environ.get("ACTIVAULT_CACHE_BYTES") or str(_DEFAULT_BYTES)
        if not asked.isdecimal():
            raise ConfigError(f"ACTIVAULT_CACHE_BYTES is a whole number of bytes; got {asked!r}")
        max_bytes = int(asked)
    if max_bytes < _LEAST_BLOCKS * BLOCK_BYTES:
        raise ConfigError(f"a cache holds at least {_LEAST_BLOCKS * BLOCK_BYTES} bytes; got {max_bytes}")
    return CachedStorage(storage, CacheFolder(Path(folder), max_bytes))


def open_recorded(storage: Storage, record: FileRecord) -> OpenFile:
    """An array's file for reading ranges: of a storage that has a cache, out of that where it can be."""
    if isinstance(storage, CachedStorage):
        return storage.open_recorded(record)
    return storage.open(record.path, record.bytes)


def forget_recorded(storage: Storage, record: FileRecord) -> bool:
    """Drop what a cache has of an array's file, which proved to be wrong; whether there was anything."""
    return isinstance(storage, CachedStorage) and storage.forget(record)


class CachedStorage:
    """Files of another storage, kept in a folder once they were read; see `Storage`."""

    folder: Path | None = None

    def __init__(self, origin: Storage, cache: CacheFolder) -> None:
        self.origin = origin
        self.cache = cache
        self.where = origin.where
        self.name = origin.name
        self._is_offline = False
        self._lock = threading.Lock()
        self._arriving: dict[str, Future[bytes]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return CachedStorage, (self.origin, self.cache)

    def __repr__(self) -> str:
        return f"CachedStorage({self.where!r}, {str(self.cache.folder)!r})"

    def size(self, path: str) -> int:
        """Bytes of one file."""
        return self.origin.size(path)

    def read(self, path: str, max_bytes: int = MAX_JSON_BYTES) -> bytes:
        """All of one file; as it was the last time, if the origin does not answer."""
        key = f"whole {self.where}/{path}"
        if self._is_offline and (found := self.cache.get(key)) is not None:
            return found
        try:
            data = self.origin.read(path, max_bytes)
        except UnreachableError:
            found = self.cache.get(key)
            if found is None or len(found) > max_bytes:
                raise
            self._is_offline = True  # for this opened store: each request would wait for its last try
            return found
        self.cache.put(key, data)
        return data

    def blocks(self, path: str) -> Iterator[bytes]:
        """One file in blocks, from the origin."""
        return self.origin.blocks(path)

    def open(self, path: str, size: int | None = None) -> OpenFile:
        """One file for reading ranges, from the origin."""
        return self.origin.open(path, size)

    def open_recorded(self, record: FileRecord) -> OpenFile:
        """One file of which the content is known, for reading ranges."""
        return _CachedFile(self, record)

    def forget(self, record: FileRecord) -> bool:
        """Drop all blocks of a file; whether there were any."""
        numbers = range(-(-record.bytes // BLOCK_BYTES))
        return sum(self.cache.remove(_block_key(record, number)) for number in numbers) > 0

    def names(self, folder: str) -> list[str] | None:
        """Names in a folder, from the origin."""
        return self.origin.names(folder)

    def fetched(self, keys: list[str], fetch: Callable[[list[str]], list[bytes]]) -> dict[str, bytes]:
        """Entries that are in no cache, by `fetch` of those that no other thread is fetching; and kept.

        Raises whatever `fetch` raises, here and wherever somebody waits for the same entry.
        """
        if not keys:  # also in a fork, where the lock may be held for ever
            return {}
        with self._lock:
            theirs = {key: self._arriving[key] for key in keys if key in self._arriving}
            mine = {key: Future[bytes]() for key in keys if key not in theirs}
            self._arriving |= mine
        try:
            for key, data in zip(mine, fetch(list(mine)) if mine else (), strict=True):
                self.cache.put(key, data)
                mine[key].set_result(data)
        except BaseException as exc:
            for future in mine.values():
                if not future.done():
                    future.set_exception(exc)
            raise
        finally:
            with self._lock:
                for key in mine:
                    del self._arriving[key]
        return {key: future.result() for key, future in (theirs | mine).items()}


class _CachedFile:
    """A file with a known content."""

    def __init__(self, storage: CachedStorage, record: FileRecord) -> None:
        self._storage = storage
        self._record = record
        self.size = record.bytes

    def read(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset` on."""
        block = bytearray(length)
        self.fill(memoryview(block), offset)
        return bytes(block)

    def fill(self, block: memoryview, offset: int) -> None:
        """All of `block` from `offset` on."""
        stop = offset + len(block)
        if stop > self.size:
            raise CorruptStoreError(f"{self._record.path} ended {stop - self.size} bytes early")
        missing = []
        for number in range(offset // BLOCK_BYTES, -(-stop // BLOCK_BYTES)):
            start = number * BLOCK_BYTES
            lo, hi = max(offset, start), min(stop, start + BLOCK_BYTES)
            found = self._storage.cache.get(_block_key(self._record, number), lo - start, hi - start)
            if found is None:
                missing.append((number, lo, hi))
            else:
                block[lo - offset : hi - offset] = found
        arrived = self._storage.fetched(
            [_block_key(self._record, number) for number, *_ in missing], self._fetch
        )
        for number, lo, hi in missing:
            start = number * BLOCK_BYTES
            block[lo - offset : hi - offset] = arrived[_block_key(self._record, number)][
                lo - start : hi - start
            ]

    def _fetch(self, keys: list[str]) -> list[bytes]:
        """Blocks by their keys, those in a row by one request."""
        numbers = [int(key.rpartition(" ")[2]) for key in keys]
        parts: list[bytes] = []
        with self._storage.origin.open(self._record.path, self.size) as file:
            for first, last in _runs(numbers):
                start = first * BLOCK_BYTES
                data = file.read(start, min(self.size, (last + 1) * BLOCK_BYTES) - start)
                parts += [data[at : at + BLOCK_BYTES] for at in range(0, len(data), BLOCK_BYTES)]
        return parts

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is held open."""


def _block_key(record: FileRecord, number: int) -> str:
    return f"block {record.hash} {record.bytes} {BLOCK_BYTES} {number}"


def _runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """`(first, last)` of each run of numbers in a row, ascending."""
    first = last = -2
    for number in numbers:
        if number != last + 1:
            if first >= 0:
                yield first, last
            first = number
        last = number
    if first >= 0:
        yield first, last
