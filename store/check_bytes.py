"""Verification of every byte: files are read side by side and hashed as they are read.

A place and the files with their hashes in; the files that are not what was written out. XXH3 takes 40 GB a
second on one core and lets other threads run meanwhile, so that a few files at a time keep the disk busy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from .cores import num_cores
from .errors import StoreError
from .files import stored_sha256, stored_xxh3
from .findings import Findings, Remedy
from .records import ShardRecord, extract_again
from .remedies import COPY
from .reporting import Advance, Progress, run_reporting
from .root import Root
from .storage import Storage

__all__ = ["check_bytes"]

_REMOTE_THREADS: Final = 16
_MOST_LOCAL_THREADS: Final = 9
"""Of one more than there are cores, so that one waits for the disk while the others hash."""
_GONE: Final = "it vanished meanwhile"


@dataclass(frozen=True)
class _File:
    path: str
    bytes: int
    hash: str
    hash_of: Callable[[Storage, str, Advance], str]
    shard: int | None
    remedy: Remedy
    spoken: str


def check_bytes(
    storage: Storage,
    root: Root,
    records: Iterable[ShardRecord],
    findings: Findings,
    progress: Progress | None = None,
) -> None:
    """Every byte of arrays, statistics and teacher against its hash; files that a fault names are left out.

    Args:
        storage: where the store lies.
        root: for the teacher's files.
        records: for the shards' files.
        findings: where faults go, in the order of the records.
        progress: called in this thread with bytes done and bytes in all.
    """
    files = _files(root, records)
    named = findings.named
    total = sum(file.bytes for file in files)
    asked = [file for file in files if file.path not in named]
    done = total - sum(file.bytes for file in asked)
    for file, found in zip(asked, _hashes(storage, asked, done, total, progress), strict=True):
        if isinstance(found, StoreError):
            findings.unreadable(file.path, found, file.remedy, file.shard)
        elif found != file.hash:
            detail = found if found == _GONE else f"its hash is {found}, not {file.hash}"
            findings.fault(
                file.path, "must be what was written", f"{detail}; {file.spoken}", file.remedy, file.shard
            )


def _files(root: Root, records: Iterable[ShardRecord]) -> list[_File]:
    files = [
        _File(path, file.bytes, file.sha256, stored_sha256, None, "copy", COPY)
        for path, file in root.teacher.items()
    ]
    for record in records:
        again = extract_again(record.shard)
        files += [
            _File(file.path, file.bytes, file.hash, stored_xxh3, record.shard, "extract", again)
            for file in (*record.files, record.statistics)
        ]
    return files


def _hashes(
    storage: Storage, files: Sequence[_File], done: int, total: int, progress: Progress | None
) -> list[str | StoreError]:
    """Hash of every file, or why there is none, in their order."""
    local = min(num_cores() + 1, _MOST_LOCAL_THREADS)
    threads = local if storage.folder is not None else _REMOTE_THREADS
    jobs = [partial(_hash, storage, file) for file in files]
    return run_reporting(jobs, threads, progress, done, total)


def _hash(storage: Storage, file: _File, advance: Advance) -> str | StoreError:
    try:
        return file.hash_of(storage, file.path, advance)
    except StoreError as exc:
        return exc
    except FileNotFoundError:
        return _GONE
