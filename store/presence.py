"""What of a shard is there: names that are listed, records, files of the recorded sizes.

No byte of an array is read. A place and its manifest in; shards' numbers, or what is wrong with a file, out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from .errors import CorruptStoreError
from .index import INDEX
from .locks import nobody_at_work
from .manifest import Manifest
from .records import SHARD_DIGITS, FileRecord, ShardRecord, mark_path, parse_record, read_record, record_path
from .storage import Storage

__all__ = ["file_faults", "has_record", "is_finished", "nothing_finished", "shards_named", "size_fault"]

_NUMBER: Final = re.compile(rf"\d{{5,{SHARD_DIGITS}}}")


def shards_named(names: Iterable[str], path_of: Callable[[int], str], manifest: Manifest) -> set[int]:
    """Shards of this store that have one of `names`; `path_of` gives the one file that each of them has."""
    found = set()
    for name in names:
        match = _NUMBER.search(name)
        shard = -1 if match is None else int(match[0])
        if manifest.holds(shard) and path_of(shard).rpartition("/")[2] == name:
            found.add(shard)
    return found


def nothing_finished(storage: Storage, manifest: Manifest) -> str:
    """What to add to a refusal where a store is a plan alone, which its owner may drop; else nothing.

    Nothing also where the place does not list, or where somebody may be at work in it.
    """
    names = storage.names("shards")
    if names is None or shards_named(names, record_path, manifest) or INDEX in (storage.names("") or [INDEX]):
        return ""
    folder = storage.folder
    if shards_named(names, mark_path, manifest) if folder is None else not nobody_at_work(folder):
        return ""
    return f"; nothing is finished in {storage.where}: it may be removed, and planned anew by this command"


def has_record(storage: Storage, manifest: Manifest, shard: int, known: bytes | None = None) -> bool:
    """Whether a shard's record is there and valid; one whose text is `known`, which is valid, is not parsed.

    Raises:
        StorageError: it cannot be read.
    """
    try:
        text = storage.read(record_path(shard))
        if text != known:
            parse_record(text, manifest, shard)
    except (CorruptStoreError, FileNotFoundError):
        return False
    return True


def size_fault(storage: Storage, file: FileRecord) -> str | None:
    """What is wrong with a file that is absent or of another size than its record says; None if nothing.

    Raises:
        CorruptStoreError: it is no plain file.
        StorageError: it cannot be reached.
    """
    try:
        size = storage.size(file.path)
    except FileNotFoundError:
        return "is missing"
    return None if size == file.bytes else f"must have {file.bytes} bytes; it has {size}"


def file_faults(storage: Storage, record: ShardRecord) -> Iterator[tuple[str, str]]:
    """`(path, what is wrong)` for every file of a record that is absent or of another size."""
    for file in (*record.files, record.statistics):
        try:
            fault = size_fault(storage, file)
        except CorruptStoreError as exc:
            fault = f"is no file of a store ({exc})"
        if fault is not None:
            yield file.path, fault


def is_finished(storage: Storage, manifest: Manifest, shard: int) -> bool:
    """Whether a shard has a valid record and all its files are there with the recorded sizes."""
    try:
        found = read_record(storage, manifest, shard)
    except CorruptStoreError:
        return False
    return found is not None and next(file_faults(storage, found[0]), None) is None
