"""A store as the source of a copy: what it holds, read without trust and without holding it all in memory.

A place in; root, planned samples, records one at a time out.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from .arrow import pa
from .completion import SAMPLES
from .errors import CorruptStoreError
from .files import xxh3
from .index import read_index
from .joins import refuse_absurd_sizes
from .manifest import Manifest
from .places import open_storage
from .records import FileRecord, ShardRecord
from .root import Root, read_root
from .sample_tables import read_samples
from .samples import content_hash
from .shards import UnfinishedShards
from .storage import Storage

__all__ = ["CopySource", "open_source", "read_checked"]


class CopySource:
    """An opened source; see `open_source`."""

    def __init__(self, storage: Storage, root: Root) -> None:
        self.storage = storage
        self.root = root
        self._index = read_index(storage, root)
        self._shards = None if self._index is not None else UnfinishedShards(storage, root)
        self.complete = self._index is not None
        """Whether every shard that it is of is finished."""

    @property
    def where(self) -> str:
        """The path or URL, for messages."""
        return self.storage.where

    @property
    def manifest(self) -> Manifest:
        """The source's."""
        return self.root.manifest

    @property
    def finished(self) -> Sequence[int]:
        """Finished shards, ascending."""
        return self.manifest.held_shards if self._shards is None else self._shards.finished

    @cached_property
    def finished_set(self) -> frozenset[int]:
        """The same, to be asked for one."""
        return frozenset(self.finished)

    def record(self, shard: int) -> ShardRecord:
        """A finished shard's record; what it says of sizes is possible.

        Raises:
            CorruptStoreError: the record is altered, or states absurd sizes.
        """
        if self._index is not None:
            record = self._index.record(shard)
        else:
            assert self._shards is not None
            record = self._shards.record(shard)
        refuse_absurd_sizes(self.manifest, record)
        return record

    @cached_property
    def samples(self) -> pa.Table:
        """The sample table, its planned columns checked against the plan; outcomes are not to be believed.

        Raises:
            CorruptStoreError: it is missing, altered or of another store.
        """
        try:
            table, _ = read_samples(self.storage, self.manifest)
        except FileNotFoundError as exc:
            raise CorruptStoreError(f"{self.where} has no {SAMPLES}; copy from another source") from exc
        if content_hash(table) != self.root.samples:
            raise CorruptStoreError(
                f"{SAMPLES} of {self.where} is of another store; copy from another source"
            )
        return table


def open_source(place: Path | str | Storage) -> CopySource:
    """Open the store at a path or URL to copy from it.

    Raises:
        NotAStoreError: it is not an activation store of format 1.
        CorruptStoreError: its metadata are altered, or name files that no store has.
        StorageError: it cannot be read.
    """
    storage = open_storage(place) if isinstance(place, Path | str) else place
    return CopySource(storage, read_root(storage))


def read_checked(storage: Storage, file: FileRecord) -> bytes:
    """A small file, whole, as its record says that it is.

    Raises:
        CorruptStoreError: it is missing, or not what was written.
    """
    try:
        data = storage.read(file.path, file.bytes)
    except FileNotFoundError as exc:
        raise CorruptStoreError(f"{file.path} is missing in {storage.where}") from exc
    if len(data) != file.bytes or xxh3(data) != file.hash:
        raise CorruptStoreError(
            f"{file.path} of {storage.where} is not what was written (its hash disagrees); copy from another "
            "source"
        )
    return data
