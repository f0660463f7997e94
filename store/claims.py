"""The claim on a shard that is being copied: one owner, and a record that comes last.

A store's folder and a shard's number in; the shard's mark, locked, while its files come in, and the mark
turned into the record at the end. See FORMAT.md, "Records".
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
from pathlib import Path
from typing import Final

from .errors import StoreError
from .files import leftovers, lock_shared, locked_alone, sync_folder
from .index import INDEX
from .records import record_path

__all__ = ["CopyLock", "ShardClaim", "mark_path"]

_MARK: Final = re.compile(r"\.\d{5,}\.json\.tmp")


def mark_path(shard: int) -> str:
    """File that marks a shard as being written, relative to the store."""
    folder, _, name = record_path(shard).rpartition("/")
    return f"{folder}/.{name}.tmp"


class CopyLock:
    """Holds the writers' shared lock on a store, and removes what killed copies left half-written.

    Marks stay, with the files of their shards: the copy goes on with both.
    """

    def __init__(self, path: Path) -> None:
        self._handle = lock_shared(path)
        with locked_alone(self._handle) as alone:
            for file in leftovers(path) if alone else ():
                if _MARK.fullmatch(file.name) is None:
                    file.unlink(missing_ok=True)

    def close(self) -> None:
        """Give up the lock."""
        os.close(self._handle)


class ShardClaim:
    """Ownership of one shard.

    Raises:
        StoreError: another process is writing this shard.
    """

    def __init__(self, path: Path, shard: int) -> None:
        self._path = path
        self._mark = path / mark_path(shard)
        self._record = path / record_path(shard)
        self._handle = self._locked()
        # From here on the shard and the store are not finished, whatever they were before.
        (path / INDEX).unlink(missing_ok=True)
        self._record.unlink(missing_ok=True)
        sync_folder(self._mark.parent)

    def _locked(self) -> int:
        while True:
            handle = os.open(self._mark, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            try:
                _lock(handle)
            except BlockingIOError as exc:
                os.close(handle)
                raise StoreError(
                    f"one process writes a shard; {self._record.name} of {self._path} is being written by "
                    "another: wait for it, then run the same command again"
                ) from exc
            with contextlib.suppress(FileNotFoundError):
                if self._mark.stat().st_ino == os.fstat(handle).st_ino:
                    return handle
            os.close(handle)  # its owner finished in between: the mark is the record now

    def publish(self, record: bytes) -> None:
        """Make the shard valid; all of its files are on disk."""
        os.ftruncate(self._handle, 0)
        with os.fdopen(os.dup(self._handle), "wb") as file:
            file.write(record)
            file.flush()
            os.fsync(file.fileno())
        self._mark.replace(self._record)
        sync_folder(self._record.parent)

    def close(self) -> None:
        """Let go of the shard; a mark that is still there stays, with the files."""
        os.close(self._handle)


def _lock(handle: int) -> None:
    """Lock for this handle alone; file systems without locks have one writer only, as FORMAT.md says."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        if exc.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
            raise
