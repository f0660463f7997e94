"""Completion: all outcomes into samples.parquet, then all records and merged statistics into index.parquet.

The records are the source of both, so that a writer killed between the two steps only does them again. Both
are written in one go with the records as they are then: a shard that is written again meanwhile starts over.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from .arrow import pa
from .card import write_card
from .checks import refuse_imprecise_store
from .errors import CorruptStoreError
from .files import stored_xxh3
from .index import IndexSummary, read_index, write_index
from .manifest import Manifest
from .records import ArrayKey, ShardRecord, array_folder, arrays_of, read_record, record_path
from .remedies import AGAIN
from .restoring import index_in_hand
from .root import Root
from .row_sums import add_row_sums
from .samples import with_records
from .sealed import write_sealed
from .statistics import ChannelStats, merge, read_statistics
from .storage import Folder, Storage

__all__ = [
    "SAMPLES",
    "Totals",
    "is_completed",
    "merged_statistics",
    "summarise",
    "totals_of",
    "write_completion",
]

SAMPLES = "samples.parquet"
_BLOCK_RECORDS: Final = 256


@dataclass(frozen=True)
class _Named:
    shard: int
    checksum: str


class Totals:
    """What records add up to, without any of them being kept."""

    def __init__(self, manifest: Manifest) -> None:
        self._arrays = tuple(arrays_of(manifest))
        self._sums = [0] * len(self._arrays)
        self.num_bad = 0
        """Rows that are not ok."""
        self.num_bytes = 0
        """Bytes of the array files."""
        self.named: list[_Named] = []
        """What the store's digest is made of."""

    def add(self, record: ShardRecord) -> None:
        """Count a record in."""
        self.num_bad += len(record.bad)
        self.num_bytes += record.num_bytes
        self.named.append(_Named(record.shard, record.checksum))
        self._sums = [sum_ + file.row_sum for sum_, file in zip(self._sums, record.files, strict=True)]

    @property
    def arrays_digest(self) -> str:
        """Hash over the decoded values of all rows; the same whatever the shard size."""
        state = hashlib.sha256()
        for array, row_sum in zip(self._arrays, self._sums, strict=True):
            state.update(f"{array_folder(array.layer, array.kind)} {add_row_sums([row_sum])}\n".encode())
        return state.hexdigest()

    def summary(self, root: Root, samples_hash: str) -> IndexSummary:
        """What the index says of them."""
        return IndexSummary(
            format=root.manifest.format,
            manifest=root.manifest.sha256(),
            samples=root.samples,
            samples_hash=samples_hash,
            num_bad=self.num_bad,
            num_bytes=self.num_bytes,
            digest=root.digest(self.named),
            arrays_digest=self.arrays_digest,
        )


def totals_of(manifest: Manifest, records: Iterable[ShardRecord]) -> Totals:
    """What some records add up to."""
    totals = Totals(manifest)
    for record in records:
        totals.add(record)
    return totals


def summarise(root: Root, records: Iterable[ShardRecord], samples_hash: str) -> IndexSummary:
    """What the index says of the whole store."""
    return totals_of(root.manifest, records).summary(root, samples_hash)


def merged_statistics(
    storage: Storage, manifest: Manifest, records: Iterable[ShardRecord]
) -> Mapping[ArrayKey, ChannelStats]:
    """Statistics of every array over the shards of `records`, merged in their order.

    Raises:
        CorruptStoreError: a statistics file is missing or altered.
    """
    merged = {array: ChannelStats.empty(manifest.dim) for array in arrays_of(manifest)}
    for record in records:
        _merge_into(merged, storage, manifest, record)
    return merged


def _merge_into(
    merged: dict[ArrayKey, ChannelStats], storage: Storage, manifest: Manifest, record: ShardRecord
) -> None:
    for array, stats in read_statistics(storage, manifest, record).items():
        merged[array] = merge(merged[array], stats)


def is_completed(storage: Storage, root: Root) -> bool:
    """Whether index.parquet is there, and samples.parquet is the file that it was written with.

    Raises:
        CorruptStoreError: the index is altered or belongs to another store.
    """
    index = read_index(storage, root)
    try:
        return index is not None and stored_xxh3(storage, SAMPLES) == index.summary.samples_hash
    except FileNotFoundError:
        return False


def write_completion(path: Path, root: Root, samples: pa.Table, storage: Storage | None = None) -> None:
    """Replace samples.parquet, write CARD.md, then index.parquet; every shard must be finished.

    Records are read one at a time and let go: of 10 million rows their texts alone stay, some 200 MB. They
    are compared once more before anything is written, within the lock of whoever writes a shard again.

    Args:
        path: the store.
        root: what its `zarr.json` says.
        samples: its table as planned.
        storage: where records and statistics are read, if not at `path`.

    Raises:
        CorruptStoreError: a record or its statistics are missing or altered.
        PrecisionError: an int8 store of all shards whose patches of some layer are below R2 = 0.999.
    """
    while not _completed(path, root, samples, storage or Folder(path)):
        pass  # a shard was written again meanwhile, by another writer


def _completed(path: Path, root: Root, samples: pa.Table, storage: Storage) -> bool:
    """Gather all records and write what they add up to; False if one is another by then."""
    gathered = _Gathered(storage, root.manifest)
    table = with_records(samples, gathered.records(), root.manifest.absent_rows)
    if root.manifest.shards is None:  # the rows of a part may vary less than those of the whole
        for array, stats in gathered.statistics.items():
            refuse_imprecise_store(array, stats)
    with index_in_hand(path):
        if not gathered.is_current():
            return False
        summary = gathered.totals.summary(root, write_sealed(path / SAMPLES, table))
        r2 = {array.layer: stats.r2 for array, stats in gathered.statistics.items() if stats.losses}
        write_card(path, root.manifest, summary, r2)
        write_index(path, summary, root.manifest.held_shards, gathered.texts(), gathered.statistics)
    return True


class _Gathered:
    """All that the index holds, gathered while the records pass by."""

    def __init__(self, storage: Storage, manifest: Manifest) -> None:
        self._storage = storage
        self._manifest = manifest
        self._blocks: list[Any] = []
        self.totals = Totals(manifest)
        self.statistics = {array: ChannelStats.empty(manifest.dim) for array in arrays_of(manifest)}

    def records(self) -> Iterator[ShardRecord]:
        """Every record, by shard."""
        block: list[str] = []
        for shard in self._manifest.held_shards:
            found = read_record(self._storage, self._manifest, shard)
            if found is None:
                raise CorruptStoreError(f"the record of shard {shard} vanished; {AGAIN}")
            self.totals.add(found[0])
            _merge_into(self.statistics, self._storage, self._manifest, found[0])
            block.append(found[1].decode())
            if len(block) == _BLOCK_RECORDS:
                self._blocks.append(pa.array(block, pa.string()))
                block = []
            yield found[0]
        self._blocks.append(pa.array(block, pa.string()))

    def texts(self) -> Any:
        """The records' texts as a column, by shard."""
        return pa.chunked_array(self._blocks, pa.string())

    def is_current(self) -> bool:
        """Whether every record is still the one that was gathered."""
        texts = (text.as_py() for block in self._blocks for text in block)
        return all(
            _text(self._storage, shard) == text.encode()
            for shard, text in zip(self._manifest.held_shards, texts, strict=True)
        )


def _text(storage: Storage, shard: int) -> bytes | None:
    try:
        return storage.read(record_path(shard))
    except FileNotFoundError:
        return None
