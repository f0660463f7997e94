"""The work of a read: every inner chunk that is needed is decompressed once, arrays and chunks on threads.

Row numbers in; float32 (rows, layers, tokens, dim) out, or the same in bfloat16 bit patterns (uint16) for a
loader's pool, which then holds twice the rows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .cores import num_cores
from .errors import CorruptStoreError, StorageError
from .layout import TokenKind
from .manifest import Manifest
from .records import ArrayKey, ShardRecord, arrays_of, extract_again
from .selection import ChunkRows, by_chunk
from .shard_files import ShardFile
from .storage import Storage

__all__ = ["ChunkSource", "read_jobs", "read_rows"]

Int64 = npt.NDArray[np.int64]
_MAX_THREADS: Final = 16
_scratch = threading.local()


@dataclass(frozen=True)
class ChunkSource:
    """What reading a chunk needs to know of a store; shared by all threads."""

    storage: Storage
    manifest: Manifest
    record: Callable[[int], ShardRecord]
    """Record of a finished shard; raises for any other."""
    is_ok: npt.NDArray[np.bool_]
    """(num_rows,) whether a row is finished and ok."""

    def read(self, part: ChunkRows, array: ArrayKey, out: npt.NDArray[Any]) -> None:
        """Decode one chunk of one array; its wanted rows go to `out[part.places]`.

        Args:
            part: the chunk and the rows.
            array: which array.
            out: (rows, tokens of the kind, dim), float32 or uint16 for bfloat16 bit patterns.

        Raises:
            CorruptStoreError: the file or the chunk is missing or altered, or an ok row reads as fill; the
                message names rows, shard, file and remedy.
        """
        manifest = self.manifest
        shard, chunk = divmod(part.chunk, manifest.chunks_per_shard)
        place = list(arrays_of(manifest)).index(array)
        values = _scratch_array(manifest.chunk_shape(array.kind))
        record = self.record(shard)
        try:
            with ShardFile(self.storage, manifest, record.files[place], array.kind) as file:
                file.read_chunk(chunk, values)
        except CorruptStoreError as exc:
            raise CorruptStoreError(f"{self._spoken(part)}: {exc}; {extract_again(shard)}") from exc
        except StorageError as exc:
            raise type(exc)(f"{self._spoken(part)}: {exc}") from exc
        self._refuse_fill(part, array, values)
        held = values if out.dtype == np.float32 else values.view(np.uint16)[..., 1::2]
        out[_as_slice(part.places)] = held[_as_slice(part.local)]

    def _spoken(self, part: ChunkRows) -> str:
        manifest = self.manifest
        first = part.chunk * manifest.chunk_rows
        last = min(first + manifest.chunk_rows, manifest.num_rows) - 1
        return f"rows {first} to {last} (shard {first // manifest.shard_rows})"

    def _refuse_fill(self, part: ChunkRows, array: ArrayKey, values: npt.NDArray[np.float32]) -> None:
        # A row that is ok holds no NaN at all, so its first value is enough to tell it from fill.
        rows = part.local + part.chunk * self.manifest.chunk_rows
        is_fill = np.isnan(values[part.local, 0, 0]) & self.is_ok[rows]
        if is_fill.any():
            raise CorruptStoreError(
                f"row {rows[is_fill][0]} is ok by its record, but reads as fill in layer {array.layer}, "
                f"{array.kind}; {extract_again(rows[is_fill][0] // self.manifest.shard_rows)}"
            )


def _scratch_array(shape: tuple[int, int, int]) -> npt.NDArray[np.float32]:
    """This thread's decoding space, kept so that its pages are not faulted in anew for every chunk."""
    size = int(np.prod(shape))
    held = getattr(_scratch, "values", None)
    if held is None or held.size < size:
        held = _scratch.values = np.empty(size, np.float32)
    return held[:size].reshape(shape)


def _as_slice(places: Int64) -> slice | Int64:
    """A run of places as a slice, which NumPy copies without an index."""
    if len(places) and np.array_equal(places, np.arange(places[0], places[0] + len(places))):
        return slice(int(places[0]), int(places[0]) + len(places))
    return places


def read_jobs(
    source: ChunkSource,
    rows: Int64,
    layers: Sequence[int],
    kinds: Sequence[TokenKind],
    out: npt.NDArray[Any],
) -> list[Callable[[], None]]:
    """Jobs that together fill `out`; each decompresses one inner chunk, none writes where another does.

    Args:
        source: the store.
        rows: row numbers, any order, repeats allowed.
        layers: which layers, in the order wanted.
        kinds: which kinds, in the layout's order.
        out: (rows, layers, tokens, dim), float32 or uint16 for bfloat16 bit patterns.
    """
    jobs: list[Callable[[], None]] = []
    for part in by_chunk(rows, source.manifest.chunk_rows):
        for place, layer in enumerate(layers):
            start = 0
            for kind in kinds:
                stop = start + source.manifest.layout.count(kind)
                jobs.append(partial(source.read, part, ArrayKey(layer, kind), out[:, place, start:stop]))
                start = stop
    return jobs


def read_rows(
    source: ChunkSource, rows: Int64, layers: Sequence[int], kinds: Sequence[TokenKind]
) -> npt.NDArray[np.float32]:
    """Float32 tokens (rows, layers, tokens, dim) of the given rows, in their order; bad rows read as NaN.

    Args:
        source: the store.
        rows: row numbers, any order, repeats allowed.
        layers: which layers, in the order wanted.
        kinds: which kinds, in the layout's order.

    Raises:
        IncompleteStoreError: a row's shard is not finished; raised before anything is allocated.
        CorruptStoreError: see `ChunkSource.read`.
    """
    manifest = source.manifest
    for shard in np.unique(rows // manifest.shard_rows).tolist():
        source.record(shard)
    num_tokens = sum(manifest.layout.count(kind) for kind in kinds)
    out = np.empty((len(rows), len(layers), num_tokens, manifest.dim), np.float32)
    jobs = read_jobs(source, rows, layers, kinds, out)
    num_threads = min(_MAX_THREADS, num_cores(), len(jobs))
    if num_threads < 2:
        for job in jobs:
            job()
        return out
    # Threads of this call alone: nothing outlives it, and a fork never meets a pool whose threads are gone.
    with ThreadPoolExecutor(num_threads, "activault-read") as pool:
        try:
            for done in [pool.submit(job) for job in jobs]:
                done.result()
        finally:
            pool.shutdown(cancel_futures=True)
    return out
