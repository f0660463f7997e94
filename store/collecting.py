"""What killed writers left in a store, removed by a writer that is there alone.

The folder of a store and a handle of the writers' lock in; nothing that ends in `.tmp` or `.partial` out.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from .errors import ShardBusyError
from .files import leftovers
from .locks import locked_alone
from .manifest import Manifest
from .marks import MARK_NAME, own, owned_shards
from .records import SHARD_DIGITS, mark_path
from .root import PLANNING
from .staging import fence

__all__ = ["collect_beside", "collect_leftovers"]

_STAGINGS: Final = re.compile(rf"\.(\d{{5,{SHARD_DIGITS}}})\.files\.tmp")


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
        _collect_files(store, leftovers(store))


def collect_beside(store: Path, handle: int, manifest: Manifest) -> None:
    """Remove what writers left that were killed beside this one, unless another is at work.

    As `collect_leftovers`, but in two folders alone: while shards are written no file under way is elsewhere,
    and the folders of the arrays are many.
    """
    with locked_alone(handle, store) as alone:
        if alone:
            _collect_marks(store, manifest)
            files = [file for folder in (store, store / "shards") for file in folder.glob(".*.tmp")]
            _collect_files(store, filter(Path.is_file, files))


def _collect_files(store: Path, files: Iterable[Path]) -> None:
    _collect_stagings(store)
    for file in files:
        if MARK_NAME.fullmatch(file.name) is None and not _is_staged(file):
            file.unlink(missing_ok=True)


def _is_staged(file: Path) -> bool:
    return _STAGINGS.fullmatch(file.parent.parent.name) is not None


def _collect_stagings(store: Path) -> None:
    """Remove the stagings of shards without a mark; with one, they go to the next owner, who removes them."""
    for entry in (store / "shards").glob(".*.files.tmp"):
        match = _STAGINGS.fullmatch(entry.name)
        if match is not None and entry.is_dir() and not (store / mark_path(int(match[1]))).exists():
            fence(store, int(match[1]))
            with contextlib.suppress(FileNotFoundError):
                entry.rmdir()
