"""One shard of a copy: marked, its files brought in, and its record made last.

Pieces of the sources in; array files, statistics and record of one shard on disk out. A shard that has the
record already is mended: what it lacks appears by rename, and its record and the index, which say of it what
they said before, stay all the while, so that a source that fails takes nothing away.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path

from .copy_plan import Piece, refuse_another_store
from .errors import CorruptStoreError
from .fetching import FileToFetch, Stopped
from .files import atomic_write, sync_upwards
from .joins import RecordPiece, join_record, join_statistics, picked
from .manifest import Manifest
from .marks import Mark, begin_again
from .records import ShardRecord, read_record, statistics_path
from .sources import read_checked
from .storage import Folder

__all__ = ["ShardCopy"]


class ShardCopy:
    """A shard under way; its files are being fetched from the moment on that it is made.

    Args:
        path: the copy.
        manifest: the copy's.
        mark: the shard's, owned; let go of by `finish` or `close`.
        shard: its number.
        pieces: what each source gives.
        mends: whether a record is there that names the same files.
        fetch: brings one file to disk.
        pool: threads to do so.
    """

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        mark: Mark,
        shard: int,
        pieces: Sequence[Piece],
        *,
        mends: bool,
        fetch: Callable[[FileToFetch], None],
        pool: ThreadPoolExecutor,
    ) -> None:
        self._path = path
        self._manifest = manifest
        self._shard = shard
        self._pieces = [(piece.source.storage, piece.of(shard)) for piece in pieces]
        self._mark = mark
        self._mends = mends
        if not mends:
            begin_again(path, [shard])
        self._statistics = pool.submit(self._read_statistics)
        self._files: list[Future[None]] = []
        for storage, piece in self._pieces:
            for file in picked(piece):
                wanted = FileToFetch(storage, file.path, file.bytes, file.hash)
                self._files.append(pool.submit(self._bring, fetch, wanted))

    @property
    def num_files(self) -> int:
        """Array files of the shard."""
        return len(self._files)

    def _bring(self, fetch: Callable[[FileToFetch], None], file: FileToFetch) -> None:
        fetch(file)
        # The folders up to the array's own: each may be new, and its name lives in the one above. Here, where
        # many threads wait for the disk side by side.
        sync_upwards((self._path / file.path).parent, 3)

    def _read_statistics(self) -> list[tuple[RecordPiece, bytes]]:
        return [(piece, read_checked(storage, piece.record.statistics)) for storage, piece in self._pieces]

    def finish(self) -> int:
        """Wait for all files and make the shard valid; returns the size of its statistics.

        Raises whatever went wrong first with any of the files.
        """
        waited: list[Future[object]] = [self._statistics, *self._files]  # type: ignore[list-item]
        done, _ = wait(waited, return_when=FIRST_EXCEPTION)
        failures = [error for future in done if (error := future.exception()) is not None]
        for error in sorted(failures, key=lambda error: isinstance(error, Stopped)):
            raise error
        statistics = join_statistics(self._statistics.result(), self._manifest)
        record, text = join_record([piece for _, piece in self._pieces], self._manifest, statistics)
        if self._mends and not self._is_there(record):
            begin_again(self._path, [self._shard])
            self._mends = False
        if not self._mends or _read(self._path / statistics_path(self._shard)) != statistics:
            atomic_write(self._path / statistics_path(self._shard), statistics)
        if not self._mends:
            self._mark.publish(text)
        self.close()
        return len(statistics)

    def _is_there(self, record: ShardRecord) -> bool:
        """Whether the shard has its record still; another store's (its statistics may differ) is refused."""
        try:
            found = read_record(Folder(self._path), self._manifest, self._shard)
        except CorruptStoreError:
            return False
        if found is None:
            return False
        said = ("files", "sizes", "bad", "images", "statistics")
        refuse_another_store(self._path, found[0], {name: getattr(record, name) for name in said})
        return True

    def close(self) -> None:
        """Let go of the shard; the files that are there stay."""
        if self._mends and self._mark.is_open:
            # Best effort: a mark beside a record is collected alone.
            with contextlib.suppress(OSError):
                self._mark.discard()
        self._mark.leave()


def _read(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None
