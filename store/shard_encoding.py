"""One shard from memory to files: checked, encoded, summed up; and the record that makes it valid.

A filled `ShardBuffer` and its rows' outcomes in; array files and statistics in a folder, and the text of the
record, which is the caller's to publish, out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from .buffer import ShardBuffer
from .checks import checked_contents
from .cores import in_threads, num_cores
from .differences import first_difference, spoken
from .errors import ConfigError
from .files import xxh3
from .manifest import Manifest
from .records import (
    ArrayFile,
    ArrayKey,
    FileRecord,
    ShardRecord,
    array_file,
    make_record,
    statistics_path,
)
from .samples import OK, Outcome
from .shard_writing import Content, write_shard_file
from .statistics import ChannelStats, Losses, statistics_bytes

__all__ = ["CheckedShard", "EncodedShard", "checked_shard", "encode_shard"]


@dataclass(frozen=True)
class CheckedShard:
    """A shard that may be written."""

    buffer: ShardBuffer
    outcomes: Sequence[Outcome]
    contents: Mapping[ArrayKey, Content]
    threads: int


@dataclass(frozen=True)
class EncodedShard:
    """A shard whose files are written, without its record."""

    outcomes: Sequence[Outcome]
    files: Mapping[ArrayKey, ArrayFile]
    statistics: FileRecord

    def record(self, manifest: Manifest, shard: int) -> tuple[ShardRecord, bytes]:
        """The record and the bytes of its file."""
        return make_record(manifest, shard, self.outcomes, list(self.files.values()), self.statistics)


def checked_shard(
    manifest: Manifest, buffer: ShardBuffer, outcomes: Sequence[Outcome], keys: Any, threads: int | None
) -> CheckedShard:
    """Hold a shard against what may be stored; rows that are not ok become the fill value.

    Args:
        manifest: of the store.
        buffer: all values of the shard.
        outcomes: one for every row of the shard, in row order.
        keys: a column with the key of every row of the store, for messages.
        threads: arrays that are worked on at the same time at most, 1 or more; None is one a core.

    Raises:
        ConfigError: the buffer was made for another store, the outcomes are not one a row, or there are fewer
            threads than one.
        NonFiniteError, PrecisionError: see `checked_contents`.
    """
    _refuse_foreign(buffer, manifest)
    if len(outcomes) != len(buffer.rows):
        raise ConfigError(f"shard {buffer.shard} has {len(buffer.rows)} rows; got {len(outcomes)} outcomes")
    if threads is not None and threads < 1:
        raise ConfigError(f"a shard is written by 1 thread or more; got {threads}")
    num_arrays = len(manifest.layers) * len(manifest.kinds)
    # Two chunks a thread are within the bound as long as there are no more threads than chunks.
    threads = min(threads or num_cores(), num_arrays, manifest.chunks_per_shard)
    is_ok = np.array([outcome.status == OK for outcome in outcomes], dtype=bool)
    for offset in np.flatnonzero(~is_ok):
        buffer.clear(int(offset))
    return CheckedShard(buffer, outcomes, checked_contents(manifest, buffer, is_ok, keys, threads), threads)


def encode_shard(
    folder: Path, manifest: Manifest, checked: CheckedShard, name_of: Callable[[str], str] = str
) -> EncodedShard:
    """Write every array's file and the statistics into `folder`, the bytes of each on disk.

    Args:
        folder: of the caller's own; it need not be the store's.
        manifest: of the store.
        checked: the shard.
        name_of: the name in `folder` of a file that is to be such a path of a store; by default the path.

    Raises:
        OSError: the disk is full, read-only or gone.
    """
    shard = checked.buffer.shard

    def write(item: tuple[ArrayKey, Content]) -> tuple[ArrayFile, ChannelStats]:
        array, content = item
        file = folder / name_of(array_file(array.layer, array.kind, shard))
        if file.parent != folder:
            file.parent.mkdir(parents=True, exist_ok=True)
        return write_shard_file(file, manifest, shard, array, content)

    written = in_threads(write, checked.contents.items(), checked.threads)
    statistics = {
        array: _with_losses(checked.buffer, array, stats)
        for array, (_, stats) in zip(checked.contents, written, strict=True)
    }
    data = statistics_bytes(statistics)
    file = folder / name_of(statistics_path(shard))
    if file.parent != folder:
        file.parent.mkdir(exist_ok=True)
    with file.open("wb") as opened:
        opened.write(data)
        opened.flush()
        os.fsync(opened.fileno())
    summary = FileRecord(path=statistics_path(shard), bytes=len(data), hash=xxh3(data))
    files = {array: file for array, (file, _) in zip(checked.contents, written, strict=True)}
    return EncodedShard(checked.outcomes, files, summary)


def _with_losses(buffer: ShardBuffer, array: ArrayKey, stats: ChannelStats) -> ChannelStats:
    errors = buffer.errors(array)
    return stats if errors is None else replace(stats, losses=Losses(*errors))


def _refuse_foreign(buffer: ShardBuffer, manifest: Manifest) -> None:
    """A buffer holds values as its own manifest's dtype does, int8's by its own steps."""
    if buffer.manifest is manifest:
        return
    difference = first_difference(buffer.manifest, manifest)
    if difference is not None:
        field, given, ours = difference
        raise ConfigError(
            f"a shard is published from a buffer of its own store; {field} is {spoken(given)} in the buffer "
            f"and {spoken(ours)} here; fill one of StoreWriter.buffer"
        )
