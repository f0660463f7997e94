"""Writing shards: one owner writes a shard whole, and its record comes last.

A filled `ShardBuffer` and its rows' outcomes in; the shard's files, its statistics and at last its record
out.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from .arrow import pa
from .buffer import ShardBuffer, refuse_other_shard
from .collecting import collect_beside, collect_leftovers
from .completion import is_completed, write_completion
from .cores import in_threads
from .errors import (
    ConfigError,
    CorruptStoreError,
    IncompleteStoreError,
    ShardBusyError,
    ShardTakenError,
    StoreError,
)
from .files import disk_error, refuse_another_folder, sync_folder
from .leases import LEASE, Heartbeat, Watch
from .locks import lock_shared
from .mark_files import owner_of
from .marks import Mark, begin_again, own
from .presence import is_finished
from .records import ShardRecord
from .remedies import AGAIN
from .restoring import restore_records
from .root import Root
from .samples import Outcome
from .shard_encoding import CheckedShard, checked_shard, encode_shard
from .storage import Folder

__all__ = ["StoreWriter"]

_log: Final = logging.getLogger(__name__)
_WAIT: Final = 0.5
"""Seconds until shards that other writers own are looked at again."""


class StoreWriter:
    """Writes the shards of a planned store; made by `create_store`. Safe to call from several threads.

    Several writers may work on one store at once, in one process or many: a shard that two of them publish at
    the same time is written by the first, and refused to the other.
    """

    def __init__(self, path: Path, root: Root, samples: pa.Table, lease: float = LEASE) -> None:
        self.path = path
        self._lease = lease
        self._watch = Watch(lease)
        self._heartbeat = Heartbeat(lease)
        self._storage = Folder(path)
        self.manifest = root.manifest
        self._root = root
        self.samples = samples
        """The table as planned."""
        self._keys = samples["key"]
        self._claimed: dict[int, Mark] = {}
        self._handle = lock_shared(path)
        self._close = weakref.finalize(self, os.close, self._handle)
        restore_records(path)  # before leftover marks: their shards' files stay where there is a record
        collect_leftovers(path, self._handle, self.manifest)

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Give up claimed shards and the writers' lock; also done when the writer is collected.

        The last writer to be closed removes what others left that were killed beside it.
        """
        self._heartbeat.stop()
        for shard in list(self._claimed):
            self._give_up(self._claimed.pop(shard))
        if self._close.alive:
            with contextlib.suppress(OSError, StoreError):  # best effort: the next writer does it, too
                collect_beside(self.path, self._handle, self.manifest)
        self._close()

    def _refuse_closed(self) -> None:
        if not self._close.alive:
            raise ConfigError(
                f"a writer writes until it is closed; that of {self.path} is; open another by create_store"
            )

    @property
    def unfinished(self) -> list[int]:
        """Shards without a valid record, or whose files are not all there with their recorded sizes."""
        return [shard for shard in self.manifest.held_shards if not self.is_finished(shard)]

    def is_finished(self, shard: int) -> bool:
        """Whether a shard has a valid record, and all its files are there with their recorded sizes."""
        return is_finished(self._storage, self.manifest, shard)

    def rounds(self, shards: Sequence[int]) -> Iterator[Sequence[int]]:
        """Those of `shards` that are to be written, again and again until all are finished.

        A round is over when the caller has written what it could claim. The next one, after a wait, is of
        what other writers had: of those that are slow, of those that died, and of those whose lease ran out.
        The first wait is logged.
        """
        told = False
        while shards:
            yield shards
            shards = [shard for shard in shards if not self.is_finished(shard)]
            if shards and not told:
                _log.warning(self._waiting_for(shards))
                told = True
            if shards:
                time.sleep(_WAIT)

    def _waiting_for(self, shards: Sequence[int]) -> str:
        which = f"shard {shards[0]}" + (f" and {len(shards) - 1} more" if len(shards) > 1 else "")
        return (
            f"waiting for {which} of {self.path}, which {owner_of(self.path, shards[0])} is writing; it is "
            f"taken over when that dies, or gives no sign of life for {self._lease:.0f} s"
        )

    def claim(self, shard: int) -> bool:
        """Become an unfinished shard's one owner before it is computed, until it is published.

        Returns:
            False if it is finished, or another thread or process owns it.

        Raises:
            ConfigError: there is no such shard here, or the writer is closed.
            StoreError: the disk is full, read-only or gone.
        """
        self._refuse_closed()
        refuse_other_shard(self.manifest, shard)
        try:
            refuse_another_folder(self._handle, self.path)
            if self.is_finished(shard):
                return False
            mark = self._own(shard)
        except ShardBusyError:
            return False
        except OSError as exc:
            raise disk_error(exc, self.path, 0) from exc
        if self.is_finished(shard):
            self._give_up(mark)
            return False
        self._claimed[shard] = mark
        return True

    def _own(self, shard: int) -> Mark:
        mark = own(self.path, self.manifest, shard, self._lease, self._watch)
        self._heartbeat.add(mark)
        return mark

    @staticmethod
    def _give_up(mark: Mark) -> None:
        # Best effort: an error that led here is told, and a mark that stays is collected later.
        with contextlib.suppress(OSError):
            mark.discard()

    def buffer(self, shard: int) -> ShardBuffer:
        """An empty buffer for one shard; it takes `ShardBuffer.nbytes` of memory."""
        return ShardBuffer(self.manifest, shard)

    def publish(
        self,
        buffer: ShardBuffer,
        outcomes: Sequence[Outcome],
        threads: int | None = None,
        check: Callable[[ShardRecord], object] | None = None,
    ) -> ShardRecord:
        """Check a shard, write it and make it valid; rows that are not ok become the fill value.

        Takes memory beside the buffer: two inner chunks a thread, and never more than twice the largest
        array's shard as float32. If it fails, the shard's files are removed again.

        Args:
            buffer: all values of the shard.
            outcomes: one for every row of the shard, in row order.
            threads: arrays that are encoded at the same time at most, 1 or more; None is one a core.
            check: called with the record when all files are on disk and the shard is not valid yet; if it
                raises, nothing is published.

        Raises:
            ConfigError: the buffer was made for another store, the outcomes are not one a row, there are
                fewer threads than one, or the writer is closed.
            NonFiniteError: a row that is ok holds a NaN, an infinity or what float16 cannot hold; nothing is
                published.
            PrecisionError: int8 codes are further off than they may be; nothing is published.
            ShardBusyError: another thread or process is publishing this shard.
            ShardTakenError: this writer gave no sign of life for its lease, and another has the shard now.
            StoreError: the disk is full, read-only or gone; finished shards are kept.
        """
        self._refuse_closed()
        checked = checked_shard(self.manifest, buffer, outcomes, self._keys, threads)
        try:
            refuse_another_folder(self._handle, self.path)
            mark = self._claimed.pop(buffer.shard, None) or self._own(buffer.shard)
            try:
                return self._write(mark, checked, check)
            except BaseException as exc:
                # Also what was read back, for `check`, may be another owner's by now.
                is_taken = isinstance(exc, OSError | CorruptStoreError) and not mark.is_held
                self._give_up(mark)
                if is_taken:
                    refuse_another_folder(self._handle, self.path)  # the disk is gone, and not the shard
                    raise self._taken(buffer.shard) from exc
                raise
        except OSError as exc:
            raise disk_error(exc, self.path, buffer.nbytes) from exc

    def _taken(self, shard: int) -> ShardTakenError:
        return ShardTakenError(
            f"a shard is its owner's as long as that gives signs of life; shard {shard} of {self.path} was "
            f"taken over by {owner_of(self.path, shard)} after {self._lease:.0f} s without one; nothing is "
            "lost, and the store goes on to be written"
        )

    def _write(
        self, mark: Mark, checked: CheckedShard, check: Callable[[ShardRecord], object] | None
    ) -> ShardRecord:
        """Write the shard beside the store, then put it in its place; all of it fails for a late owner."""
        shard, staging = checked.buffer.shard, mark.staging
        encoded = encode_shard(staging.folder, self.manifest, checked, staging.name_of)
        record, text = encoded.record(self.manifest, shard)
        refuse_another_folder(self._handle, self.path)
        begin_again(self.path, [shard], mark)
        folders = dict[Path, None]()
        for file in (*record.files, record.statistics):
            target = self.path / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            staging.put(file.path)
            # The folders up to the array's own: each may be new, and its name lives in the one above.
            folders |= dict.fromkeys([target.parent, *target.parents[1:4]] if file in record.files else [])
        in_threads(sync_folder, [*folders, self.path / "shards"], checked.threads)
        if check is not None:
            check(record)
        refuse_another_folder(self._handle, self.path)
        mark.publish(text)
        return record

    def complete(self) -> None:
        """Merge all outcomes into samples.parquet and write index.parquet; nothing to do if both are sound.

        Raises:
            ConfigError: the writer is closed.
            IncompleteStoreError: a shard is unfinished.
            CorruptStoreError: a record or its statistics were altered.
            PrecisionError: int8 patches of a layer as a whole are below R2 = 0.999.
        """
        self._refuse_closed()
        unfinished = self.unfinished
        if unfinished:
            raise IncompleteStoreError(
                f"a store is completed when every shard is finished; {len(unfinished)} of "
                f"{len(self.manifest.held_shards)} are not (first: {unfinished[0]}); {AGAIN}"
            )
        try:
            refuse_another_folder(self._handle, self.path)
            if not is_completed(self._storage, self._root):
                write_completion(self.path, self._root, self.samples)
        except OSError as exc:
            raise disk_error(exc, self.path, self.samples.nbytes) from exc
