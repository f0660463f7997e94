"""Whether a disk has the room for a store that is not there yet.

A path in; free bytes and files of the disk that its nearest existing parent is on. Nothing is written. A
quota of a user or a project is known to the file system alone until it is reached, and is not seen here.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Room", "room_at"]


@dataclass(frozen=True, kw_only=True)
class Room:
    """What a place offers; None where it is not known."""

    place: str
    """The folder that was asked, or the URL."""
    free_bytes: int | None
    free_files: int | None
    """None where the file system does not count them."""
    writable: bool
    """Whether this user may write there."""
    note: str = ""
    """Why something is not known."""

    def shortfall(self, num_bytes: int, num_files: int) -> str | None:
        """What lacks for a store of so many bytes and files, in words; None if nothing is known to."""
        if not self.writable:
            return f"{self.place} may not be written to; grant the right, or choose another path"
        if self.free_bytes is not None and num_bytes > self.free_bytes:
            free, coming, lacking = map(_spoken, (self.free_bytes, num_bytes, num_bytes - self.free_bytes))
            return (
                f"{self.place} has {free} free, and {coming} are to come, {lacking} too many; free them, "
                "choose another path, keep fewer layers or patches, or take --dtype int8"
            )
        if self.free_files is not None and num_files > self.free_files:
            return (
                f"{self.place} has room for {self.free_files:,} more files, and {num_files:,} are to come; "
                "choose another path, or more --shard-rows"
            )
        return None


def _spoken(num_bytes: int) -> str:
    """In kB or GB, so that there is something to see of it."""
    return f"{num_bytes / 1e9:,.1f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e3:,.1f} kB"


def room_at(path: Path | str) -> Room:
    """What the disk of a path offers, or that nobody can tell.

    A bucket has no size. A folder whose file system does not answer (a dead mount, a missing right) is
    reported, not raised: what it is for is not begun yet.
    """
    if "://" in str(path):
        note = "how much a bucket takes is not known"
        return Room(place=str(path), free_bytes=None, free_files=None, writable=True, note=note)
    folder = Path(path).absolute()
    try:
        while not folder.exists():
            folder = folder.parent
        folder = folder if folder.is_dir() else folder.parent
        told = os.statvfs(folder)
        writable = os.access(folder, os.W_OK | os.X_OK)
    except OSError as exc:
        note = f"{exc.filename or folder} does not tell its free space ({exc.strerror})"
        return Room(place=str(folder), free_bytes=None, free_files=None, writable=True, note=note)
    return Room(
        place=str(folder),
        free_bytes=told.f_bavail * told.f_frsize,
        free_files=told.f_favail if told.f_files else None,
        writable=writable,
    )
