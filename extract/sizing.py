"""A planned store and the figures of a trial in; how large the store and a worker's memory become, out.

Files and indices follow from the manifest, bytes of values from the bytes that the trial's rows took.
"""

from __future__ import annotations

from dataclasses import dataclass

from activault.store import Manifest, TokenKind
from activault.store.cores import memory_bytes, num_cores
from activault.store.extent import index_bytes, num_files
from activault.store.facts import float32_bytes
from activault.store.grid import chunk_bytes, shard_bytes

from .measuring import Measurement

__all__ = ["MemoryNeeds", "StoreSize", "memory_needs", "shards_bytes", "store_size"]


@dataclass(frozen=True, kw_only=True)
class StoreSize:
    """What the finished store will be."""

    source: str
    """Name of the images' source."""
    source_kind: str
    """`folder`, `tar`, `parquet` or `table`."""
    teacher: str
    num_rows: int
    layers: tuple[int, ...]
    tokens: dict[TokenKind, int]
    """Tokens of a layer that are kept, by kind."""
    dim: int
    dtype: str
    compression: str
    shard_rows: int
    chunk_rows: int
    num_shards: int
    num_files: int
    """All files, as FORMAT.md has them."""
    float32_bytes: int
    """Of the values as plain float32."""
    expected_bytes: int
    """Of all files, scaled from the bytes of the trial's rows."""
    lowest_bytes: int
    highest_bytes: int
    """If all rows were like the batch of the trial that took least, or most."""


@dataclass(frozen=True, kw_only=True)
class MemoryNeeds:
    """Peak memory of one worker."""

    host: dict[str, int]
    """Bytes by what takes them: `process` (Python, listing, teacher), `buffers` (two shards), `encoding`,
    `batches` (images decoded ahead, activations, copies)."""
    peak_host: int
    """Their sum."""
    workers: int
    """Workers that share the machine, each of which takes so much."""
    machine: int
    """Of the machine, or what this process's container or job may take of it."""
    device: int | None
    """Of a CUDA device; None elsewhere."""


def store_size(
    manifest: Manifest, found: Measurement | None, num_teacher_files: int, planned_bytes: int
) -> StoreSize:
    """The finished store.

    Args:
        manifest: of it.
        found: from rows of it, or of a store like it; None where the bytes are known.
        num_teacher_files: in its folder.
        planned_bytes: of the teacher's files and the sample table; of all files where they are known.
    """
    num_shards = len(manifest.held_shards)
    expected = lowest = highest = planned_bytes
    if found is not None:
        rates = (found.bytes_a_row, found.lowest_bytes_a_row, found.highest_bytes_a_row)
        expected, lowest, highest = (
            planned_bytes + shards_bytes(manifest, found, rate, manifest.num_rows, num_shards)
            for rate in rates
        )
    return StoreSize(
        source=manifest.source.name,
        source_kind=manifest.source.kind,
        teacher=manifest.teacher.name,
        num_rows=manifest.num_rows,
        layers=manifest.layers,
        tokens={kind: manifest.layout.count(kind) for kind in manifest.kinds},
        dim=manifest.dim,
        dtype=manifest.dtype,
        compression=manifest.compression,
        shard_rows=manifest.shard_rows,
        chunk_rows=manifest.chunk_rows,
        num_shards=num_shards,
        num_files=num_files(manifest, num_teacher_files),
        float32_bytes=float32_bytes(manifest, manifest.num_rows),
        expected_bytes=expected,
        lowest_bytes=lowest,
        highest_bytes=highest,
    )


def shards_bytes(
    manifest: Manifest, found: Measurement, bytes_a_row: float, num_rows: int, num_shards: int
) -> int:
    """Bytes of some shards: chunks, indices, statistics, records, and these once more in the index.

    A record holds a row's size in pixels, 16 bytes where it is another than the row's before.
    """
    record = found.record_bytes + 16 * manifest.shard_rows
    indices = len(manifest.layers) * len(manifest.kinds) * index_bytes(manifest)
    return round(num_rows * bytes_a_row) + num_shards * (indices + found.statistics_bytes + 2 * record)


def memory_needs(manifest: Manifest, found: Measurement, *, on_cpu: bool, workers: int = 1) -> MemoryNeeds:
    """Peak memory of one worker: two shards at once, and two chunks a thread that encodes."""
    arrays = len(manifest.layers) * len(manifest.kinds)
    threads = 1 if on_cpu else min(num_cores(), arrays, manifest.chunks_per_shard)
    host = {
        "process": found.base_bytes,
        "buffers": 2 * shard_bytes(manifest),
        "encoding": 2 * threads * chunk_bytes(manifest),
        "batches": found.working_bytes,
    }
    return MemoryNeeds(
        host=host,
        peak_host=sum(host.values()),
        workers=workers,
        machine=memory_bytes(),
        device=found.device_bytes,
    )
