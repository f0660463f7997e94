"""Where a copy may go: anywhere but to nothing, onto one of its sources, into one, or around one.

A destination and the sources in; its path out, or a refusal.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from .errors import ConfigError
from .sources import CopySource

__all__ = ["checked_destination"]


def checked_destination(destination: Path | str, sources: Iterable[CopySource]) -> Path:
    """The path of a copy of `sources`.

    Folders are compared, not names, so that no link or mount leads a copy onto its source: what it removes to
    write anew would be the only one.

    Raises:
        ConfigError: the destination is empty, a link to nothing, a source, or within or around one.
    """
    if not str(destination):
        raise ConfigError("a copy has a folder of its own; got an empty name; for this folder, give .")
    path = Path(destination)
    if path.is_symlink() and not path.exists():
        raise ConfigError(
            f"{path} is a link to {path.readlink()}, where nothing is; make a folder there, or choose "
            "another path"
        )
    for source in sources:
        folder = source.storage.folder
        if folder is not None and (_is_within(path, folder) or _is_within(folder, path)):
            raise ConfigError(
                f"a copy lies outside its source; got {path} for a copy of {source.where}; choose another "
                "path"
            )
    return path


def _is_within(path: Path, folder: Path) -> bool:
    """Whether a path is a folder that is there, or lies below it."""
    try:
        there = folder.stat()
    except OSError:
        return False
    return any(os.path.samestat(there, found) for found in _found_upwards(path.resolve()))


def _found_upwards(path: Path) -> Iterator[os.stat_result]:
    for each in (path, *path.parents):
        try:
            yield each.stat()
        except OSError:
            continue  # not there yet
