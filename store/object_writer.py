"""Writing a store's shards straight into a bucket; the contract is `writing.ShardWriter`.

Filled buffers and outcomes in; a shard's files, its statistics and at last its record below `s3://` out. A
shard passes through a folder of this machine, one at a time; nothing else of the store lies here.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from .arrow import pa
from .buffer import ShardBuffer, refuse_other_shard
from .completion import is_completed
from .errors import ConfigError, IncompleteStoreError, ShardBusyError
from .manifest import Manifest
from .object_completion import complete_objects
from .object_leases import Leases
from .object_planning import WriteTeacher, plan_objects
from .object_presence import damaged_shards, marked_shards, recorded_shards, restore_lost_records
from .object_shards import mend_shard, put_shard
from .objects import PROBE, Objects
from .presence import is_finished
from .records import ShardRecord, mark_path, read_record
from .remedies import AGAIN
from .remote import DEFAULTS
from .root import PLANNING, Root
from .samples import Outcome
from .scratch import Scratch, scratch_error
from .shard_encoding import checked_shard
from .storage import gather

__all__ = ["ObjectWriter", "open_object_writer"]

_log: Final = logging.getLogger(__name__)
_LONG: Final = replace(DEFAULTS, read_timeout_s=1800.0)
"""For uploads: the answer comes after the last byte, and a shard's largest file has gigabytes."""
_SOON: Final = replace(DEFAULTS, num_retries=2, retry_for_s=10.0, read_timeout_s=10.0)
_OLD_S: Final = 60.0
"""Seconds after which an object that takes a moment is a leftover."""
_LONGEST_WAIT_S: Final = 2.0
"""Seconds until shards that other writers own are looked at again."""


def open_object_writer(
    url: str, manifest: Manifest, samples: pa.Table, write_teacher: WriteTeacher, lease: float
) -> ObjectWriter:
    """Plan the store below `url`, or go on with the same one there.

    Args:
        url: `s3://bucket/prefix`.
        manifest: what is to be stored.
        samples: the table as planned.
        write_teacher: writes the teacher's files into a folder that it makes, and says what they are.
        lease: seconds without a sign after which other writers take over what this one is at.

    Raises:
        ConfigError: nothing can be written to such a URL.
        StoreMismatchError, NotAStoreError: see `plan_objects`.
        StorageError: the place cannot be written, does not answer, or does not heed conditions.
        StoreError: there is no room for temporary files.
    """
    objects = Objects(url)
    objects.check_conditions()
    impatient = Objects(url, _SOON)
    impatient.strip_quotes = objects.strip_quotes
    leases, scratch = Leases(objects, lease, impatient=impatient), Scratch()
    try:
        folder = scratch.folder("plan")
        root = plan_objects(objects, leases, manifest, samples, write_teacher, folder)
        shutil.rmtree(folder)
        return ObjectWriter(objects, root, samples, leases, scratch)
    except OSError as exc:
        leases.close()
        scratch.close()
        raise scratch_error(exc) from exc
    except BaseException:
        leases.close()
        scratch.close()
        raise


