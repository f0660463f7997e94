"""A store as the source of a copy: what it holds, read without trust and without holding it all in memory.

A place in; root, planned samples, records one at a time out.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from .arrow import pa
from .completion import SAMPLES
from .errors import CorruptStoreError, NotAStoreError, StorageError
from .fetching import ELSEWHERE
from .files import xxh3
from .index import INDEX, read_index
from .joins import refuse_absurd_sizes
from .manifest import Manifest
from .places import open_storage
from .records import FileRecord, ShardRecord
from .root import ROOT, Root, read_root
from .sample_tables import read_samples
from .samples import content_hash
from .shards import UnfinishedShards
from .storage import Storage

__all__ = ["CopySource", "open_source", "read_checked", "read_source_root"]


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
            raise CorruptStoreError(f"{self.where} has no {SAMPLES}; {ELSEWHERE}") from exc
        if content_hash(table) != self.root.samples:
            raise CorruptStoreError(f"{SAMPLES} of {self.where} is of another store; {ELSEWHERE}")
        return table

    def refuse_changed(self) -> None:
        """Refuse a source that is not the store any more that was opened; says nothing if it cannot be read.

        Raises:
            CorruptStoreError: its `zarr.json` or its index is gone, or another.
        """
        became = self._became()
        if became is not None:
            raise CorruptStoreError(
                f"{self.where} changed while it was copied: {became} (it was moved, deleted or replaced); "
                "bring it back and run the same command again, or copy from another source: finished shards "
                "are kept"
            )

    def _became(self) -> str | None:
        looked_at = ROOT
        try:
            if read_root(self.storage) != self.root:
                return f"its {ROOT} is another one now"
            if self._index is None:
                return None
            looked_at = INDEX
            index = read_index(self.storage, self.root)
        except NotAStoreError:
            return f"its {ROOT} is gone"
        except CorruptStoreError:
            return f"its {looked_at} is damaged now"
        except StorageError:
            return None
        if index is None:
            return f"its {INDEX} is gone"
        same = index.summary.digest == self._index.summary.digest
        return None if same else f"its {INDEX} is another one now"


def open_source(place: Path | str | Storage) -> CopySource:
    """Open the store at a path or URL to copy from it.

    Raises:
        NotAStoreError: there is nothing, or something that is not an activation store of format 1.
        CorruptStoreError: its metadata are altered, or name files that no store has.
        StorageError: it cannot be read.
    """
    storage = open_storage(place) if isinstance(place, Path | str) else place
    return CopySource(storage, read_source_root(storage))


def read_source_root(storage: Storage) -> Root:
    """The root of a store that is to be copied; raises as `read_root` does.

    Of a folder that is not there that one says how to make a store; here the path was mistyped.
    """
    try:
        return read_root(storage)
    except NotAStoreError as exc:
        if storage.folder is not None and not storage.folder.exists():
            raise NotAStoreError(f"{storage.where} does not exist; check the path") from exc
        raise


def read_checked(storage: Storage, file: FileRecord) -> bytes:
    """A small file, whole, as its record says that it is.

    Raises:
        CorruptStoreError: it is missing, or not what was written.
    """
    try:
        data = storage.read(file.path, file.bytes)
    except FileNotFoundError as exc:
        raise CorruptStoreError(f"{file.path} is missing in {storage.where}; {ELSEWHERE}") from exc
    if len(data) != file.bytes or xxh3(data) != file.hash:
        raise CorruptStoreError(
            f"{file.path} of {storage.where} is not what was written (its hash disagrees); {ELSEWHERE}"
        )
    return data
