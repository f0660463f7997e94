"""Marks: who is writing a shard. `shards/.00000.json.tmp`, locked, says that its holder is the one owner.

A shard's number in; a `Mark` out, which becomes the shard's record. A mark without a living owner is left by
a killed writer. Whoever removes it removes the shard's files first, so that files without a record and
without a mark always mean that the record was lost.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from .errors import ShardBusyError
from .files import sync_folder
from .manifest import Manifest
from .records import array_file, arrays_of, record_path, statistics_path

__all__ = ["Mark", "collect_marks", "owned", "owned_shards"]

_MARK: Final = re.compile(r"\.(\d{5,12})\.json\.tmp")


class Mark:
    """A shard's mark, held by this thread."""

    def __init__(self, store: Path, shard: int, handle: int) -> None:
        self._store = store
        self._record = store / record_path(shard)
        self._handle = handle

    def publish(self, text: bytes) -> None:
        """Make the mark the shard's record, and bring it to disk."""
        os.ftruncate(self._handle, 0)
        written = 0
        while written < len(text):
            written += os.pwrite(self._handle, text[written:], written)
        os.fsync(self._handle)
        os.replace(_mark_of(self._record), self._record)  # noqa: PTH105  (beside the other system calls)
        sync_folder(self._record.parent)


def _mark_of(record: Path) -> Path:
    return record.with_name(f".{record.name}.tmp")


@contextlib.contextmanager
def owned(store: Path, manifest: Manifest, shard: int) -> Iterator[Mark]:
    """Be the shard's one owner meanwhile; after an error its files are removed, and then the mark.

    Raises:
        ShardBusyError: another thread or process owns it.
        OSError: the mark cannot be made.
    """
    handle = _take(store, shard)
    try:
        yield Mark(store, shard, handle)
    except BaseException:
        # Best effort: the first error is told, and a mark that stays is collected later.
        with contextlib.suppress(OSError):
            _discard(store, manifest, shard)
        raise
    finally:
        os.close(handle)


def _take(store: Path, shard: int) -> int:
    mark = _mark_of(store / record_path(shard))
    while True:
        handle = os.open(mark, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            _lock(handle, shard)
            if _is_at(handle, mark):
                return handle
        except BaseException:
            os.close(handle)
            raise
        # Between opening and locking its owner made it the record, or removed it.
        os.close(handle)


def _lock(handle: int, shard: int) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        raise ShardBusyError(
            f"one owner writes a shard; shard {shard} is being published by another thread or process; leave "
            "it to that one, and write the shards that are unfinished when it is done"
        ) from exc
    except OSError:
        pass  # a file system without locks: writers must not be given the same shards there


def _is_at(handle: int, path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(handle), path.stat())
    return False


def owned_shards(store: Path) -> list[int]:
    """Shards with a mark, ascending: owned, or left by a killed writer."""
    names = (_MARK.fullmatch(entry.name) for entry in (store / "shards").glob(".*.tmp"))
    return sorted(int(match[1]) for match in names if match is not None)


def collect_marks(store: Path, manifest: Manifest) -> None:
    """Remove the marks of killed writers, each after its shard's files; living owners' stay."""
    for shard in owned_shards(store):
        try:
            handle = _take(store, shard)
        except ShardBusyError:
            continue
        try:
            _discard(store, manifest, shard)
        finally:
            os.close(handle)


def _discard(store: Path, manifest: Manifest, shard: int) -> None:
    """Remove what the owner of a mark wrote, then the mark.

    A shard that has its record still was not touched yet: records go before the first file is written.
    """
    if not (store / record_path(shard)).exists():
        for array in arrays_of(manifest):
            file = store / array_file(array.layer, array.kind, shard)
            _remove(file)
            for temporary in file.parent.glob(".*.tmp"):
                _remove(temporary)
        _remove(store / statistics_path(shard))
    _mark_of(store / record_path(shard)).unlink(missing_ok=True)


def _remove(file: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        file.unlink()
        sync_folder(file.parent)
