"""The file of a mark: who may put theirs in its place, and how, so that one of several has it.

A mark's path in; a handle of a mark of our own, locked, out. The file says who has it (`leases.Holder`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import uuid
from pathlib import Path
from typing import Final

from .errors import ShardBusyError
from .leases import Watch, read_holder, write_holder
from .locks import lock
from .records import mark_path

__all__ = ["busy", "install_mark", "is_at", "owner_of"]

_NO_LINKS: Final = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
"""What file systems without hard links answer."""


def install_mark(path: Path, shard: int, lease: float | None, watch: Watch | None) -> int:
    """A mark of our own at its path, locked and open, in the place of none or of one that may be replaced.

    Raises:
        ShardBusyError: another lives that has the shard.
        StoreError: the file system has no locks.
        OSError: the mark cannot be made.
    """
    while True:
        old = _opened(path)
        try:
            if old is not None and not _may_replace(old, path, shard, watch):
                continue
            handle = _put(path, lease, replace=old is not None)
            if handle is not None:
                return handle
        finally:
            if old is not None:
                os.close(old)


def _opened(path: Path) -> int | None:
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None


def _may_replace(old: int, path: Path, shard: int, watch: Watch | None) -> bool:
    """Whether the owner of an open mark is dead, or taken for dead; False if the mark is another one by now.

    Raises:
        ShardBusyError: it lives.
    """
    is_free = lock(old, path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if not is_free and (watch is None or not watch.is_expired(shard, old)):
        raise busy(shard)
    return is_at(old, path)


def _put(path: Path, lease: float | None, *, replace: bool) -> int | None:
    """A new mark, locked before it has its name; None if another had it first."""
    temporary = path.with_name(f"{path.name.removesuffix('.tmp')}.{uuid.uuid4().hex}.tmp")
    handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        lock(handle, path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if lease is not None:
            write_holder(handle, lease)
        if not replace and _linked(temporary, path):
            return handle
        # Of two that do this at the same moment the first loses what it had: it finds that out by the mark.
        temporary.rename(path)
    except FileExistsError:
        os.close(handle)
        return None
    except BaseException:
        os.close(handle)
        raise
    finally:
        temporary.unlink(missing_ok=True)
    return handle


def _linked(temporary: Path, path: Path) -> bool:
    """Give the mark its name where there is none; False where the file system has no hard links."""
    try:
        os.link(temporary, path)
    except OSError as exc:
        if exc.errno in _NO_LINKS:
            return False
        raise
    return True


def busy(shard: int) -> ShardBusyError:
    """What to say of a shard that has another owner."""
    return ShardBusyError(
        f"one owner writes a shard; shard {shard} is being published by another thread or process; leave it "
        "to that one, and write the shards that are unfinished when it is done"
    )


def is_at(handle: int, path: Path) -> bool:
    """Whether an open mark is the one that has the name."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(handle), path.stat())
    return False


def owner_of(store: Path, shard: int) -> str:
    """Who has a shard, in words."""
    handle = _opened(store / mark_path(shard))
    if handle is None:
        return "another process"
    try:
        return read_holder(handle).who
    finally:
        os.close(handle)
