"""Writing shards: one owner writes a shard whole, and its record comes last.

A filled `ShardBuffer` and its rows' outcomes in; the shard's files, its statistics and at last its record
out.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .buffer import ShardBuffer
from .codecs import non_finite, to_float32
from .completion import is_completed, write_completion
from .errors import ConfigError, IncompleteStoreError, NonFiniteError
from .files import atomic_write, disk_error, leftovers, lock_shared, locked_alone, xxh3
from .index import INDEX
from .records import (
    ArrayFile,
    ArrayKey,
    FileRecord,
    ShardRecord,
    arrays_of,
    is_finished,
    make_record,
    record_path,
    statistics_path,
)
from .root import PLANNING, Root
from .samples import OK, Outcome
from .shard_files import write_shard_file
from .statistics import ChannelStats, statistics_bytes, statistics_of
from .storage import Folder

__all__ = ["StoreWriter"]


class StoreWriter:
    """Writes the shards of a planned store; made by `create_store`. Safe to call from several threads.

    Several writers may work on one store, in one process or many, as long as no two publish the same shard.
    """

    def __init__(self, path: Path, root: Root, samples: pa.Table) -> None:
        self.path = path
        self._storage = Folder(path)
        self.manifest = root.manifest
        self._root = root
        self._samples = samples
        self._keys = samples["key"]
        self._guard = threading.Lock()
        self._publishing: set[int] = set()
        handle = lock_shared(path)
        self._close = weakref.finalize(self, os.close, handle)
        self._collect(handle)

    def _collect(self, handle: int) -> None:
        """Remove what killed writers left, unless another writer is at work: it could be theirs."""
        with locked_alone(handle) as alone:
            if alone:
                (self.path / PLANNING).unlink(missing_ok=True)
                for file in leftovers(self.path):
                    file.unlink(missing_ok=True)

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Give up the writers' lock; also done when the writer is collected."""
        self._close()

    @property
    def unfinished(self) -> list[int]:
        """Shards without a valid record, or whose files are not all there with their recorded sizes."""
        shards = self.manifest.held_shards
        return [shard for shard in shards if not is_finished(self._storage, self.manifest, shard)]

    def buffer(self, shard: int) -> ShardBuffer:
        """An empty buffer for one shard; it takes `ShardBuffer.nbytes` of memory."""
        return ShardBuffer(self.manifest, shard)

    def publish(self, buffer: ShardBuffer, outcomes: Sequence[Outcome]) -> ShardRecord:
        """Check a shard, write it and make it valid; rows that are not ok become the fill value.

        Args:
            buffer: all values of the shard.
            outcomes: one for every row of the shard, in row order.

        Raises:
            ConfigError: the outcomes are not one a row, or this shard is being published already.
            NonFiniteError: a row that is ok holds a NaN or an infinity; nothing is published.
            StoreError: the disk is full, read-only or gone; finished shards are kept.
        """
        if len(outcomes) != len(buffer.rows):
            raise ConfigError(
                f"shard {buffer.shard} has {len(buffer.rows)} rows; got {len(outcomes)} outcomes"
            )
        is_ok = np.array([outcome.status == OK for outcome in outcomes], dtype=bool)
        with self._owning(buffer.shard):
            for offset in np.flatnonzero(~is_ok):
                buffer.clear(int(offset))
            for array in arrays_of(self.manifest):
                self._check_finite(buffer, array, is_ok)
            try:
                return self._write(buffer, outcomes, is_ok)
            except OSError as exc:
                raise disk_error(exc, self.path, 2 * buffer.nbytes) from exc

    @contextmanager
    def _owning(self, shard: int) -> Iterator[None]:
        with self._guard:
            if shard in self._publishing:
                raise ConfigError(
                    f"one owner writes a shard; shard {shard} is being published by another thread"
                )
            self._publishing.add(shard)
        try:
            yield
        finally:
            with self._guard:
                self._publishing.remove(shard)

    def _check_finite(self, buffer: ShardBuffer, array: ArrayKey, is_ok: npt.NDArray[np.bool_]) -> None:
        for offset, held in enumerate(buffer.held(array)):
            if not is_ok[offset]:
                continue
            wrong = non_finite(held)
            if wrong.any():
                row = buffer.rows[offset]
                value = to_float32(held[wrong][:1])[0]
                raise NonFiniteError(
                    f"values must be finite; row {row} ({self._keys[row].as_py()}) holds {value} in layer "
                    f"{array.layer}, {array.kind} ({int(wrong.sum())} values); check the teacher's weights "
                    "and its precision; the shard was not published"
                )

    def _write(
        self, buffer: ShardBuffer, outcomes: Sequence[Outcome], is_ok: npt.NDArray[np.bool_]
    ) -> ShardRecord:
        shard = buffer.shard
        # From here on the shard and the store are not finished, whatever they were before.
        (self.path / INDEX).unlink(missing_ok=True)
        (self.path / record_path(shard)).parent.mkdir(exist_ok=True)
        (self.path / record_path(shard)).unlink(missing_ok=True)
        files: list[ArrayFile] = []
        statistics: dict[ArrayKey, ChannelStats] = {}
        for array in arrays_of(self.manifest):
            values = to_float32(buffer.held(array))
            files.append(write_shard_file(self.path, self.manifest, array, shard, values))
            statistics[array] = statistics_of(values if is_ok.all() else values[is_ok])
        data = statistics_bytes(statistics)
        atomic_write(self.path / statistics_path(shard), data)
        summary = FileRecord(path=statistics_path(shard), bytes=len(data), hash=xxh3(data))
        record, text = make_record(self.manifest, shard, outcomes, files, summary)
        atomic_write(self.path / record_path(shard), text)
        return record

    def complete(self) -> None:
        """Merge all outcomes into samples.parquet and write index.parquet; nothing to do if both are sound.

        Raises:
            IncompleteStoreError: a shard is unfinished.
            CorruptStoreError: a record or its statistics were altered.
        """
        unfinished = self.unfinished
        if unfinished:
            raise IncompleteStoreError(
                f"a store is completed when every shard is finished; {len(unfinished)} of "
                f"{len(self.manifest.held_shards)} are not (first: {unfinished[0]}); run the same `activault "
                "extract` again"
            )
        try:
            if not is_completed(self._storage, self.manifest):
                write_completion(self.path, self._root, self._samples)
        except OSError as exc:
            raise disk_error(exc, self.path, self._samples.nbytes) from exc
