"""The work of a read: every inner chunk that is needed is read and checked once, on threads.

Row numbers in; values (rows, layers, tokens of the kind, dim) of one array a kind out, converted to what that
array holds (see `conversion.py`). A loader's pool takes them as a shard buffer holds them, in few bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from operator import itemgetter
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .cached import forget_recorded
from .chunk_index import MAX_REQUEST_BYTES, IndexCache
from .codecs import FILL_CODE, fill_of, held_type
from .conversion import convert_rows
from .cores import num_cores
from .errors import CorruptStoreError, StorageError
from .layout import TokenKind
from .manifest import Manifest
from .quantise import Steps
from .records import ArrayFile, ArrayKey, arrays_of, extract_again
from .recycling import Recycler, ThreadSpace
from .root import refuse_grown
from .selection import ChunkRows, by_chunk
from .shard_files import ShardFile
from .storage import NUM_REQUESTS, Storage

__all__ = ["ChunkSource", "by_kind", "num_ahead", "read_jobs", "read_rows"]

Int64 = npt.NDArray[np.int64]
_MAX_THREADS: Final = 16
_MAX_AHEAD: Final = 8
_REMOTE_BYTES: Final = 512 << 20
"""What the threads of one read from afar may hold together."""
_JOB_BYTES: Final = 1 << 20
"""Values of a job on this machine, if it is for several chunks: cores want many jobs."""
_KEPT_BYTES: Final = 256 << 20
"""Largest result whose memory is kept for the next ones; two are."""
_space = ThreadSpace(Recycler(2 * min(_MAX_THREADS, num_cores()), 32 << 20))


@dataclass(frozen=True)
class ChunkSource:
    """What reading a chunk needs to know of a store; shared by all threads."""

    storage: Storage
    manifest: Manifest
    files: Callable[[int], Sequence[ArrayFile]]
    """Array files of a finished shard, by layer, then kind; raises for any other."""
    is_ok: npt.NDArray[np.bool_]
    """(num_rows,) whether a row is finished and ok."""

    indices: IndexCache = field(default_factory=IndexCache)
    """Indices of the shard files that were read."""
    memory: Recycler = field(default_factory=lambda: Recycler(2, _KEPT_BYTES))
    """For results of reads, whose first touch takes as long as half of the decompressing."""

    @cached_property
    def _steps(self) -> Mapping[int, Steps]:
        found = zip(self.manifest.layers, self.manifest.quantisation or (), strict=False)
        return {layer: Steps.of(quantisation) for layer, quantisation in found}

    @cached_property
    def _places(self) -> Mapping[ArrayKey, int]:
        return {array: place for place, array in enumerate(arrays_of(self.manifest))}

    def steps(self, layer: int, kind: TokenKind) -> Steps | None:
        """What decodes one array's codes; None where it holds none."""
        return self._steps[layer] if self.manifest.stored_dtype(kind) == "int8" else None

    def read_parts(self, parts: Sequence[ChunkRows], array: ArrayKey, out: npt.NDArray[Any]) -> None:
        """Decode some chunks of one shard of one array; their wanted rows go to `out[part.places]`.

        Rows that are not ok become the fill value, whatever the chunks hold for them.

        Args:
            parts: the chunks and the rows.
            array: which array.
            out: (rows, tokens of the kind, dim) of a type that `convert_rows` knows.

        Raises:
            CorruptStoreError: the file or a chunk is missing or altered, or an ok row reads as fill; the
                message names rows, shard, file and remedy.
            StoreMismatchError: so it is because something was added to the store since it was opened.
            StorageError: the file cannot be read.
            PrecisionError: a value is beyond what `out` can hold.
        """
        shard = parts[0].chunk // self.manifest.chunks_per_shard
        record = self.files(shard)[self._places[array]]
        try:
            self._read_parts(parts, array, record, out)
        except CorruptStoreError:
            # What came over a network wrong once would come out of a cache so for ever.
            if not forget_recorded(self.storage, record):
                raise
            self._read_parts(parts, array, record, out)

    def _read_parts(
        self, parts: Sequence[ChunkRows], array: ArrayKey, file_record: ArrayFile, out: npt.NDArray[Any]
    ) -> None:
        manifest = self.manifest
        shard = parts[0].chunk // manifest.chunks_per_shard
        by_chunk = {part.chunk - shard * manifest.chunks_per_shard: part for part in parts}
        # bfloat16 values, float32 in the file, come as bit patterns: the form that they are held in.
        scratch = _space.decoded(manifest.chunk_shape(array.kind), held_type(manifest, array.kind))
        steps = self.steps(array.layer, array.kind)
        concerned = parts
        try:
            with ShardFile(self.storage, manifest, file_record, array.kind, self.indices) as file:
                for chunk, data in file.encoded(by_chunk, _space.encoded):
                    part = by_chunk[chunk]
                    concerned = [part]
                    values = file.decode(chunk, data, scratch, part.local)
                    part = self._cleared(part, out)
                    if len(part.local):
                        self._refuse_fill(part, array, values)
                        convert_rows(values, part.local, out, part.places, steps)
                    concerned = parts
        except CorruptStoreError as exc:
            refuse_grown(self.storage, self.manifest)
            raise CorruptStoreError(f"{self._spoken(concerned)}: {exc}; {extract_again(shard)}") from exc
        except StorageError as exc:
            raise type(exc)(f"{self._spoken(concerned)}: {exc}") from exc

    def _spoken(self, parts: Sequence[ChunkRows]) -> str:
        manifest = self.manifest
        first = parts[0].chunk * manifest.chunk_rows
        last = min((parts[-1].chunk + 1) * manifest.chunk_rows, manifest.num_rows) - 1
        return f"rows {first} to {last} (shard {first // manifest.shard_rows})"

    def _cleared(self, part: ChunkRows, out: npt.NDArray[Any]) -> ChunkRows:
        """The rows of a chunk that are ok; the others become the fill value, whatever the chunk holds."""
        is_ok = self.is_ok[part.local + part.chunk * self.manifest.chunk_rows]
        if is_ok.all():
            return part
        out[part.places[~is_ok]] = fill_of(out.dtype)
        return ChunkRows(part.chunk, part.local[is_ok], part.places[is_ok])

    def _refuse_fill(self, part: ChunkRows, array: ArrayKey, values: npt.NDArray[Any]) -> None:
        # A row that is ok holds no fill value at all, so its first one is enough to tell it from fill.
        rows = part.local + part.chunk * self.manifest.chunk_rows
        is_fill = _is_fill(values[part.local, 0, 0])
        if is_fill.any():
            raise CorruptStoreError(
                f"row {rows[is_fill][0]} is ok by its record, but reads as fill in layer {array.layer}, "
                f"{array.kind}"
            )


