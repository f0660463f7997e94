"""Records that `index.parquet` alone has, brought back as files: none is lost when the index goes.

The folder of a store in; its missing and damaged `shards/*.json` written anew out of a sound index. As long
as the index is there no file of a shard was touched since it was written, so that its records are true.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import CorruptStoreError
from .files import atomic_write, sync_folder
from .index import INDEX, read_index
from .locks import locked_by_one
from .presence import has_record
from .records import record_path
from .root import read_root
from .storage import Folder

__all__ = ["index_in_hand", "restore_records", "write_lost"]


@contextmanager
def index_in_hand(store: Path) -> Iterator[None]:
    """Keep others from removing the index, and from restoring records out of it, meanwhile.

    The lock of the folder `shards`: without it one would write a record out of an index that another has
    removed by now, over files that a third writes.
    """
    folder = store / "shards"
    folder.mkdir(exist_ok=True)
    with locked_by_one(folder):
        yield


def restore_records(store: Path) -> list[int]:
    """Write every record that a sound index has and `shards/` lacks; returns those shards, ascending.

    Nothing is done where there is no index, or one that is not to be believed.

    Raises:
        OSError: the disk is full, read-only or gone.
        StorageError: something cannot be read.
    """
    if not (store / INDEX).exists():
        return []
    with index_in_hand(store):
        return write_lost(store, ())


def write_lost(store: Path, except_for: Collection[int]) -> list[int]:
    """`restore_records` within `index_in_hand`, but for shards whose records are to go."""
    storage = Folder(store)
    root = read_root(storage)
    try:
        index = read_index(storage, root)
        if index is None:
            return []
        index.check()
    except CorruptStoreError:
        return []
    restored = []
    for shard in root.manifest.held_shards:
        if shard in except_for or has_record(storage, root.manifest, shard, index.record_text(shard)):
            continue
        try:
            index.record(shard)
        except CorruptStoreError:
            continue  # the index does not have it either
        atomic_write(store / record_path(shard), index.record_text(shard))
        restored.append(shard)
    # Also where all are there: who wrote them may have been killed before their names were on disk.
    sync_folder(store / "shards")
    return restored
