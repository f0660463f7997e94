"""Completion in a bucket: samples.parquet with all outcomes, CARD.md, and index.parquet last.

All records in; those three out. They are made on this machine and put so that any number of writers may do it
at once: whoever is first replaces the planned table by the finished one, and the others go on from that.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

from .arrow import pa
from .card import CARD
from .completion import SAMPLES, write_completion
from .errors import CorruptStoreError
from .files import xxh3
from .index import INDEX, read_index, write_index
from .manifest import Manifest
from .objects import Objects
from .records import record_path, statistics_path
from .remedies import delete_and_again
from .root import Root
from .sample_tables import read_samples
from .samples import PENDING, coded
from .storage import MAX_JSON_BYTES, NUM_REQUESTS, Folder, gather

__all__ = ["complete_objects"]


def complete_objects(objects: Objects, root: Root, samples: pa.Table, folder: Path) -> None:
    """Complete the store; every shard must be finished.

    Args:
        objects: the store.
        root: what its `zarr.json` says.
        samples: the table as planned.
        folder: an empty one, where the files are made.

    Raises:
        CorruptStoreError: a record or its statistics are missing or altered, or the table or the index there
            is not of these records.
        PrecisionError: int8 patches of a layer as a whole are below R2 = 0.999.
        StorageError: the place cannot be written, or does not answer.
        OSError: the disk is full.
    """
    write_completion(folder, root, samples, _Ahead(objects, root.manifest))
    found = _put_samples(objects, root, folder)
    if found != xxh3((folder / SAMPLES).read_bytes()):
        _name_samples(folder, root, found)
    objects.create_file(CARD, folder / CARD)  # one that is there may have been edited
    objects.create_file(INDEX, folder / INDEX)
    index = read_index(objects, root)
    if index is None or index.summary.samples_hash != found:
        raise CorruptStoreError(
            f"{INDEX} of {objects.where} must name the {SAMPLES} that is there; {delete_and_again(INDEX)}"
        )


def _put_samples(objects: Objects, root: Root, folder: Path) -> str:
    """Have the finished table there, ours or another writer's; returns the xxh3 of the file."""
    ours, file = read_samples(Folder(folder), root.manifest)[0], folder / SAMPLES
    while True:
        if objects.create_file(SAMPLES, file) is not None:  # also where the very file is there
            return xxh3(file.read_bytes())
        found = objects.find(SAMPLES)
        if found is None:
            continue
        try:
            table, there = read_samples(objects, root.manifest)
        except FileNotFoundError:
            continue
        except CorruptStoreError:  # damaged, so that nobody reads it
            table = None
        if table is not None and table.equals(ours):
            return there
        if table is not None and PENDING not in coded(table["status"])[0]:
            raise CorruptStoreError(
                f"{SAMPLES} of {objects.where} is not what its records say; {delete_and_again(SAMPLES)}"
            )
        if objects.replace_file(SAMPLES, file, found.tag) is not None:
            return xxh3(file.read_bytes())


def _name_samples(folder: Path, root: Root, samples_hash: str) -> None:
    """Have the index name a table of other bytes with the same rows: pyarrow's versions write differently."""
    index = read_index(Folder(folder), root)
    assert index is not None, "it was written a moment ago"
    shards = root.manifest.held_shards
    texts = pa.chunked_array([pa.array([index.record_text(shard).decode()]) for shard in shards], pa.string())
    summary = index.summary.model_copy(update={"samples_hash": samples_hash})
    write_index(folder, summary, shards, texts, index.statistics)


class _Ahead:
    """The store, read by many requests at once in the order in which completion asks for its files."""

    folder = None

    def __init__(self, objects: Objects, manifest: Manifest) -> None:
        self.where = objects.where
        self.name = objects.name
        self.size = objects.size
        self.blocks = objects.blocks
        self.open = objects.open
        self.names = objects.names
        self._objects = objects
        shards = manifest.held_shards
        both = chain.from_iterable((record_path(shard), statistics_path(shard)) for shard in shards)
        # Records are asked for a second time, to see that they are still the same.
        self._next: Iterator[str] = chain(both, map(record_path, shards))
        self._ready: dict[str, bytes] = {}

    def read(self, path: str, max_bytes: int = MAX_JSON_BYTES) -> bytes:
        """All of one file."""
        if path not in self._ready:
            paths = list(islice(self._next, 2 * NUM_REQUESTS))
            self._ready = dict(zip(paths, gather(self._objects, self._objects.read, paths), strict=True))
        # Asked for out of turn, it is read by itself.
        return self._ready.pop(path) if path in self._ready else self._objects.read(path, max_bytes)
