"""Marks: who is writing a shard. `shards/.00000.json.tmp`, locked, says that its holder is the one owner.

A shard's number in; a `Mark` out, by which its owner changes the shard. A mark without a living owner is left
by a killed writer. Whoever removes it removes the shard's files first, so that files without a record and
without a mark always mean that the record was lost.

The lock tells at once that an owner has died. Of one that neither dies nor works, its lease tells (`leases`).
Neither has to be believed: what an owner may change is changed through its `staging`, which goes to the next.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from .files import sync_folder
from .index import INDEX
from .leases import Watch
from .manifest import Manifest
from .mark_files import busy, install_mark, is_at
from .records import SHARD_DIGITS, array_file, arrays_of, mark_path, record_path, statistics_path
from .restoring import index_in_hand, write_lost
from .staging import Staging, fence

__all__ = ["MARK_NAME", "Mark", "begin_again", "own", "owned_shards"]

MARK_NAME: Final = re.compile(rf"\.(\d{{5,{SHARD_DIGITS}}})\.json\.tmp")


class Mark:
    """A shard's mark, held until it is closed or collected; whoever holds it is the one owner."""

    def __init__(self, store: Path, manifest: Manifest, shard: int, handle: int) -> None:
        self._store = store
        self._manifest = manifest
        self._shard = shard
        self._handle = handle
        self._path = store / mark_path(shard)
        self._lock = threading.Lock()
        self._close = weakref.finalize(self, os.close, handle)
        self.staging = Staging(store, shard)

    @property
    def is_open(self) -> bool:
        """Whether it was not closed; it may be another's by now (`is_held`)."""
        return self._close.alive

    @property
    def is_held(self) -> bool:
        """Whether nobody has taken the shard over."""
        return self.is_open and self.staging.exists() and is_at(self._handle, self._path)

    def renew(self) -> None:
        """Give a sign of life, in the mark's own time of change."""
        now = time.time_ns()
        with self._lock:
            if self._close.alive:
                os.utime(self._handle, ns=(now, now))

    def close(self) -> None:
        """Give up the ownership; the mark, if it is there still, is a leftover then."""
        with self._lock:
            self._close()

    def leave(self) -> None:
        """Give up the ownership; mark and files stay for whoever goes on with them."""
        with contextlib.suppress(OSError):
            self.staging.remove()
        self.close()

    def write(self, path: str, data: bytes) -> None:
        """Write a file that is to be `path` of the store, and bring it to disk."""
        with (self.staging.folder / self.staging.name_of(path)).open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def publish(self, text: bytes) -> None:
        """Make the shard valid by its record, bring that to disk, and give up the ownership.

        Raises:
            FileNotFoundError: another owner has taken the shard over.
        """
        record = record_path(self._shard)
        self.write(record, text)
        self.staging.put(record)
        sync_folder((self._store / record).parent)
        self._retire()

    def discard(self) -> None:
        """Remove what the owner wrote, then the mark, and give up the ownership.

        A shard that has its record still was not touched yet: records go before the first file is written,
        and the index, which may be the only one to have it, goes before them. Of a shard that another has
        taken over nothing is removed.

        Raises:
            OSError: something cannot be removed; the mark stays then.
        """
        try:
            if not (self._store / record_path(self._shard)).exists() and not (self._store / INDEX).exists():
                self._remove_files()
            self._retire()
        finally:
            self.leave()

    def _retire(self) -> None:
        """Remove the mark; should that fail, it is a leftover, beside a record or alone."""
        with contextlib.suppress(FileNotFoundError):
            self.staging.take(mark_path(self._shard))
        self.leave()

    def _remove_files(self) -> None:
        for array in arrays_of(self._manifest):
            path = array_file(array.layer, array.kind, self._shard)
            self._remove(path)
            for temporary in (self._store / path).parent.glob(".*.tmp"):  # of a copy
                self._remove(temporary.relative_to(self._store).as_posix())
        self._remove(statistics_path(self._shard))

    def _remove(self, path: str) -> None:
        if self.staging.take(path):
            sync_folder((self._store / path).parent)


def own(
    store: Path,
    manifest: Manifest,
    shard: int,
    lease: float | None = None,
    watch: Watch | None = None,
) -> Mark:
    """Become the shard's one owner; the mark of a killed one is taken over.

    Args:
        store: its folder.
        manifest: of the store.
        shard: its number.
        lease: seconds after which others may take the shard over, unless `Mark.renew` is called; None is
            never, for an owner whose files have their names in the store by other ways than its staging.
        watch: what was seen of other owners; one that has given no sign for its lease loses the shard. None
            leaves shards to their owners until these die.

    Raises:
        ShardBusyError: another thread or process owns it.
        StoreError: the file system has no locks.
        OSError: the mark cannot be made.
    """
    path = store / mark_path(shard)
    path.parent.mkdir(exist_ok=True)
    mark = Mark(store, manifest, shard, install_mark(path, shard, lease, watch))
    try:
        # In this order: an owner whose folder is not seen by `fence` finds another mark than its own.
        fence(store, shard)
        mark.staging.make()
    except BaseException:
        mark.leave()
        raise
    if not mark.is_held:
        mark.leave()
        raise busy(shard)
    return mark


def owned_shards(store: Path) -> list[int]:
    """Shards with a mark, ascending: owned, or left by a killed writer."""
    names = (MARK_NAME.fullmatch(entry.name) for entry in (store / "shards").glob(".*.tmp"))
    return sorted(int(match[1]) for match in names if match is not None)


def begin_again(store: Path, shards: Iterable[int], owner: Mark | None = None) -> None:
    """Make the store and these shards unfinished, whatever they were before; it is on disk when this returns.

    The index goes first, as it speaks for the records; the records of other shards that it alone has are
    written before. All of it is one step for whoever completes the store, which holds its records against an
    index within the same lock. Folders are synced also where nothing was there: who removed it may have been
    killed before that was on disk.

    Args:
        store: its folder.
        shards: which.
        owner: of the one shard that it is, who then does nothing if another has taken that over; None is one
            whom nobody takes it from.

    Raises:
        FileNotFoundError: another owner has taken the shard over.
        OSError: the disk is read-only or gone.
    """
    shards = set(shards)
    # The record first: while its shard has an owner and no record, nobody can write an index.
    has_record = any((store / record_path(shard)).exists() for shard in shards)
    if owner is None or has_record or (store / INDEX).exists():
        with index_in_hand(store):
            _begin_again(store, shards, owner)
    else:
        sync_folder(store)
        sync_folder(store / "shards")


def _begin_again(store: Path, shards: set[int], owner: Mark | None) -> None:
    def remove(path: str) -> None:
        if owner is None:
            (store / path).unlink(missing_ok=True)
        else:
            owner.staging.take(path)

    if (store / INDEX).exists():
        write_lost(store, except_for=shards)
        remove(INDEX)
    sync_folder(store)
    for shard in shards:
        remove(record_path(shard))
    if shards:
        sync_folder(store / "shards")
