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
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from .errors import ShardBusyError
from .files import leftovers, sync_folder
from .index import INDEX
from .locks import lock, locked_alone
from .manifest import Manifest
from .records import SHARD_DIGITS, array_file, arrays_of, mark_path, record_path, statistics_path
from .restoring import index_in_hand, write_lost
from .root import PLANNING

__all__ = ["MARK_NAME", "Mark", "begin_again", "collect_leftovers", "own", "owned_shards"]

MARK_NAME: Final = re.compile(rf"\.(\d{{5,{SHARD_DIGITS}}})\.json\.tmp")


class Mark:
    """A shard's mark, held until it is closed or collected; whoever holds it is the one owner."""

    def __init__(self, store: Path, manifest: Manifest, shard: int, handle: int) -> None:
        self._store = store
        self._manifest = manifest
        self._shard = shard
        self.handle = handle
        self._path = store / mark_path(shard)
        self._record = store / record_path(shard)
        self.close = weakref.finalize(self, os.close, handle)
        """Give up the ownership; the mark, if it is there still, is a leftover then."""

    def publish(self, text: bytes) -> None:
        """Make the mark the shard's record, and bring it to disk."""
        os.ftruncate(self.handle, 0)
        written = 0
        while written < len(text):
            written += os.pwrite(self.handle, text[written:], written)
        os.fsync(self.handle)
        self._path.replace(self._record)
        sync_folder(self._record.parent)

    def discard(self) -> None:
        """Remove what the owner wrote, then the mark, and give up the ownership.

        A shard that has its record still was not touched yet: records go before the first file is written,
        and the index, which may be the only one to have it, goes before them.

        Raises:
            OSError: something cannot be removed; the mark stays then.
        """
        try:
            if not self._record.exists() and not (self._store / INDEX).exists():
                self._remove_files()
            self._path.unlink(missing_ok=True)
        finally:
            self.close()

    def _remove_files(self) -> None:
        for array in arrays_of(self._manifest):
            file = self._store / array_file(array.layer, array.kind, self._shard)
            _remove(file)
            for temporary in file.parent.glob(".*.tmp"):
                _remove(temporary)
        _remove(self._store / statistics_path(self._shard))


def _remove(file: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        file.unlink()
        sync_folder(file.parent)


def own(store: Path, manifest: Manifest, shard: int) -> Mark:
    """Become the shard's one owner; the mark of a killed one is taken over.

    Raises:
        ShardBusyError: another thread or process owns it.
        StoreError: the file system has no locks.
        OSError: the mark cannot be made.
    """
    path = store / mark_path(shard)
    path.parent.mkdir(exist_ok=True)
    while True:
        mark = Mark(store, manifest, shard, os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666))
        try:
            _own(mark.handle, path, shard)
            if _is_at(mark.handle, path):
                return mark
        except BaseException:
            mark.close()
            raise
        mark.close()  # between opening and locking its owner made it the record, or removed it


def _own(handle: int, path: Path, shard: int) -> None:
    if not lock(handle, path, fcntl.LOCK_EX | fcntl.LOCK_NB):
        raise ShardBusyError(
            f"one owner writes a shard; shard {shard} is being published by another thread or process; leave "
            "it to that one, and write the shards that are unfinished when it is done"
        )


def _is_at(handle: int, path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(handle), path.stat())
    return False


def owned_shards(store: Path) -> list[int]:
    """Shards with a mark, ascending: owned, or left by a killed writer."""
    names = (MARK_NAME.fullmatch(entry.name) for entry in (store / "shards").glob(".*.tmp"))
    return sorted(int(match[1]) for match in names if match is not None)


def _collect_marks(store: Path, manifest: Manifest) -> None:
    """Remove the marks of killed writers, each after its shard's files; living owners' stay."""
    for shard in owned_shards(store):
        with contextlib.suppress(ShardBusyError):
            own(store, manifest, shard).discard()


def collect_leftovers(store: Path, handle: int, marks_of: Manifest | None) -> None:
    """Remove what killed writers left, unless another writer is at work: it could be theirs.

    Args:
        store: the store's folder.
        handle: of the folder, with the writers' shared lock.
        marks_of: the manifest, to collect marks with the files of their shards; None leaves both, for whoever
            goes on with them.
    """
    with locked_alone(handle, store) as alone:
        if not alone:
            return
        (store / PLANNING).unlink(missing_ok=True)
        if marks_of is not None:
            _collect_marks(store, marks_of)
        for file in leftovers(store):
            if MARK_NAME.fullmatch(file.name) is None:
                file.unlink(missing_ok=True)


def begin_again(store: Path, shards: Iterable[int]) -> None:
    """Make the store and these shards unfinished, whatever they were before; it is on disk when this returns.

    The index goes first, as it speaks for the records; the records of other shards that it alone has are
    written before. All of it is one step for whoever completes the store, which holds its records against an
    index within the same lock. Folders are synced also where nothing was there: who removed it may have been
    killed before that was on disk.

    Raises:
        OSError: the disk is read-only or gone.
    """
    shards = set(shards)
    with index_in_hand(store):
        if (store / INDEX).exists():
            write_lost(store, except_for=shards)
            (store / INDEX).unlink(missing_ok=True)
        sync_folder(store)
        for shard in shards:
            (store / record_path(shard)).unlink(missing_ok=True)
        if shards:
            sync_folder(store / "shards")
