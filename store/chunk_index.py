"""Where the inner chunks of a shard's file lie, and which ranges to ask for to get some of them.

The index at a file's end in, checked; offsets and lengths out. Indices are kept for a store's life, up to a
bound, as each costs a round trip where the file is far away.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from .codecs import checked
from .errors import CorruptStoreError
from .records import ArrayFile
from .storage import OpenFile

__all__ = [
    "ABSENT_CHUNK",
    "MAX_REQUEST_BYTES",
    "ChunkIndex",
    "IndexCache",
    "Span",
    "join_spans",
    "read_chunk_index",
]

MAX_REQUEST_BYTES: Final = 8 << 20
"""Most bytes of a request that is for more than one chunk."""
MAX_GAP_BYTES: Final = 256 << 10
"""Bytes between two chunks that are read and thrown away rather than asked around: less than a round trip of
30 ms takes at 10 MB a second."""
_MAX_CACHE_BYTES: Final = 64 << 20
ABSENT_CHUNK: Final = 2**64 - 1
"""Offset and length of a chunk that is not in its file."""


@dataclass(frozen=True)
class Span:
    """A range of a file, and what of it is wanted."""

    start: int
    stop: int
    chunks: tuple[tuple[int, int, int], ...]
    """`(chunk, offset, length)`, ascending by offset."""


@dataclass(frozen=True)
class ChunkIndex:
    """The index of one shard file."""

    record: ArrayFile
    entries: npt.NDArray[np.uint64]
    """(chunks, 2): offset and length."""

    def place(self, chunk: int) -> tuple[int, int]:
        """Offset and length of one chunk.

        Raises:
            CorruptStoreError: it is missing, or does not lie in the file.
        """
        offset, length = (int(value) for value in self.entries[chunk])
        what = f"{self.record.path}: chunk {chunk}"
        if offset == length == ABSENT_CHUNK:
            raise CorruptStoreError(f"{what} is missing")
        if offset + length > self.record.bytes:
            raise CorruptStoreError(
                f"{what} must lie within {self.record.bytes} bytes; the index says {offset}+{length}"
            )
        return offset, length


def read_chunk_index(file: OpenFile, record: ArrayFile, num_chunks: int) -> ChunkIndex:
    """The index at the end of a shard's file.

    Raises:
        CorruptStoreError: the file is too short for it, or it is altered.
    """
    length = 16 * num_chunks + 4
    if length > record.bytes:
        raise CorruptStoreError(f"{record.path} must hold an index of {num_chunks} chunks; it is too short")
    data = checked(file.read(record.bytes - length, length), f"{record.path}: index")
    return ChunkIndex(record, np.frombuffer(data, "<u8").reshape(num_chunks, 2))


def join_spans(index: ChunkIndex, chunks: Iterable[int], max_gap: int) -> list[Span]:
    """Ranges that hold the given chunks, ascending; those joined into one that are at most `max_gap` apart.

    Raises:
        CorruptStoreError: see `ChunkIndex.place`.
    """
    joined: list[Span] = []
    for offset, length, chunk in sorted((*index.place(chunk), chunk) for chunk in chunks):
        last = joined[-1] if joined else None
        stop = offset + length
        if last and offset - last.stop <= max_gap and stop - last.start <= MAX_REQUEST_BYTES:
            wanted = (*last.chunks, (chunk, offset, length))
            joined[-1] = Span(last.start, max(last.stop, stop), wanted)
        else:
            joined.append(Span(offset, stop, ((chunk, offset, length),)))
    return joined


_caches: Final[weakref.WeakSet[IndexCache]] = weakref.WeakSet()


def _after_fork() -> None:
    for cache in _caches:
        cache.forget()


os.register_at_fork(after_in_child=_after_fork)


class IndexCache:
    """Indices of shard files by path and hash, least recently used ones dropped; for many threads."""

    def __init__(self, max_bytes: int = _MAX_CACHE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._found: OrderedDict[tuple[str, str], Future[ChunkIndex]] = OrderedDict()
        self._lock = threading.Lock()
        _caches.add(self)

    def forget(self) -> None:
        """Drop all; for a forked child, where threads that read or hold the lock are no more."""
        self._bytes = 0
        self._found = OrderedDict()
        self._lock = threading.Lock()

    def get(self, record: ArrayFile, read: Callable[[], ChunkIndex]) -> ChunkIndex:
        """The index of a file, by `read` if it is not held; threads that want the same one wait for it.

        Raises whatever `read` raises; then nothing is held.
        """
        key = (record.path, record.hash)
        with self._lock:
            found = self._found.get(key)
            if found is not None:
                self._found.move_to_end(key)
            else:
                mine = self._found[key] = Future[ChunkIndex]()
        if found is not None:
            return found.result()
        try:
            index = read()
        except BaseException as exc:
            with self._lock:
                del self._found[key]
            mine.set_exception(exc)
            raise
        mine.set_result(index)
        self._make_room(index)
        return index

    def _make_room(self, index: ChunkIndex) -> None:
        with self._lock:
            self._bytes += index.entries.nbytes
            while self._bytes > self._max_bytes and len(self._found) > 1:
                key, oldest = next(iter(self._found.items()))
                if not oldest.done():  # its reader will count it
                    break
                del self._found[key]
                self._bytes -= oldest.result().entries.nbytes
