"""What of a store is in a bucket, by listings: a thousand names a request.

A bucket's objects in; shards that have a record, and those of them that lack a file, out. Records that only
index.parquet has are put again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .errors import AccessDeniedError, ConfigError, CorruptStoreError
from .index import read_index
from .manifest import Manifest
from .objects import Entry, Objects
from .presence import shards_named
from .records import ShardRecord, mark_path, read_record, record_path
from .root import Root
from .storage import Storage, gather

__all__ = ["are_finished", "damaged_shards", "marked_shards", "recorded_shards", "restore_lost_records"]


def recorded_shards(paths: Iterable[str], manifest: Manifest) -> set[int]:
    """Shards with a record, by the names of a store's files."""
    return shards_named(_names(paths), record_path, manifest)


def marked_shards(paths: Iterable[str], manifest: Manifest) -> set[int]:
    """Shards with a lease, likewise."""
    return shards_named(_names(paths), mark_path, manifest)


def _names(paths: Iterable[str]) -> list[str]:
    """Names of those in the folder `shards`."""
    return [path.rpartition("/")[2] for path in paths if path.startswith("shards/")]


def damaged_shards(
    objects: Objects, manifest: Manifest, entries: Mapping[str, Entry], shards: Iterable[int]
) -> set[int]:
    """Those of `shards`, which have records, of which a file is missing or has another size than recorded.

    Raises:
        CorruptStoreError: a record is damaged; nobody replaces it.
    """

    def look(shard: int) -> bool:
        found = read_record(objects, manifest, shard)
        return found is not None and not _is_whole(found[0], entries)

    asked = sorted(shards)
    return {shard for shard, found in zip(asked, gather(objects, look, asked), strict=True) if found}


def are_finished(storage: Storage, manifest: Manifest) -> bool | None:
    """Whether all shards have a valid record, and all files of the recorded sizes.

    Returns:
        None where the place is no bucket or may not be listed, so that file by file is to be asked.
    """
    if not storage.where.lower().startswith("s3://"):
        return None
    try:
        objects = storage if isinstance(storage, Objects) else Objects(storage.where)
        entries = objects.entries()
        recorded = recorded_shards(entries, manifest)
        return len(recorded) == len(manifest.held_shards) and not damaged_shards(
            objects, manifest, entries, recorded
        )
    except CorruptStoreError:
        return False
    except (AccessDeniedError, ConfigError):  # a bucket for readers alone, or one that is a store as a whole
        return None


def _is_whole(record: ShardRecord, entries: Mapping[str, Entry]) -> bool:
    files = (*record.files, record.statistics)
    return all(file.path in entries and entries[file.path].size == file.bytes for file in files)


def restore_lost_records(objects: Objects, root: Root) -> None:
    """Put again the records that index.parquet alone has, as it was written after all of them.

    Raises:
        CorruptStoreError: the index is damaged.
    """
    index = read_index(objects, root)
    if index is None:
        return
    there = recorded_shards(objects.entries("shards"), root.manifest)
    lost = [shard for shard in root.manifest.held_shards if shard not in there]
    gather(objects, lambda shard: objects.create(record_path(shard), index.record_text(shard)), lost)
