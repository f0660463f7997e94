"""One shard of a copy: marked, its files brought in, and its record made last.

Pieces of the sources in; array files, statistics and record of one shard on disk out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from itertools import islice
from pathlib import Path

from .copy_plan import Piece
from .fetching import FileToFetch, Stopped
from .files import atomic_write, sync_folder
from .joins import RecordPiece, join_record, join_statistics, picked
from .manifest import Manifest
from .marks import begin_again, own
from .records import statistics_path
from .sources import read_checked

__all__ = ["ShardCopy"]


class ShardCopy:
    """A shard under way; its files are being fetched from the moment on that it is made.

    Args:
        path: the copy.
        manifest: the copy's.
        shard: its number.
        pieces: what each source gives.
        fetch: brings one file to disk.
        pool: threads to do so.

    Raises:
        ShardBusyError: another process is writing this shard.
    """

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        shard: int,
        pieces: Sequence[Piece],
        fetch: Callable[[FileToFetch], None],
        pool: ThreadPoolExecutor,
    ) -> None:
        self._path = path
        self._manifest = manifest
        self._shard = shard
        self._pieces = [(piece.source.storage, piece.of(shard)) for piece in pieces]
        self._mark = own(path, manifest, shard)
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
        folder = (self._path / file.path).parent
        # The folders up to the array's own: each may be new, and its name lives in the one above. Here, where
        # many threads wait for the disk side by side.
        for parent in (folder, *islice(folder.parents, 3)):
            sync_folder(parent)

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
        _, text = join_record([piece for _, piece in self._pieces], self._manifest, statistics)
        atomic_write(self._path / statistics_path(self._shard), statistics)
        self._mark.publish(text)
        self.close()
        return len(statistics)

    def close(self) -> None:
        """Let go of the shard; the files that are there stay."""
        self._mark.close()
