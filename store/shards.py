"""Which shards of an opened store are finished, and their records: from the index, or from the record files.

Two classes with one contract: `finished` (ascending), `record(shard)`, and what the records add up to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Protocol

from .completion import arrays_digest, merged_statistics
from .errors import CorruptStoreError, IncompleteStoreError, StorageError
from .index import Index
from .manifest import Manifest
from .presence import shards_named
from .records import MOST_ASKED, ArrayKey, ShardRecord, read_record, record_path
from .remedies import AGAIN
from .root import Root
from .statistics import ChannelStats
from .storage import Storage, gather

__all__ = ["CompleteShards", "ShardIndex", "UnfinishedShards"]


class ShardIndex(Protocol):
    """What a store knows of its shards."""

    @property
    def finished(self) -> Sequence[int]:
        """Finished shards, ascending."""

    @property
    def statistics(self) -> Mapping[ArrayKey, ChannelStats]:
        """Statistics of every array over the finished shards."""

    @property
    def digest(self) -> str:
        """Name of the content."""

    @property
    def arrays_digest(self) -> str:
        """Name of the values."""

    @property
    def num_bad(self) -> int:
        """Rows of finished shards that are not ok."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the array files."""

    def record(self, shard: int) -> ShardRecord:
        """Record of a finished shard; IncompleteStoreError or CorruptStoreError otherwise."""


class CompleteShards:
    """Of a complete store: everything from the index, records only as they are asked for."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._records: dict[int, ShardRecord] = {}
        self.finished = index.manifest.held_shards
        self.digest = index.summary.digest
        self.arrays_digest = index.summary.arrays_digest
        self.num_bad = index.summary.num_bad
        self.num_bytes = index.summary.num_bytes

    @property
    def statistics(self) -> Mapping[ArrayKey, ChannelStats]:
        """Statistics of every array over all shards."""
        return self._index.statistics

    def record(self, shard: int) -> ShardRecord:
        """Record of a shard."""
        _refuse_absent(self._index.manifest, shard)
        if shard not in self._records:
            self._records[shard] = self._index.record(shard)
        return self._records[shard]


class UnfinishedShards:
    """Of a store that is not complete: from the record files that were there when it was opened."""

    def __init__(self, storage: Storage, root: Root) -> None:
        self._storage = storage
        self._root = root
        self._records: dict[int, ShardRecord] = {}
        self._faults: dict[int, CorruptStoreError] = {}
        for shard, found in gather(storage, self._look, _numbers(storage, root.manifest)):
            if isinstance(found, CorruptStoreError):
                self._faults[shard] = found
            elif found is not None:
                self._records[shard] = found
        self.finished = tuple(sorted(self._records))

    def _look(self, shard: int) -> tuple[int, ShardRecord | CorruptStoreError | None]:
        try:
            found = read_record(self._storage, self._root.manifest, shard)
        except CorruptStoreError as exc:
            return shard, exc
        return shard, found and found[0]

    def _all(self) -> list[ShardRecord]:
        return [self._records[shard] for shard in self.finished]

    @cached_property
    def statistics(self) -> Mapping[ArrayKey, ChannelStats]:
        """Statistics of every array over the finished shards."""
        return merged_statistics(self._storage, self._root.manifest, self._all())

    @cached_property
    def digest(self) -> str:
        """Name of the content so far."""
        return self._root.digest(self._all())

    @cached_property
    def arrays_digest(self) -> str:
        """Name of the values so far."""
        return arrays_digest(self._root.manifest, self._all())

    @property
    def num_bad(self) -> int:
        """Rows of finished shards that are not ok."""
        return sum(len(record.bad) for record in self._all())

    @property
    def num_bytes(self) -> int:
        """Bytes of the array files."""
        return sum(record.num_bytes for record in self._all())

    def record(self, shard: int) -> ShardRecord:
        """Record of a finished shard."""
        _refuse_absent(self._root.manifest, shard)
        if shard in self._faults:
            raise CorruptStoreError(str(self._faults[shard]))
        if shard not in self._records:
            rows = self._root.manifest.shard_range(shard)
            raise IncompleteStoreError(
                f"rows {rows.start} to {rows.stop - 1} are not written yet (shard {shard} has no record); "
                f"{AGAIN}"
            )
        return self._records[shard]


def _refuse_absent(manifest: Manifest, shard: int) -> None:
    if not manifest.holds(shard):
        rows = manifest.shard_range(shard)
        raise IncompleteStoreError(
            f"rows {rows.start} to {rows.stop - 1} are not part of this partial copy (shard {shard}); "
            "pull them too"
        )


def _numbers(storage: Storage, manifest: Manifest) -> Iterable[int]:
    """Shards that may have a record: those whose record file is listed; all, where nothing can be listed."""
    names = storage.names("shards")
    if names is None:
        if len(manifest.held_shards) > MOST_ASKED:
            raise StorageError(
                f"an unfinished store has at most {MOST_ASKED} shards where nothing can be listed; "
                f"{storage.where} has {len(manifest.held_shards)}; read it from a disk or a bucket"
            )
        return manifest.held_shards
    return sorted(shards_named(names, record_path, manifest))
