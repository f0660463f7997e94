"""Files of a store: canonical JSON, hashes, atomic writes, the writers' lock and their leftovers.

Paths in, bytes and hashes out; nothing here knows what a store is made of.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import uuid
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final

import xxhash

from .errors import CorruptStoreError, StoreError
from .locks import LOCK
from .remedies import AGAIN, COPY
from .storage import Folder, Storage

__all__ = [
    "atomic_write",
    "canonical_json",
    "disk_error",
    "file_sha256",
    "is_leftover",
    "leftovers",
    "new_file",
    "parse_json",
    "pretty_json",
    "refuse_another_folder",
    "stored_sha256",
    "stored_xxh3",
    "sync_file",
    "sync_folder",
    "sync_upwards",
    "xxh3",
]


_MAX_DEPTH: Final = 32
"""Levels of JSON; a store has 8."""


def canonical_json(value: Any) -> bytes:
    """The one way in which format 1 writes JSON that is hashed."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def pretty_json(value: Any) -> bytes:
    """The one way in which format 1 writes a `zarr.json`."""
    return json.dumps(value, sort_keys=True, indent=2, allow_nan=False).encode() + b"\n"


def parse_json(text: bytes, name: str) -> Any:
    """The JSON value in `text`.

    Raises:
        CorruptStoreError: it is no JSON, has what canonical JSON has not (NaN, infinities, a key twice), or
            is nested deeper than anything in a store.
    """
    try:
        value = json.loads(
            text.decode(), parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=_each_key_once
        )
        _refuse_deep(value)
    except (ValueError, RecursionError) as exc:
        raise CorruptStoreError(f"{name} must be JSON; it is not ({exc}); {COPY}") from exc
    return value


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is no JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:40]} is beyond float64")
    return number


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found


def _refuse_deep(value: Any) -> None:
    """Values that were parsed could still be too deep to be written or printed."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(_MAX_DEPTH):
        if not level:
            return
        level = [
            part
            for each in level
            for part in (each.values() if isinstance(each, dict) else each)
            if isinstance(part, dict | list)
        ]
    raise ValueError(f"it is nested deeper than {_MAX_DEPTH}")


def xxh3(data: Any) -> str:
    """XXH3 of 128 bits over a buffer, in hexadecimal."""
    return xxhash.xxh3_128(data).hexdigest()


def _counted_blocks(
    storage: Storage, path: str, progress: Callable[[int], None] | None
) -> Iterator[bytes | memoryview]:
    """A file's blocks, each gone when the next is asked for; `progress` is told their sizes."""
    for block in storage.passing_blocks(path) if isinstance(storage, Folder) else storage.blocks(path):
        yield block
        if progress is not None:
            progress(len(block))


def stored_xxh3(storage: Storage, path: str, progress: Callable[[int], None] | None = None) -> str:
    """XXH3 of a file's bytes, in blocks; `progress` is told each block's size.

    Raises:
        FileNotFoundError: it is not there.
        StorageError: it cannot be read.
    """
    state = xxhash.xxh3_128()
    for block in _counted_blocks(storage, path, progress):
        state.update(block)
    return state.hexdigest()


def file_sha256(path: Path) -> str:
    """SHA-256 of the bytes of a file of this machine."""
    return stored_sha256(Folder(path.parent), path.name)


def stored_sha256(storage: Storage, path: str, progress: Callable[[int], None] | None = None) -> str:
    """SHA-256 of a file's bytes, in blocks; raises as `stored_xxh3` does."""
    state = hashlib.sha256()
    for block in _counted_blocks(storage, path, progress):
        state.update(block)
    return state.hexdigest()


def sync_file(path: Path) -> None:
    """Bring a file's bytes to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


sync_folder = sync_file  # a folder is opened and synced the same way


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """A file to be written that gets its name when the block ends: whole, and its bytes on disk.

    If the block fails, `path` stays what it was. The folder's own entry is the caller's to sync.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):  # the first error is told; what is left is collected
            temporary.unlink()
        raise


def sync_upwards(folder: Path, levels: int) -> None:
    """Bring the names in a folder to disk, and those of as many folders above it that may be new as well."""
    for each in (folder, *islice(folder.parents, levels)):
        sync_folder(each)


def atomic_write(path: Path, data: bytes) -> None:
    """Write `data` so that `path` holds either what it held or all of it, also after a power cut."""
    with new_file(path) as file:
        file.write(data)
    sync_folder(path.parent)


def disk_error(exc: OSError, path: Path, needed: int) -> StoreError:
    """A full, read-only or vanished disk in words, naming the path and the space needed."""
    remedy = {
        errno.ENOSPC: f"free at least {-(-needed // 1_000_000):,} MB there",
        errno.EDQUOT: f"raise the quota by at least {-(-needed // 1_000_000):,} MB",
        errno.EFBIG: f"raise the limit of a file's size (ulimit -f) to {-(-needed // 1_000):,} kB at least",
        errno.EROFS: "choose a path that can be written",
        errno.EACCES: "grant the right to write there",
        errno.EPERM: "grant the right to write there",
        errno.ENOTDIR: "choose a path whose parents are folders",
        errno.EEXIST: "choose a path whose parents are folders",
        errno.EISDIR: f"remove the folder {exc.filename2 or exc.filename}, which is in a file's place",
        errno.ELOOP: f"remove the link {exc.filename}, which leads back to itself",
    }.get(exc.errno or 0, "mend the disk or the mount")
    return StoreError(
        f"{path} could not be written ({exc.strerror or exc}); {remedy}, then run the same command again: "
        "finished shards are kept"
    )


def refuse_another_folder(handle: int, path: Path) -> None:
    """Refuse to go on where another folder than the opened one is at the path: a disk may be unmounted.

    Raises:
        StoreError: another folder is there, or none.
    """
    try:
        same = os.path.samestat(os.fstat(handle), (path / LOCK).stat())
    except FileNotFoundError:
        same = False
    if not same:
        raise StoreError(
            f"{path} is not the folder any more that was opened (it was unmounted, moved or replaced); bring "
            f"it back, then {AGAIN}: finished shards are kept"
        )


def is_leftover(path: Path) -> bool:
    """Whether this is a file that `atomic_write` was at when it was killed, by its name."""
    return path.name.startswith(".") and path.name.endswith(".tmp") and path.is_file()


def leftovers(store: Path) -> Iterator[Path]:
    """Files that a killed writer left: ours end in `.tmp`, zarr's in `.partial`."""
    for folder, _, names in os.walk(store):
        for name in names:
            if name.endswith((".tmp", ".partial")):
                yield Path(folder) / name
