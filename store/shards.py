"""Which shards of an opened store are finished, and their records: from the index, or from the record files.

Two classes with one contract: `finished` (ascending), `record(shard)`, and what the records add up to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Protocol, overload

from .completion import Totals, merged_statistics, totals_of
from .errors import CorruptStoreError, IncompleteStoreError, StorageError
from .index import Index
from .manifest import Manifest
from .presence import shards_named
from .records import MOST_ASKED, ArrayFile, ArrayKey, ShardRecord, array_file, read_record, record_path
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

    def files(self, shard: int) -> Sequence[ArrayFile]:
        """Its array files, which are held for the next time; raises as `record` does."""


class CompleteShards:
    """Of a complete store: everything from the index, records only as they are asked for."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._files: dict[int, Sequence[ArrayFile]] = {}
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
        return self._index.record(shard)

    def files(self, shard: int) -> Sequence[ArrayFile]:
        """Array files of a shard."""
        _refuse_absent(self._index.manifest, shard)
        if shard not in self._files:
            self._files[shard] = _PackedFiles(self._index.manifest, self._index.record(shard))
        return self._files[shard]


class _PackedFiles(Sequence[ArrayFile]):
    """A record's array files in 75 bytes each.

    A whole record takes 124 KB where the images' sizes all differ: an epoch of 12,500 shards kept 1.5 GB.
    """

    __slots__ = ("_manifest", "_packed", "_shard")

    def __init__(self, manifest: Manifest, record: ShardRecord) -> None:
        self._manifest = manifest
        self._shard = record.shard
        self._packed = "\n".join(f"{file.bytes} {file.hash} {file.values}" for file in record.files)

    def __len__(self) -> int:
        return len(self._manifest.layers) * len(self._manifest.kinds)

    @overload
    def __getitem__(self, place: int) -> ArrayFile: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[ArrayFile]: ...

    def __getitem__(self, place: int | slice) -> ArrayFile | Sequence[ArrayFile]:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        num_bytes, found, values = self._packed.split("\n")[place].split()
        layer, kind = divmod(place % len(self), len(self._manifest.kinds))
        path = array_file(self._manifest.layers[layer], self._manifest.kinds[kind], self._shard)
        # Its parts were checked when the record was parsed.
        return ArrayFile.model_construct(path=path, bytes=int(num_bytes), hash=found, values=values)


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
    def _totals(self) -> Totals:
        return totals_of(self._root.manifest, self._all())

    @cached_property
    def digest(self) -> str:
        """Name of the content so far."""
        return self._root.digest(self._totals.named)

    @cached_property
    def arrays_digest(self) -> str:
        """Name of the values so far."""
        return self._totals.arrays_digest

    @property
    def num_bad(self) -> int:
        """Rows of finished shards that are not ok."""
        return self._totals.num_bad

    @property
    def num_bytes(self) -> int:
        """Bytes of the array files."""
        return self._totals.num_bytes

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

    def files(self, shard: int) -> Sequence[ArrayFile]:
        """Array files of a finished shard."""
        return self.record(shard).files


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
