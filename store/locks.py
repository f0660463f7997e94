"""`flock`, by which writers keep apart; where it cannot be had is an error, not a lock that holds nobody.

A handle and the path that it is of in; whether the lock is held out. Folders are locked by a file `.lock` in
them, which stays: locks of a folder itself keep apart only the processes of one client of a network disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from .errors import StoreError

__all__ = [
    "LOCK",
    "TOLD_AFTER",
    "at_work",
    "lock",
    "lock_shared",
    "locked_alone",
    "locked_by_one",
    "nobody_at_work",
    "tried_by_one",
    "waiting_for",
]

LOCK = ".lock"
"""Name of a folder's lock file."""
TOLD_AFTER: Final = 10.0
"""Seconds without a lock after which that is said."""
_RETRY: Final = 0.01
_log: Final = logging.getLogger(__name__)


def _open_lock(folder: Path) -> int:
    """A handle of a folder's lock file, which is made if it is not there; open for writing, as NFS asks.

    Raises:
        OSError: the folder is not there, or may not be written to.
    """
    return os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)


def lock(handle: int, path: Path, operation: int) -> bool:
    """Take the lock; False where somebody else holds it and `operation` does not wait (`LOCK_NB`).

    Raises:
        StoreError: the file system has no such locks: two writers would own the same shard, and one would
            remove the other's files as a killed writer's.
    """
    try:
        fcntl.flock(handle, operation)
    except BlockingIOError:
        return False
    except OSError as exc:
        raise StoreError(
            f"writers keep apart by flock; {path} cannot be locked ({exc.strerror or exc}); mount its file "
            "system with locks (Lustre by `-o flock`, NFS as version 4), or write on a local disk and copy "
            "the finished store"
        ) from exc
    return True


def nobody_at_work(folder: Path) -> bool:
    """Whether no writer holds its lock on the folder now; False also where locks do not tell."""
    try:
        handle = os.open(folder / LOCK, os.O_RDWR if os.access(folder / LOCK, os.W_OK) else os.O_RDONLY)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        return lock(handle, folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except StoreError:
        return False
    finally:
        os.close(handle)


def lock_shared(folder: Path) -> int:
    """Open a folder's lock file and hold it together with other writers; the caller closes the handle.

    Waits for a writer that is collecting, which takes moments. Raises as `lock` does.
    """
    handle = _open_lock(folder)
    try:
        _wait_for(handle, folder, fcntl.LOCK_SH)
    except BaseException:
        os.close(handle)
        raise
    return handle


@contextlib.contextmanager
def at_work(folder: Path) -> Iterator[int]:
    """Hold the writers' lock, so that nobody takes what is half-written for a leftover; yields the handle."""
    handle = lock_shared(folder)
    try:
        yield handle
    finally:
        os.close(handle)


@contextlib.contextmanager
def locked_by_one(folder: Path) -> Iterator[None]:
    """Wait until nobody else is at work in the folder, and keep others waiting; raises as `lock` does.

    It is held for moments. That of a process that was stopped in these is waited for, and that is said.
    """
    handle = _open_lock(folder)
    try:
        _wait_for(handle, folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _wait_for(handle: int, folder: Path, operation: int) -> None:
    """Take the lock, and say so if somebody else holds it for long."""
    until = time.monotonic() + TOLD_AFTER
    while not lock(handle, folder, operation | fcntl.LOCK_NB):
        if time.monotonic() > until:
            _log.warning(waiting_for(folder))
            lock(handle, folder, operation)
            return
        time.sleep(_RETRY)


@contextlib.contextmanager
def tried_by_one(folder: Path) -> Iterator[bool]:
    """Try to be at work in the folder alone; False if another is. Raises as `lock` does."""
    handle = _open_lock(folder)
    try:
        yield lock(handle, folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(handle)


def waiting_for(folder: Path) -> str:
    """What to say when a lock is not had for long."""
    return (
        f"waiting for another process at work in {folder}; should that be stopped, end it: "
        f"`fuser {folder / LOCK}` tells which it is"
    )


@contextlib.contextmanager
def locked_alone(handle: int, folder: Path) -> Iterator[bool]:
    """Try to turn a shared lock into the only one meanwhile; False if another writer is at work."""
    alone = lock(handle, folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        yield alone
    finally:
        # Also after a failure: flock lets go of the old lock before it tries for the new one.
        lock(handle, folder, fcntl.LOCK_SH)
