"""Import: a reference-layout array becomes a store of format 1, shard by shard, checked against its source.

    import_reference(Path("activations.zarr"), Path("in1k.zarr"), ImportOptions(registers=4, layers="0-12"))

In memory are one shard buffer and a few chunks of the source. Every row of every array is hashed as it must
read when it comes from the source, and again when its shard is read back from disk, which is before the shard
gets its record: what a killed run left finished was held against the source. Rows that the source does
not have, or has as NaN, become bad rows with their reason. Called again, it goes on where it stopped,
and several processes may share the work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from .cores import memory_bytes
from .creation import create_store, is_free
from .errors import ConfigError, CorruptStoreError, ImageSourceError
from .grid import SHARD_BUFFER_BYTES
from .import_blocks import blocks, calibrated
from .import_plan import ImportOptions, aligned_grid, infer_layout, plan_import
from .manifest import Manifest
from .provenance import UNKNOWN
from .reader import Store, open_store
from .reading import ChunkSource, read_rows
from .records import ArrayKey, ShardRecord, arrays_of
from .reference import Reference, RowFault, open_reference
from .row_lists import read_row_list
from .row_sums import add_row_sums, row_hashes
from .samples import Outcome, plan_samples
from .storage import Folder
from .writer import StoreWriter

__all__ = ["ImportOptions", "ImportSummary", "import_reference"]

Progress = Callable[[int, int], None]
"""Called with rows done and rows in all."""
_ROWS_BACK: Final = 64
"""Rows of one array read back at a time."""


@dataclass(frozen=True, kw_only=True)
class ImportSummary:
    """What is in the store now, and what this run did for it."""

    num_rows: int
    num_new: int
    """Rows converted by this run."""
    bad: dict[str, int]
    """Rows without activations by reason code."""
    num_bytes: int
    float32_bytes: int
    """Bytes of the same arrays as plain float32."""
    unknown: tuple[str, ...]
    """What nobody said: of `keys`, `labels`, `teacher`, `heads`, `preprocessing`, `license`."""
    seconds: float
    digest: str


def import_reference(
    source: Path,
    store: Path,
    options: ImportOptions,
    progress: Progress | None = None,
) -> ImportSummary:
    """Convert an array, or go on with it, and complete the store; `verify_store` may follow.

    Args:
        source: folder of the array, on this machine.
        store: where the store is or will be.
        options: what the array does not say.
        progress: called with rows done and rows in all.

    Raises:
        ConfigError: the shape can mean several things or none, or an option does not fit it.
        ImageSourceError: no row of the source has activations.
        NotAStoreError, StoreMismatchError: the source is no such array, or `store` is something else.
        PrecisionError: int8 cannot hold these values, or a value is too large for float16.
        CorruptStoreError: what was written does not read back as the source.
        StoreError: the disk is full or gone; finished shards are kept.
    """
    start = time.perf_counter()
    reference = open_reference(source)
    there = None if is_free(store) else open_store(store)
    manifest = _manifest(reference, options, there)
    samples = _samples(reference, options)
    with create_store(store, manifest, samples, {}) as writer:
        num_new = _convert_all(reference, writer, progress)
        _refuse_all_bad(open_store(store), reference)
        writer.complete()
    return _summary(open_store(store), options, num_new, start)


def _manifest(reference: Reference, options: ImportOptions, there: Store | None) -> Manifest:
    has = None if there is None else there.manifest
    if has is not None and options.shard_rows in (None, has.shard_rows):
        grid = has.shard_rows, has.chunk_rows  # whatever this machine's memory would suggest
    else:
        grid = aligned_grid(reference, options, min(SHARD_BUFFER_BYTES, memory_bytes() // 4))
    steps = (
        calibrated(reference, infer_layout(reference.shape[2], options)) if options.dtype == "int8" else None
    )
    return plan_import(reference, options, grid, steps)


def _samples(reference: Reference, options: ImportOptions) -> pa.Table:
    count = reference.num_rows
    keys = [f"row-{row:09d}" for row in range(count)]
    labels: list[str | None] = [None] * count
    if options.keys is not None:
        keys = []
        for row, key in enumerate(read_row_list(options.keys, "key", count)):
            if key is None:
                raise ConfigError(f"{options.keys} must name every row; row {row} is empty")
            keys.append(key)
    if options.labels is not None:
        labels = read_row_list(options.labels, "label", count)
    return plan_samples(keys, labels, reference.name)


def _convert_all(reference: Reference, writer: StoreWriter, progress: Progress | None) -> int:
    """Convert what is unfinished, beside other processes that may be at it; returns the rows it converted."""
    size = {shard: len(writer.manifest.shard_range(shard)) for shard in writer.unfinished}
    num_new = 0
    for wanted in writer.rounds(list(size)):
        for shard in wanted:
            if not writer.claim(shard):
                continue
            _convert(reference, writer, shard)
            num_new += size[shard]
            if progress is not None:
                left = sum(size[other] for other in wanted if other > shard)
                progress(reference.num_rows - left, reference.num_rows)
    return num_new


def _convert(reference: Reference, writer: StoreWriter, shard: int) -> None:
    """One shard: read from the source, written, read back and held against the source, then published."""
    manifest = writer.manifest
    buffer = writer.buffer(shard)
    hashes = {array: [0] * len(buffer.rows) for array in arrays_of(manifest)}
    faults: dict[int, RowFault] = {}
    for span, block in blocks(reference, manifest, buffer.rows):
        for fault in block.faults:
            faults.setdefault(fault.row, fault)
        if block.values is None:
            continue
        first = span.rows.start - buffer.rows.start
        for place, axis in enumerate(span.layers):
            layer = manifest.layers[axis]
            buffer.write(layer, first, np.ascontiguousarray(block.values[:, place]))
            for kind in manifest.kinds:
                found = block.hashes[axis, kind]
                hashes[ArrayKey(layer, kind)][first : first + len(found)] = found
    _expect_fill(manifest, hashes, buffer.rows, faults)
    outcomes = [_outcome(faults.get(row)) for row in buffer.rows]
    writer.publish(buffer, outcomes, check=partial(_hold_against, writer, hashes))


def _expect_fill(
    manifest: Manifest, hashes: dict[ArrayKey, list[int]], rows: range, bad: Iterable[int]
) -> None:
    """A bad row must read as NaN in every array, whatever some layers of the source have for it."""
    for array, expected in hashes.items():
        fill = np.full((1, *manifest.chunk_shape(array.kind)[1:]), np.nan, np.float32)
        for row in bad:
            (expected[row - rows.start],) = row_hashes(range(row, row + 1), fill)


def _outcome(fault: RowFault | None) -> Outcome:
    return Outcome(status="ok") if fault is None else Outcome(status=fault.status, reason=fault.reason)


def _hold_against(writer: StoreWriter, hashes: dict[ArrayKey, list[int]], record: ShardRecord) -> None:
    """Read a shard back from disk, before it has its record, and compare every row with the source's.

    Raises:
        CorruptStoreError: a row differs; the shard is not published, so that the next run writes it again.
    """
    manifest, rows = writer.manifest, range(*record.rows)
    no_row = np.broadcast_to(np.False_, manifest.num_rows)
    chunks = ChunkSource(Folder(writer.path), manifest, lambda _: record, no_row)
    for file, (array, expected) in zip(record.files, hashes.items(), strict=True):
        for start in range(rows.start, rows.stop, _ROWS_BACK):
            part = range(start, min(start + _ROWS_BACK, rows.stop))
            values = read_rows(chunks, np.array(part), [array.layer], [array.kind], np.dtype(np.float32))
            for row, found in zip(part, row_hashes(part, values), strict=True):
                if found != expected[row - rows.start]:
                    raise _differs(writer, f"row {row}", array)
        if file.values != add_row_sums(expected):
            raise _differs(writer, f"the row sum of shard {record.shard}", array)


def _differs(writer: StoreWriter, what: str, array: ArrayKey) -> CorruptStoreError:
    return CorruptStoreError(
        f"{writer.path}: {what}, layer {array.layer}, {array.kind} does not read back as it was written; "
        "check memory and disk, then run the same import again: it writes the shard anew"
    )


def _refuse_all_bad(store: Store, reference: Reference) -> None:
    if store.num_bad < store.num_rows:
        return
    counts = ", ".join(f"{count} {status}" for status, count in store.bad_counts.items())
    raise ImageSourceError(
        f"none of the {store.num_rows} rows of {reference.path} has activations ({counts})"
    )


def _summary(store: Store, options: ImportOptions, num_new: int, start: float) -> ImportSummary:
    manifest = store.manifest
    said = {
        "keys": options.keys,
        "labels": options.labels,
        "teacher": manifest.teacher.name != UNKNOWN,
        "heads": manifest.teacher.num_heads,
        "preprocessing": manifest.preprocessing,
        "license": manifest.license != UNKNOWN,
    }
    return ImportSummary(
        num_rows=store.num_rows,
        num_new=num_new,
        bad=store.bad_counts,
        num_bytes=store.num_bytes,
        float32_bytes=store.float32_bytes,
        unknown=tuple(name for name, value in said.items() if not value),
        seconds=time.perf_counter() - start,
        digest=store.digest,
    )