def _is_fill(held: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Where held values are the fill value or any other NaN."""
    if held.dtype == np.uint16:
        return np.asarray((held & 0x7FFF) > 0x7F80)
    return np.asarray(held == FILL_CODE if held.dtype == np.int8 else np.isnan(held))


def read_jobs(
    source: ChunkSource, rows: Int64, layers: Sequence[int], outs: Mapping[TokenKind, npt.NDArray[Any]]
) -> list[Callable[[], None]]:
    """Jobs that together fill `outs`; no inner chunk is read twice, none writes where another does.

    On this machine a job is one inner chunk, or some small ones. Elsewhere it is as many of one shard as a
    request may bring.

    Args:
        source: the store.
        rows: row numbers, any order, repeats allowed.
        layers: which layers, in the order wanted.
        outs: for each kind that is wanted (rows, layers, tokens of the kind, dim); see `convert_rows`.
    """
    parts = list(by_chunk(rows, source.manifest.chunk_rows))
    jobs: list[tuple[int, Callable[[], None]]] = []
    for kind, out in outs.items():
        for first, group in _groups(source, parts, kind):
            for place, layer in enumerate(layers):
                array, into = ArrayKey(layer, kind), out[:, place]
                jobs.append((first, partial(source.read_parts, group, array, into)))
    # All that the first rows wait for comes first.
    return [job for _, job in sorted(jobs, key=itemgetter(0))]


def by_kind(
    tokens: npt.NDArray[Any], manifest: Manifest, kinds: Sequence[TokenKind]
) -> dict[TokenKind, npt.NDArray[Any]]:
    """Each kind's part of (rows, layers, tokens, dim), whose tokens stand in the layout's order."""
    parts: dict[TokenKind, npt.NDArray[Any]] = {}
    start = 0
    for kind in kinds:
        stop = start + manifest.layout.count(kind)
        parts[kind] = tokens[:, :, start:stop]
        start = stop
    return parts


def _groups(
    source: ChunkSource, parts: Sequence[ChunkRows], kind: TokenKind
) -> Iterator[tuple[int, Sequence[ChunkRows]]]:
    """`(place of its first in parts, chunks that one job reads)`."""
    manifest = source.manifest
    chunk_bytes = 4 * math.prod(manifest.chunk_shape(kind))
    # Elsewhere a job of several chunks saves round trips, whose answers are a half or less of the values;
    # here it saves opening the file for each, which takes as long as decoding 100 KB.
    most_bytes = _JOB_BYTES if source.storage.folder is not None else 2 * MAX_REQUEST_BYTES
    most = max(1, most_bytes // chunk_bytes)
    first = 0
    for place in range(1, len(parts) + 1):
        shard = parts[first].chunk // manifest.chunks_per_shard
        if (
            place == len(parts)
            or place - first == most
            or parts[place].chunk // manifest.chunks_per_shard != shard
        ):
            yield first, parts[first:place]
            first = place


def num_ahead(source: ChunkSource, kinds: Sequence[TokenKind]) -> int:
    """Threads that are worth reading ahead with, beside work of the caller's own.

    On this machine two more than cores: with two cores a cold epoch came 1.2 to 1.5 times as fast as with two
    threads, which left the disk alone while both decompressed; a warm one as fast.
    """
    if source.storage.folder is not None:
        return min(_MAX_AHEAD, num_cores()) + 2
    return _num_readers(source, kinds)


def _num_readers(source: ChunkSource, kinds: Sequence[TokenKind]) -> int:
    """Threads that are worth reading with: the cores; far more where threads wait for answers."""
    if source.storage.folder is not None:
        return min(_MAX_THREADS, num_cores())
    largest = max(4 * math.prod(source.manifest.chunk_shape(kind)) for kind in kinds)
    # A thread holds one decoded chunk and one answer.
    room = _REMOTE_BYTES // (largest + max(MAX_REQUEST_BYTES, largest // 2))
    return min(NUM_REQUESTS, max(num_cores(), room))


def read_rows(
    source: ChunkSource,
    rows: Int64,
    layers: Sequence[int],
    kinds: Sequence[TokenKind],
    dtype: np.dtype[Any],
) -> npt.NDArray[Any]:
    """Tokens (rows, layers, tokens, dim) of the given rows, in their order; bad rows read as NaN.

    Args:
        source: the store.
        rows: row numbers, any order, repeats allowed.
        layers: which layers, in the order wanted.
        kinds: which kinds, in the layout's order.
        dtype: of the result; uint16 is bfloat16 as bit patterns.

    Raises:
        IncompleteStoreError: a row's shard is not finished; raised before anything is allocated.
        CorruptStoreError: see `ChunkSource.read_parts`.
    """
    manifest = source.manifest
    for shard in np.unique(rows // manifest.shard_rows).tolist():
        source.files(shard)
    num_tokens = sum(manifest.layout.count(kind) for kind in kinds)
    out = source.memory.array((len(rows), len(layers), num_tokens, manifest.dim), dtype)
    jobs = read_jobs(source, rows, layers, by_kind(out, manifest, kinds))
    num_threads = min(_num_readers(source, kinds), len(jobs))
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
