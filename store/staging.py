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

from .errors import ShardBusyError, StoreError
from .records import record_path

__all__ = ["Staging", "fence", "staging_path"]

_PATIENCE: Final = 30.0
"""Seconds that an old owner's folder is emptied for, while that goes on to fill it."""
_OPEN_ON_NFS: Final = ".nfs"
"""Names of files that were removed while a process of this very node had them open."""
_GONE_NAME: Final = ".gone.tmp"
"""How the name ends of what is being removed."""
_AS_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_GONE: Final = (errno.ENOENT, errno.ESTALE)
"""What is removed is the one or the other; a network disk may say either."""
_NO_FOLDER: Final = (errno.ENOTDIR, errno.ELOOP)
"""What a file and a link answer who are opened as a folder."""


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
            if exc.errno in _GONE:
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
        gone = self.folder / f"{uuid.uuid4().hex}{_GONE_NAME}"
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

    No link is followed: one in the place of a folder is removed itself, as a file there is.

    Raises:
        ShardBusyError: an owner goes on to fill its folder.
        StoreError: something is in the way that no owner makes; nothing of it is touched.
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
    """What is in a folder, but for what only processes of this node keep open; nothing if it is not there.

    Raises:
        StoreError: something else than an owner's is there.
    """
    found = _entries(folder)
    if found is None:  # not a folder of ours, and in the place of one
        folder.unlink(missing_ok=True)
        return []
    stagings = [folder / entry.name for entry in found if not entry.name.startswith(_OPEN_ON_NFS)]
    for staging in stagings:
        if not staging.name.endswith(".tmp"):
            raise _in_the_way(staging)
    return [staging for staging in stagings if not _is_held_open(staging)]


def _entries(folder: Path) -> list[os.DirEntry[str]] | None:
    """What is in a folder, none if it is not there; None for a link or a file. No link is followed."""
    try:
        handle = os.open(folder, _AS_FOLDER)
    except OSError as exc:
        if exc.errno in _GONE:
            return []
        if exc.errno in _NO_FOLDER:
            return None
        raise
    try:
        with os.scandir(handle) as entries:
            return list(entries)
    finally:
        os.close(handle)


def _in_the_way(path: Path) -> StoreError:
    return StoreError(
        f"{path} is no part of the store and in the way of a shard; move it away, then run the same command "
        "again: finished shards are kept"
    )


def _is_held_open(folder: Path) -> bool:
    """Whether a folder has files that are open here and have no other name, and nothing else.

    An NFS client keeps such files under names of its own, and their folder cannot be removed. It was renamed
    first, and this node's processes, which alone have them open, find nothing under its old name.
    """
    if not folder.name.endswith(_GONE_NAME):
        return False
    found = _entries(folder)
    return bool(found) and all(file.name.startswith(_OPEN_ON_NFS) for file in found or ())


def _remove(folder: Path) -> bool:
    """Empty a folder and remove it; False if something was put into it meanwhile.

    Once it is removed, no file can be put into it or taken out of it, also by one who has looked it up
    before: neither by the kernel of this machine nor by the server of a network disk.

    Raises:
        StoreError: it has a folder, which no owner makes.
    """
    found = _entries(folder)
    if found is None:
        folder.unlink(missing_ok=True)
        return True
    for entry in found:
        if entry.is_dir(follow_symlinks=False):
            raise _in_the_way(folder / entry.name)
    if not folder.name.endswith(_GONE_NAME):
        gone = folder.with_name(f"{uuid.uuid4().hex}{_GONE_NAME}")
        try:
            folder.rename(gone)
        except FileNotFoundError:
            return True
        folder = gone
    try:
        _empty(folder)
        folder.rmdir()
    except OSError as exc:
        if exc.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        if exc.errno in _GONE:
            return True
        raise
    return True


def _empty(folder: Path) -> None:
    """Remove the files of a folder, and of links the links; by its handle, so that it is this folder."""
    handle = os.open(folder, _AS_FOLDER)
    try:
        with os.scandir(handle) as entries:
            names = [entry.name for entry in entries]
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=handle)
    finally:
        os.close(handle)
