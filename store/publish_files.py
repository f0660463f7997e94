"""Which files a store that is published is made of, each with the hash that it must have.

A complete store on this machine in; its files in the order in which they are put out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .card import CARD
from .completion import SAMPLES
from .errors import CorruptStoreError, IncompleteStoreError
from .fetching import FileToFetch
from .files import xxh3
from .index import INDEX, read_index
from .metadata import planned_metadata
from .records import record_path
from .root import ROOT, Root
from .sources import read_source_root
from .storage import Folder

__all__ = ["LAST", "Published", "published_files"]

LAST = (INDEX, ROOT)
"""These come last, in this order: a store is one when its `zarr.json` is there."""


@dataclass(frozen=True)
class Published:
    """A complete store that is to be published."""

    root: Root
    digest: str
    files: Sequence[FileToFetch]
    """In the order in which they are put out."""

    @property
    def marker(self) -> bytes:
        """What marks a place that it is being published to."""
        return f"{self.digest}\n".encode()

    @property
    def index(self) -> FileToFetch:
        """Its `index.parquet`."""
        return next(file for file in self.files if file.path == INDEX)


def published_files(path: Path) -> Published:
    """The complete store at `path`, with every file.

    Raises:
        NotAStoreError: it is none.
        IncompleteStoreError: it is not finished.
        CorruptStoreError: a file is missing, or a table, record or `zarr.json` is altered.
    """
    folder = Folder(path)
    root = read_source_root(folder)
    manifest = root.manifest
    index = read_index(folder, root)
    if index is None:
        raise IncompleteStoreError(
            f"a store is published when it is complete; {path} is not: finish it, or publish a part of it "
            "that is (`activault pull` makes one)"
        )
    files = [_as_it_is(folder, name) for name in (CARD,) if (path / name).is_file()]
    for name, file in root.teacher.items():
        files.append(FileToFetch(folder, name, file.bytes, file.sha256, "sha256"))
    for shard in manifest.held_shards:
        record, text = index.record(shard), index.record_text(shard)
        stored = (*record.files, record.statistics)
        files += [FileToFetch(folder, file.path, file.bytes, file.hash) for file in stored]
        files.append(FileToFetch(folder, record_path(shard), len(text), xxh3(text)))
    size = _size(folder, SAMPLES)
    files.append(FileToFetch(folder, SAMPLES, size, index.summary.samples_hash))
    files += [_as_planned(folder, name, data) for name, data in planned_metadata(manifest).items()]
    files += [_as_it_is(folder, INDEX), _as_planned(folder, ROOT, root.to_bytes())]
    return Published(root, index.summary.digest, files)


def _as_it_is(folder: Folder, name: str) -> FileToFetch:
    """A file whose hash is what it is now: a card may be edited, an index has been checked by its seal."""
    size = _size(folder, name)
    return FileToFetch(folder, name, size, xxh3(folder.read(name, size)))


def _as_planned(folder: Folder, name: str, data: bytes) -> FileToFetch:
    """A file that must be `data`, byte by byte."""
    if _size(folder, name) != len(data) or folder.read(name) != data:
        raise CorruptStoreError(
            f"{name} of {folder.where} must be what the manifest implies; it differs, and is not published: "
            f"`activault verify {folder.where}` says what to do"
        )
    return FileToFetch(folder, name, len(data), xxh3(data))


def _size(folder: Folder, name: str) -> int:
    try:
        return folder.size(name)
    except FileNotFoundError as exc:
        raise CorruptStoreError(
            f"{name} of {folder.where} is missing; `activault verify {folder.where}` says what to do"
        ) from exc
