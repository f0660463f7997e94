"""A folder for what is on its way to a bucket, removed when its owner is done with it, or has died.

Nothing in; a path below the folder for temporary files (`TMPDIR`) out. A lock held on it tells the folder of
a living process from one that a killed process left.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Final

from .errors import StoreError

__all__ = ["Scratch", "scratch_error"]

_PREFIX: Final = "activault-upload-"
_LOCK: Final = "lock"


class Scratch:
    """One such folder.

    Raises:
        StoreError: it cannot be made.
    """

    def __init__(self) -> None:
        try:
            _sweep(Path(tempfile.gettempdir()))
            self.path, handle = _made()
        except OSError as exc:
            raise scratch_error(exc) from exc
        self.close = weakref.finalize(self, _remove, self.path, handle)
        """Remove it; also done when it is collected."""

    def folder(self, name: str) -> Path:
        """An empty folder in it.

        Raises:
            OSError: it cannot be made.
        """
        path = self.path / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        return path


def scratch_error(exc: OSError) -> StoreError:
    """A full or read-only disk for temporary files in words."""
    return StoreError(
        f"a shard is written to {tempfile.gettempdir()} before it is uploaded, which failed "
        f"({exc.strerror or exc}); make room there for the bytes of a shard, or name another folder by "
        "TMPDIR, then run the same command again: finished shards are kept"
    )


def _made() -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        handle = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        if _lock(handle) and (path / _LOCK).exists():
            return path, handle
        os.close(handle)  # somebody who sweeps was quicker, and removes it or has done so


def _lock(handle: int) -> bool:
    """Hold the lock; also where the file system has none, since then nobody can sweep."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _remove(path: Path, handle: int) -> None:
    shutil.rmtree(path, ignore_errors=True)
    os.close(handle)


def _sweep(folder: Path) -> None:
    """Remove what killed processes of this user left."""
    for path in folder.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another's, or gone by now
            handle = os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(handle)
