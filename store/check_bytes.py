"""Verification of every byte: files are read side by side and hashed as they are read.

A place and the files with their hashes in; the files that are not what was written out. XXH3 takes 40 GB a
second on one core and lets other threads run meanwhile, so that a few files at a time keep the disk busy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Final

from .cores import num_cores
from .errors import StoreError
from .files import stored_sha256, stored_xxh3
from .findings import Findings, Remedy
from .records import ShardRecord, extract_again
from .remedies import COPY
from .root import Root
from .storage import Storage

__all__ = ["check_bytes"]

Progress = Callable[[int, int], None]
_REMOTE_THREADS: Final = 16
_MOST_LOCAL_THREADS: Final = 9
"""Of one more than there are cores, so that one waits for the disk while the others hash."""
_REPORT_BYTES: Final = 32 << 20
_GONE: Final = "it vanished meanwhile"


@dataclass(frozen=True)
class _File:
    path: str
    bytes: int
    hash: str
    hash_of: Callable[[Storage, str, Callable[[int], None]], str]
    shard: int | None
    remedy: Remedy
    spoken: str


class _StoppedError(Exception):
    """The caller wants no more."""


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
    hashing = _Hashing(storage)
    with ThreadPoolExecutor(threads, "activault-verify") as pool:
        try:
            running = [hashing.submit(pool, file) for file in files]
            for size in hashing.sizes(len(running)):
                done += size
                if progress is not None:
                    progress(min(done, total), total)
        finally:
            hashing.stop.set()
            pool.shutdown(cancel_futures=True)
    return [future.result() for future in running]


class _Hashing:
    """Files hashed in threads, which report the bytes they have done to the one that waits for them."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._reports: SimpleQueue[int | None] = SimpleQueue()
        """Bytes that were hashed; None for a file that is done."""
        self.stop = threading.Event()

    def submit(self, pool: ThreadPoolExecutor, file: _File) -> Future[str | StoreError]:
        """Have a file hashed in a thread of the pool."""
        future = pool.submit(self._hash, file)
        future.add_done_callback(lambda _: self._reports.put(None))
        return future

    def sizes(self, num_files: int) -> Iterator[int]:
        """Bytes as they are hashed, 0 at first, until so many files are done."""
        yield 0
        while num_files:
            size = self._reports.get()
            if size is None:
                num_files -= 1
            else:
                yield size

    def _hash(self, file: _File) -> str | StoreError:
        waiting = 0

        def advance(size: int) -> None:
            nonlocal waiting
            if self.stop.is_set():
                raise _StoppedError
            waiting += size
            if waiting >= _REPORT_BYTES:  # a report takes the interpreter from those that hash
                self._reports.put(waiting)
                waiting = 0

        try:
            return file.hash_of(self._storage, file.path, advance)
        except StoreError as exc:
            return exc
        except FileNotFoundError:
            return _GONE
        finally:
            self._reports.put(waiting)
