"""What an owner of a shard has not published yet: a folder of its own, which is lost together with the shard.

A store and a shard's number in; files that appear in the store, and vanish from it, by rename. Everything
that an owner changes of its shard is a rename with one side in this folder. Whoever takes the shard over
removes the folder first: whatever the old owner had begun to do, it can do no more, also where it looked at
who owns the shard a moment before. FORMAT.md, "Several writers", has the argument.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
import uuid
from pathlib import Path
from typing import Final

from .errors import ShardBusyError
from .records import record_path

__all__ = ["Staging", "fence", "staging_path"]

_PATIENCE: Final = 30.0
"""Seconds that an old owner's folder is emptied for, while that goes on to fill it."""
_OPEN_ON_NFS: Final = ".nfs"
"""Names of files that were removed while a process of this very node had them open."""


def staging_path(shard: int) -> str:
    """Folder of a shard's stagings, relative to the store."""
    folder, _, name = record_path(shard).rpartition("/")
    return f"{folder}/.{name.removesuffix('.json')}.files.tmp"


class Staging:
    """The folder of one ownership; made by `make`, gone with `remove`, or with `fence` by another owner."""

    def __init__(self, store: Path, shard: int) -> None:
        self._store = store
        self.folder = store / staging_path(shard) / f"{uuid.uuid4().hex}.tmp"

    def make(self) -> None:
        """Make the folder, which is of no other ownership."""
        while True:
            self.folder.parent.mkdir(exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # another owner removed the folder above just now
                self.folder.mkdir()
                return

    def exists(self) -> bool:
        """Whether nobody has removed it."""
        try:
            self.folder.stat()
        except OSError as exc:
            if exc.errno in (errno.ENOENT, errno.ESTALE):  # a network disk may say either
                return False
            raise
        return True

    @staticmethod
    def name_of(path: str) -> str:
        """Name of a file here that is to be `path` of the store."""
        return path.replace("/", "-") + ".tmp"

    def put(self, path: str) -> None:
        """Give a file that was written here its name in the store, in the place of what has it.

        Raises:
            FileNotFoundError: another owner has removed it.
        """
        (self.folder / self.name_of(path)).replace(self._store / path)

    def take(self, path: str) -> bool:
        """Remove a file from the store, by way of this folder; False if it was not there.

        Raises:
            FileNotFoundError: another owner has removed the folder.
            IsADirectoryError: a folder is in the file's place.
        """
        file = self._store / path
        if file.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))
        gone = self.folder / f"{uuid.uuid4().hex}.gone.tmp"
        try:
            file.rename(gone)
        except FileNotFoundError:
            if not self.exists():
                raise
            return False
        gone.unlink(missing_ok=True)
        return True

    def remove(self) -> None:
        """Remove the folder, and that of the shard's stagings with the last of them."""
        _remove(self.folder)
        with contextlib.suppress(FileNotFoundError, OSError):
            self.folder.parent.rmdir()


def fence(store: Path, shard: int) -> None:
    """Remove the folders of all owners that the shard had: when this returns, none of them can change it.

    Raises:
        ShardBusyError: an owner goes on to fill its folder.
        OSError: a folder cannot be removed.
    """
    folder, until = store / staging_path(shard), time.monotonic() + _PATIENCE
    while found := _stagings(folder):
        left = [staging for staging in found if not _remove(staging)]
        if not left:
            continue
        if time.monotonic() > until:
            raise ShardBusyError(f"shard {shard} has an owner that was taken for dead and goes on to write")
        time.sleep(0.01)


def _stagings(folder: Path) -> list[Path]:
    """What is in a folder, but for what only processes of this node keep open; nothing if it is not there."""
    try:
        found = list(folder.iterdir())
    except FileNotFoundError:
        return []
    return [entry for entry in found if not _is_held_open(entry)]


def _is_held_open(folder: Path) -> bool:
    """Whether a folder has files that are open here and have no other name, and nothing else.

    An NFS client keeps such files under names of its own, and their folder cannot be removed. It was renamed
    first, and this node's processes, which alone have them open, find nothing under its old name.
    """
    if not folder.name.endswith(".gone.tmp"):
        return False
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        found = list(folder.iterdir())
        return bool(found) and all(file.name.startswith(_OPEN_ON_NFS) for file in found)
    return False


def _remove(folder: Path) -> bool:
    """Empty a folder and remove it; False if something was put into it meanwhile.

    Once it is removed, no file can be put into it or taken out of it, also by one who has looked it up
    before: neither by the kernel of this machine nor by the server of a network disk.
    """
    if not folder.name.endswith(".gone.tmp"):
        gone = folder.with_name(f"{uuid.uuid4().hex}.gone.tmp")
        try:
            folder.rename(gone)
        except FileNotFoundError:
            return True
        folder = gone
    try:
        for file in list(folder.iterdir()):
            file.unlink(missing_ok=True)
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError as exc:
        if exc.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True
