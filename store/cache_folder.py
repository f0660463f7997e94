"""A folder of cached bytes, shared by any number of processes, that holds no more than a stated size.

A key and bytes in; any range of them out, or None if they are not there or not what was put. An entry is one
file that appears by rename, so that no lock is needed; the least recently used ones go first.

    entry    b"activa01", bytes of the payload (u64), xxh3 of every 256 KiB of it (u64 each),
             xxh3 of the key and all before (u64); then the payload

All numbers are little-endian.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import xxhash

from .errors import ConfigError, StorageError

__all__ = ["CacheFolder"]

_MAGIC: Final = b"activa01"
_START: Final = struct.Struct("<8sQ")
_HASH: Final = struct.Struct("<Q")
_PIECE_BYTES: Final = 256 << 10
"""Bytes that are checked together: a chunk is often a small part of an entry."""
_SLACK: Final = 16
"""One part in so many is written between two looks at what the folder holds."""
_LEFTOVER_S: Final = 3600.0
"""Age from which on a temporary file is what a killed process left."""
_NO_ROOM: Final = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM}


class CacheFolder:
    """Entries of one folder; may be shared between threads and pickled.

    Args:
        folder: made if it is not there.
        max_bytes: most bytes of all entries; of several processes that write at once, each may pass it by a
            sixteenth.

    Raises:
        ConfigError: `max_bytes` is not positive.
        StorageError: the folder cannot be made.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        if max_bytes < 1:
            raise ConfigError(
                f"a cache holds a positive number of bytes; got {max_bytes}: give more by cache_bytes or "
                "ACTIVAULT_CACHE_BYTES, or name no cache folder"
            )
        self.folder = folder
        self.max_bytes = max_bytes
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise StorageError(
                f"the cache folder {folder} cannot be made ({exc.strerror}); name another by cache_dir or "
                "ACTIVAULT_CACHE_DIR"
            ) from exc
        self._lock = threading.Lock()
        self._is_full = False
        # Another limit may hold now than when the folder was filled: the first entry looks.
        self._written = max_bytes

    def __reduce__(self) -> tuple[type[CacheFolder], tuple[Path, int]]:
        return CacheFolder, (self.folder, self.max_bytes)

    def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes | None:
        """Bytes `start` to `stop` of an entry; None if it is absent or altered, which also removes it."""
        path = self._path(key)
        try:
            with path.open("rb") as file:
                found = _read(file, key, start, stop)
            if found is None:
                path.unlink(missing_ok=True)
            else:
                os.utime(path)
        except OSError:  # absent, evicted meanwhile, or the disk fails: then the origin is asked
            return None
        return found

    def put(self, key: str, data: bytes) -> None:
        """Keep an entry; where there is no room or no right to write, nothing is kept, with one warning."""
        if self._is_full or len(data) > self.max_bytes // _SLACK:
            return
        path = self._path(key)
        partial = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
        try:
            path.parent.mkdir(exist_ok=True)
            with partial.open("wb") as file:
                file.write(_header(key, data))
                file.write(data)
            partial.replace(path)
        except OSError as exc:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            self._give_up(exc)
            return
        self._make_room(len(data))

    def remove(self, key: str) -> bool:
        """Drop an entry; whether it was there."""
        try:
            self._path(key).unlink()
        except OSError:
            return False
        return True

    def _give_up(self, exc: OSError) -> None:
        if exc.errno not in _NO_ROOM:
            raise StorageError(
                f"the cache folder {self.folder} cannot be written ({exc.strerror}); name another by "
                "cache_dir or ACTIVAULT_CACHE_DIR"
            ) from exc
        with self._lock:
            if self._is_full:
                return
            self._is_full = True
        warnings.warn(
            f"the cache folder {self.folder} takes no more ({exc.strerror}); going on without it: make room, "
            "or name another folder",
            RuntimeWarning,
            stacklevel=2,
        )

    def _path(self, key: str) -> Path:
        name = xxhash.xxh3_128_hexdigest(key.encode())
        return self.folder / name[:2] / name[2:]

    def _make_room(self, written: int) -> None:
        slack = self.max_bytes // _SLACK
        with self._lock:
            self._written += written
            if self._written < slack:
                return
            self._written = 0
        entries = sorted(self._entries())
        total = sum(size for _, size, _ in entries)
        for _, size, path in entries:
            if total <= self.max_bytes - slack:
                break
            with contextlib.suppress(OSError):  # another process was faster
                Path(path).unlink()
            total -= size

    def _entries(self) -> Iterator[tuple[float, int, str]]:
        """`(when it was last used, bytes, path)` of all; what killed processes left is removed."""
        for folder in list(self.folder.glob("[0-9a-f][0-9a-f]")):
            with contextlib.suppress(FileNotFoundError), os.scandir(folder) as found:
                for entry in found:
                    with contextlib.suppress(FileNotFoundError):
                        stat = entry.stat()
                        if not entry.name.startswith("."):
                            yield stat.st_mtime, stat.st_size, entry.path
                        elif stat.st_mtime < time.time() - _LEFTOVER_S:
                            Path(entry.path).unlink()


def _header(key: str, data: bytes) -> bytes:
    view = memoryview(data)
    hashes = [
        xxhash.xxh3_64_intdigest(view[start : start + _PIECE_BYTES])
        for start in range(0, len(data), _PIECE_BYTES)
    ]
    head = _START.pack(_MAGIC, len(data)) + struct.pack(f"<{len(hashes)}Q", *hashes)
    return head + _HASH.pack(xxhash.xxh3_64_intdigest(key.encode() + head))


def _read(file: BinaryIO, key: str, start: int, stop: int | None) -> bytes | None:
    """A range of an entry's payload; None if the file is not what was written for this key."""
    head = file.read(_START.size)
    size = os.fstat(file.fileno()).st_size
    if len(head) < _START.size or head[:8] != _MAGIC:
        return None
    length = _START.unpack(head)[1]
    num_pieces = -(-length // _PIECE_BYTES)
    if size != len(head) + 8 * num_pieces + _HASH.size + length:
        return None
    head += file.read(8 * num_pieces)
    if _HASH.unpack(file.read(_HASH.size))[0] != xxhash.xxh3_64_intdigest(key.encode() + head):
        return None
    hashes = struct.unpack_from(f"<{num_pieces}Q", head, _START.size)
    stop = length if stop is None else stop
    if not 0 <= start <= stop <= length:
        return None
    first, behind = start // _PIECE_BYTES, -(-stop // _PIECE_BYTES)
    file.seek(len(head) + _HASH.size + first * _PIECE_BYTES)
    data = memoryview(file.read((behind - first) * _PIECE_BYTES))
    for place in range(behind - first):
        piece = data[place * _PIECE_BYTES : (place + 1) * _PIECE_BYTES]
        if xxhash.xxh3_64_intdigest(piece) != hashes[first + place]:
            return None
    return bytes(data[start - first * _PIECE_BYTES : stop - first * _PIECE_BYTES])
