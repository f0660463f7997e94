"""One file of a store onto this machine: whole, with the right hash, or not at all.

A file of a storage and what its record says in; the file under its final name out. Dropped connections go on
where they broke off; a wrong hash begins again.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, TypeVar

import xxhash

from .answers import BeyondEndError
from .errors import CorruptStoreError, StorageError, StoreError, UnreachableError
from .files import new_file, stored_sha256, stored_xxh3
from .storage import Folder, Storage, another_size

__all__ = ["ELSEWHERE", "FileToFetch", "Retries", "Stopped", "fetch_file", "with_retries"]

ELSEWHERE: Final = "copy from another source, or, if it changed meanwhile, run the same command again"
"""What to do where a source does not have a file as its record says."""

_RANGE_BYTES: Final = 8 << 20
_WRONG_HASHES: Final = 2
"""Arrivals with another hash that are forgiven: bytes do get lost on the way, but a damaged file stays so."""
Result = TypeVar("Result")


class Stopped(Exception):  # noqa: N818  (not an error: another thread has failed, or the user has had enough)
    """The copy was called off while this file was under way."""


class _AnotherHashError(Exception):
    """What arrived is not the file."""


@dataclass(frozen=True, kw_only=True)
class Retries:
    """Patience with a source beyond that of its storage, which tries each request for two minutes."""

    times: int = 3
    """Failures in a row, without a byte in between, that are forgiven."""
    first_s: float = 1.0
    """Wait after the first, doubled each time; up to half as much again is added by chance."""
    most_s: float = 30.0
    """Longest wait."""

    def wait_s(self, failures: int) -> float:
        """Seconds to wait after this many failures in a row."""
        return min(self.first_s * 2.0 ** (failures - 1), self.most_s) * random.uniform(1.0, 1.5)  # noqa: S311


@dataclass(frozen=True)
class FileToFetch:
    """What is known of a file before it is fetched."""

    storage: Storage
    path: str
    """Relative to the store, there and here."""
    bytes: int
    hash: str
    algorithm: Literal["xxh3", "sha256"] = "xxh3"

    def state(self) -> Any:
        """A new state of its hash."""
        return xxhash.xxh3_128() if self.algorithm == "xxh3" else hashlib.sha256()

    def is_at(self, folder: Path) -> bool:
        """Whether `folder` has the file already, with its size and hash."""
        file = folder / self.path
        return file.is_file() and not file.is_symlink() and self.is_sound(Folder(folder))

    def is_sound(self, storage: Storage | None = None) -> bool:
        """Whether a place, by default its own, has it with its size and hash.

        Raises:
            StorageError: it cannot be read.
        """
        storage = storage or self.storage
        hash_of = stored_xxh3 if self.algorithm == "xxh3" else stored_sha256
        try:
            return storage.size(self.path) == self.bytes and hash_of(storage, self.path) == self.hash
        except FileNotFoundError:
            return False


def with_retries(action: Callable[[], Result], retries: Retries, stop: threading.Event) -> Result:
    """The action's result; tried again while the place does not answer.

    Raises:
        Stopped: `stop` was set meanwhile.
        UnreachableError: it failed `retries.times` times and once more.
    """
    failures = 0
    while True:
        try:
            return action()
        except UnreachableError as exc:
            failures += 1
            _wait(failures, retries.times, exc, retries, stop)


def _wait(failures: int, most: int, error: StoreError, retries: Retries, stop: threading.Event) -> None:
    """Wait before the next try; raise what went wrong if there is none."""
    if failures > most:
        raise error
    if stop.wait(retries.wait_s(failures)):
        raise Stopped from error


def fetch_file(
    file: FileToFetch,
    folder: Path,
    retries: Retries,
    stop: threading.Event,
    progress: Callable[[int], None],
) -> None:
    """Bring one file to disk below `folder` under its final name; kept if it is there already.

    Args:
        file: the file; not a byte more than its size is read.
        folder: the copy.
        retries: patience with the source.
        stop: call the copy off.
        progress: told how many bytes arrived; negative where some must be fetched again.

    Raises:
        CorruptStoreError: the file is missing there, has another size or arrives with another hash.
        UnreachableError: the source does not answer, for all patience.
        OSError: the disk is full, read-only or gone.
    """
    if file.is_at(folder):
        progress(file.bytes)
        return
    target = folder / file.path
    target.parent.mkdir(parents=True, exist_ok=True)
    for failures in itertools.count(1):
        try:
            with new_file(target) as out:
                _receive(file, out, retries, stop, progress)
        except _AnotherHashError as exc:
            found = exc.args[0]
        else:
            return
        progress(-file.bytes)
        error = CorruptStoreError(
            f"{file.path} arrived from {file.storage.where} with another hash ({found}) than its record says "
            f"({file.hash}), {failures} times; it is damaged there: {ELSEWHERE}"
        )
        _wait(failures, _WRONG_HASHES, error, retries, stop)


def _receive(
    file: FileToFetch,
    out: BinaryIO,
    retries: Retries,
    stop: threading.Event,
    progress: Callable[[int], None],
) -> None:
    """Write the file's bytes to `out`.

    Raises:
        _AnotherHashError: with the hash of what arrived.
    """
    state = file.state()
    for block in _ranges(file, retries, stop):
        out.write(block)
        state.update(block)
        progress(len(block))
    if state.hexdigest() != file.hash:
        raise _AnotherHashError(state.hexdigest())


def _ranges(file: FileToFetch, retries: Retries, stop: threading.Event) -> Iterator[bytes]:
    """The file's bytes; after a lost connection from where it broke off."""
    offset, failures = 0, 0
    while offset < file.bytes:
        try:
            with file.storage.open(file.path, file.bytes) as opened:
                while offset < file.bytes:
                    if stop.is_set():
                        raise Stopped
                    block = opened.read(offset, min(_RANGE_BYTES, file.bytes - offset))
                    offset, failures = offset + len(block), 0
                    yield block
        except FileNotFoundError as exc:
            raise CorruptStoreError(f"{file.path} is missing in {file.storage.where}; {ELSEWHERE}") from exc
        except CorruptStoreError as exc:  # of another size, which its place says without saying where it is
            raise _another_size(file, exc) from exc
        except UnreachableError as exc:
            failures += 1
            _wait(failures, retries.times, exc, retries, stop)


def _another_size(file: FileToFetch, error: CorruptStoreError) -> StoreError:
    """What to say of a file that cannot be read as one of its size: it is damaged, or its place misbehaves.

    Where a server refuses a range that is there, or states an absurd length, no byte can be asked for, as of
    an empty file; only that one is also said to be empty.
    """
    where = file.storage.where
    if str(error) == str(another_size(file.path, file.bytes, 0)) and not _is_empty(file):
        return StorageError(
            f"{file.path} must have {file.bytes} bytes; {where} gives none of them, and does not say that it "
            "is empty: this place misbehaves; try again later, or copy from another source"
        )
    return CorruptStoreError(f"{error}; so it is damaged in {where}: {ELSEWHERE}")


def _is_empty(file: FileToFetch) -> bool:
    try:
        return file.storage.size(file.path) == 0
    except BeyondEndError:
        return False
    except (FileNotFoundError, StoreError):
        return True  # nothing that would say more than what went wrong first