class ObjectWriter:
    """Writes the shards of a planned store in a bucket; made by `open_object_writer`."""

    def __init__(
        self, objects: Objects, root: Root, samples: pa.Table, leases: Leases, scratch: Scratch
    ) -> None:
        self.manifest = root.manifest
        self.samples = samples
        """The table as planned."""
        self._root = root
        self._objects = objects
        self._uploads = Objects(objects.where, _LONG)
        self._uploads.strip_quotes = objects.strip_quotes
        self._leases = leases
        self._scratch = scratch
        self._claimed: set[int] = set()
        self._publishing = threading.Lock()
        self._damaged: set[int] = set()
        """Shards with a record that lack a file."""
        self._wait_s = min(_LONGEST_WAIT_S, leases.timeout_s / 4)
        self._closed = False
        names = objects.names("") or ()
        self._old = time.monotonic(), [name for name in names if name.startswith(PROBE)]
        """When this writer began, and what was left then of writers that died while they tried the server."""
        restore_lost_records(objects, root)

    def __enter__(self) -> ObjectWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Give up claimed shards, and remove what is on this machine."""
        self._closed = True
        self._claimed.clear()
        self._leases.close()
        self._scratch.close()

    def _refuse_closed(self) -> None:
        if self._closed:
            raise ConfigError(
                f"a writer writes until it is closed; that of {self._objects.where} is; open another one"
            )

    @property
    def unfinished(self) -> list[int]:
        """Shards without a record, or whose files are not all there with their recorded sizes.

        Raises:
            CorruptStoreError: a record is damaged; nobody replaces it.
        """
        entries = self._objects.entries()
        recorded = recorded_shards(entries, self.manifest)
        self._damaged = damaged_shards(self._objects, self.manifest, entries, recorded)
        return [shard for shard in self.manifest.held_shards if shard not in recorded - self._damaged]

    def _record(self, shard: int) -> ShardRecord | None:
        found = read_record(self._objects, self.manifest, shard)
        return None if found is None else found[0]

    def is_finished(self, shard: int) -> bool:
        """Whether a shard has a valid record, and all its files are there with their recorded sizes."""
        return is_finished(self._objects, self.manifest, shard)

    def rounds(self, shards: Sequence[int]) -> Iterator[Sequence[int]]:
        """Those of `shards` that are to be written, again and again until all are finished.

        A round is over when the caller has written what it could claim. The next one, after a wait, is of
        what other writers had; one listing tells what became of it.
        """
        told = False
        while shards:
            yield shards
            shards = self._left(shards)
            if shards and not told:
                _log.warning(
                    "waiting for shard %d%s of %s, which other writers are at; should they have died, it is "
                    "taken over after the time-out of their leases",
                    shards[0],
                    f" and {len(shards) - 1} more" if len(shards) > 1 else "",
                    self._objects.where,
                )
                told = True
            if shards:
                time.sleep(self._wait_s)

    def _left(self, shards: Sequence[int]) -> list[int]:
        entries = self._objects.entries("shards")
        self._leases.look(entries)
        recorded = recorded_shards(entries, self.manifest)
        self._damaged = {shard for shard in self._damaged if not self.is_finished(shard)}
        return [shard for shard in shards if shard not in recorded or shard in self._damaged]

    def claim(self, shard: int) -> bool:
        """Take the lease of an unfinished shard before it is computed.

        Returns:
            False if it is finished, or another writer's.

        Raises:
            ConfigError: there is no such shard here, or the writer is closed.
            StorageError: the place cannot be written, or does not answer.
        """
        self._refuse_closed()
        refuse_other_shard(self.manifest, shard)
        path = mark_path(shard)
        # Asked for first: near the end of a run most shards are finished, and a lease is two requests more.
        if self._is_done(shard) or self._leases.is_others(path) or not self._leases.take(path):
            return False
        if self._record(shard) is not None and not self._is_damaged(shard):
            self._leases.remove(path)
            return False
        self._claimed.add(shard)
        return True

    def _is_done(self, shard: int) -> bool:
        """Whether a shard has a record, and lacked nothing when files were looked for."""
        return shard not in self._damaged and self._record(shard) is not None

    def _is_damaged(self, shard: int) -> bool:
        """Whether a shard that has its record lacks a file: only where one did when it was looked for."""
        return shard in self._damaged and not self.is_finished(shard)

    def buffer(self, shard: int) -> ShardBuffer:
        """An empty buffer for one shard; it takes `ShardBuffer.nbytes` of memory."""
        return ShardBuffer(self.manifest, shard)

    def publish(
        self, buffer: ShardBuffer, outcomes: Sequence[Outcome], threads: int | None = None
    ) -> ShardRecord:
        """Check a shard, write it and make it valid; rows that are not ok become the fill value.

        A writer that has lost its lease publishes all the same: what is there already stays, and what is not
        comes sooner. The record that is returned is the one that is there.

        Raises:
            ConfigError, NonFiniteError, PrecisionError: as of `StoreWriter.publish`.
            ShardBusyError: it was not claimed, and is another writer's.
            StoreMismatchError, CorruptStoreError: see `put_shard` and `mend_shard`.
            StorageError: the place cannot be written, or does not answer.
            StoreError: there is no room for temporary files.
        """
        self._refuse_closed()
        shard = buffer.shard
        checked = checked_shard(self.manifest, buffer, outcomes, self.samples["key"], threads)
        if shard not in self._claimed and not self.claim(shard):
            raise ShardBusyError(
                f"shard {shard} of {self._objects.where} is finished, or another writer's; leave it to them"
            )
        with self._publishing:
            folder = self._scratch.folder(f"shard-{shard}")
            try:
                # A lease that was lost may have led to a record meanwhile.
                there = self._record(shard)
                if there is None:
                    record = put_shard(self._uploads, self.manifest, checked, self.samples["key"], folder)
                elif self._is_damaged(shard):
                    record = mend_shard(self._uploads, self.manifest, checked, there, folder)
                else:
                    record = there
            except OSError as exc:
                self._leases.give_up(mark_path(shard))
                raise scratch_error(exc) from exc
            except BaseException:
                self._leases.give_up(mark_path(shard))
                raise
            finally:
                self._claimed.discard(shard)
                shutil.rmtree(folder, ignore_errors=True)
        self._damaged.discard(shard)
        self._leases.remove(mark_path(shard))
        return record

    def complete(self) -> None:
        """Merge all outcomes into samples.parquet and write index.parquet; nothing to do if both are sound.

        Raises:
            ConfigError: the writer is closed.
            IncompleteStoreError: a shard is unfinished.
            PrecisionError, CorruptStoreError: see `complete_objects`.
            StorageError: the place cannot be written, or does not answer.
        """
        self._refuse_closed()
        unfinished = self.unfinished
        if unfinished:
            raise IncompleteStoreError(
                f"a store is completed when every shard is finished; {len(unfinished)} of "
                f"{len(self.manifest.held_shards)} are not (first: {unfinished[0]}); {AGAIN}"
            )
        if not is_completed(self._objects, self._root):
            folder = self._scratch.folder("tables")
            try:
                complete_objects(self._uploads, self._root, self.samples, folder)
            except OSError as exc:
                raise scratch_error(exc) from exc
            finally:
                shutil.rmtree(folder, ignore_errors=True)
        self._remove_leases()

    def _remove_leases(self) -> None:
        """Those of finished shards, the planner's, and old probes: nobody needs them any more."""
        marked = marked_shards(self._objects.entries("shards"), self.manifest)
        gather(self._objects, self._leases.remove, map(mark_path, sorted(marked)))
        began, probes = self._old
        if time.monotonic() - began > _OLD_S:
            gather(self._objects, self._objects.remove, probes)
        if self._objects.find(PLANNING) is not None:
            self._leases.remove(PLANNING)
