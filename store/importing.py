"""Import: a reference-layout array becomes a store of format 1, shard by shard, checked against its source.

    import_reference(Path("activations.zarr"), Path("in1k.zarr"), ImportOptions(registers=4, layers="0-12"))

In memory are one shard buffer and a few chunks of the source. Every row of every array is hashed as it must
read when it comes from the source, and again when its shard is read back from disk, which is before the shard
gets its record: what a killed run left finished was held against the source. Rows that the source does
not have, or has as NaN, become bad rows with their reason. Called again, it goes on where it stopped, after a
look at whether the source is still the same (`import_checks.py`), and several processes may share the work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from .arrow import pa
from .cores import memory_bytes
from .creation import create_store, is_free
from .errors import ConfigError, ImageSourceError
from .files import disk_error
from .grid import SHARD_BUFFER_BYTES
from .import_blocks import blocks, calibrated
from .import_checks import SourceRows, hold_against, refuse_changed_source
from .import_plan import ImportOptions, aligned_grid, infer_layout, plan_import
from .locks import at_work
from .manifest import Manifest
from .metadata import restore_metadata
from .provenance import UNKNOWN
from .reader import Store, open_store
from .reference import Reference, RowFault, open_reference
from .root import read_root
from .row_lists import read_row_list
from .samples import Outcome, plan_samples
from .storage import Folder
from .writer import StoreWriter

__all__ = ["ImportOptions", "ImportSummary", "import_reference"]

Progress = Callable[[int, int], None]
"""Called with rows done and rows in all."""


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
        NotAStoreError: the source is no such array, or `store` is no store.
        StoreMismatchError: `store` was planned from something else, or the source was changed since it was
            begun or while it was read.
        PrecisionError: int8 cannot hold these values, or a value is too large for float16.
        CorruptStoreError: what was written does not read back as the source.
        StoreError: the disk is full or gone; finished shards are kept.
    """
    start = time.perf_counter()
    reference = open_reference(source)
    there = None if is_free(store) else _opened(store)
    manifest = _manifest(reference, options, there)
    samples = _samples(reference, options)
    with create_store(store, manifest, samples, {}) as writer:
        unfinished = writer.unfinished
        refuse_changed_source(reference, writer, unfinished)
        num_new = _convert_all(reference, writer, unfinished, progress)
        _refuse_all_bad(open_store(store), reference)
        writer.complete()
    return _summary(open_store(store), options, num_new, start)


def _opened(store: Path) -> Store:
    """The store that is to be gone on with; what it has lost of its `zarr.json` files is made again."""
    manifest = read_root(Folder(store)).manifest
    try:
        with at_work(store):
            restore_metadata(store, manifest)
    except OSError as exc:
        raise disk_error(exc, store, 1 << 20) from exc
    return open_store(store)


def _manifest(reference: Reference, options: ImportOptions, there: Store | None) -> Manifest:
    try:
        return _planned(reference, options, there)
    except ValidationError as exc:
        first = exc.errors()[0]
        raise ConfigError(
            f"{reference.path} cannot become a store of format 1: {'.'.join(map(str, first['loc']))}: "
            f"{first['msg']}; got {str(first['input'])[:100]}; state what else its shape means"
        ) from exc


def _planned(reference: Reference, options: ImportOptions, there: Store | None) -> Manifest:
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


def _convert_all(
    reference: Reference, writer: StoreWriter, unfinished: Sequence[int], progress: Progress | None
) -> int:
    """Convert what is unfinished, beside other processes that may be at it; returns the rows it converted."""
    size = {shard: len(writer.manifest.shard_range(shard)) for shard in unfinished}
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
    source = SourceRows(manifest, buffer.rows)
    for span, block in blocks(reference, manifest, buffer.rows):
        source.add(span, block)
        if block.values is None:
            continue
        first = span.rows.start - buffer.rows.start
        for place, axis in enumerate(span.layers):
            buffer.write(manifest.layers[axis], first, np.ascontiguousarray(block.values[:, place]))
    source.expect_fill()
    outcomes = [_outcome(source.faults.get(row)) for row in buffer.rows]
    writer.publish(buffer, outcomes, check=partial(hold_against, writer, source))


def _outcome(fault: RowFault | None) -> Outcome:
    return Outcome(status="ok") if fault is None else Outcome(status=fault.status, reason=fault.reason)


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
