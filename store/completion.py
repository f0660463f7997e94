"""Completion: all outcomes into samples.parquet, then all records and merged statistics into index.parquet.

The records are the source of both, so that a writer killed between the two steps only does them again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from .card import write_card
from .errors import CorruptStoreError
from .files import stored_xxh3
from .index import IndexSummary, read_index, write_index
from .manifest import Manifest
from .records import ArrayKey, ShardRecord, array_folder, arrays_of, read_record
from .root import Root
from .samples import with_records
from .sealed import write_sealed
from .statistics import ChannelStats, merge, read_statistics
from .storage import Folder, Storage

__all__ = ["SAMPLES", "arrays_digest", "is_completed", "merged_statistics", "summarise", "write_completion"]

SAMPLES = "samples.parquet"


def arrays_digest(manifest: Manifest, records: Sequence[ShardRecord]) -> str:
    """Hash over the decoded values alone; `records` ascend by shard."""
    state = hashlib.sha256()
    for place, array in enumerate(arrays_of(manifest)):
        for record in records:
            state.update(f"{array_folder(array.layer, array.kind)} {record.files[place].values}\n".encode())
    return state.hexdigest()


def merged_statistics(
    storage: Storage, manifest: Manifest, records: Sequence[ShardRecord]
) -> Mapping[ArrayKey, ChannelStats]:
    """Statistics of every array over the shards of `records`, merged in their order.

    Raises:
        CorruptStoreError: a statistics file is missing or altered.
    """
    merged = {array: ChannelStats.empty(manifest.dim) for array in arrays_of(manifest)}
    for record in records:
        for array, stats in read_statistics(storage, manifest, record).items():
            merged[array] = merge(merged[array], stats)
    return merged


def summarise(root: Root, records: Sequence[ShardRecord], samples_hash: str) -> IndexSummary:
    """What the index says of the whole store."""
    return IndexSummary(
        format=root.manifest.format,
        manifest=root.manifest.sha256(),
        samples=root.samples,
        samples_hash=samples_hash,
        num_bad=sum(len(record.bad) for record in records),
        num_bytes=sum(record.num_bytes for record in records),
        digest=root.digest(records),
        arrays_digest=arrays_digest(root.manifest, records),
    )


def is_completed(storage: Storage, manifest: Manifest) -> bool:
    """Whether index.parquet is there, and samples.parquet is the file that it was written with.

    Raises:
        CorruptStoreError: the index is altered or belongs to another store.
    """
    index = read_index(storage, manifest)
    try:
        return index is not None and stored_xxh3(storage, SAMPLES) == index.summary.samples_hash
    except FileNotFoundError:
        return False


def write_completion(path: Path, root: Root, samples: pa.Table) -> None:
    """Replace samples.parquet, write CARD.md, then index.parquet; every shard must be finished.

    Raises:
        CorruptStoreError: a record or its statistics are missing or altered.
    """
    manifest, storage = root.manifest, Folder(path)
    records: list[ShardRecord] = []
    texts: dict[int, bytes] = {}
    for shard in manifest.held_shards:
        found = read_record(storage, manifest, shard)
        if found is None:
            raise CorruptStoreError(
                f"the record of shard {shard} vanished; run the same `activault extract` again"
            )
        records.append(found[0])
        texts[shard] = found[1]
    table = with_records(samples, records, manifest.absent_rows)
    samples_hash = write_sealed(path / SAMPLES, table)
    statistics = merged_statistics(storage, manifest, records)
    summary = summarise(root, records, samples_hash)
    write_card(path, manifest, summary, {})
    write_index(path, summary, texts, statistics)
