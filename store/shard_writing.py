"""One array's shard on its way to disk: chunk by chunk, with what the record says of it.

Held values (rows, tokens, dim) in; the file, its hash, the row sums and the statistics out, all from one pass
over the values while they are in a core's cache. A thread holds one chunk and its encoded bytes.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import xxhash

from .chunk_index import ABSENT_CHUNK
from .codecs import crc_bytes, fill_of, pack_chunk, store_into, stored_type, to_float32, with_crc
from .manifest import Manifest
from .quantise import Steps
from .records import ArrayFile, ArrayKey, array_file
from .statistics import ChannelStats
from .tally import Tally, row_groups

__all__ = ["Content", "write_shard_file"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Content:
    """What one array's shard holds, checked before anything is written."""

    held: Array
    """(rows, tokens, dim) held values."""
    is_ok: npt.NDArray[np.bool_]
    """(rows,)"""
    absmax: npt.NDArray[np.float64]
    """(dim,) over the ok rows."""
    steps: Steps | None
    """Of int8 codes."""

    def decoded(self, rows: slice, stored: Array) -> npt.NDArray[np.float32]:
        """Some rows as float32; `stored` is the same rows as they stand in the array."""
        if stored.dtype == np.float32:
            return stored
        if self.steps is None:
            return to_float32(self.held[rows])
        return to_float32(self.held[rows], self.steps.scale, self.steps.offset)


class _Hashed:
    """A file that is hashed and measured while it is written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = xxhash.xxh3_128()
        self.size = 0

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self._hash.update(data)
        self.size += len(data)

    @property
    def hash(self) -> str:
        return self._hash.hexdigest()


def write_shard_file(
    file: Path, manifest: Manifest, shard: int, array: ArrayKey, content: Content
) -> tuple[ArrayFile, ChannelStats]:
    """Write one array's shard to `file` and bring its bytes to disk, and not the names of its folders.

    Returns:
        What the record and the statistics say of it.

    Raises:
        OSError: the disk is full, read-only or gone; a part of the file may be there then.
    """
    path = array_file(array.layer, array.kind, shard)
    tally, index = Tally(manifest.dim), list[tuple[int, int]]()
    with file.open("wb") as opened:
        stream = _Hashed(opened)
        for chunk in _chunks(manifest, shard, array, content, tally):
            packed = pack_chunk(chunk, manifest.compression)
            index.append((stream.size, len(packed) + 4))
            stream.write(packed)
            stream.write(crc_bytes(packed))
            del packed
        index += [(ABSENT_CHUNK, ABSENT_CHUNK)] * (manifest.chunks_per_shard - len(index))
        stream.write(with_crc(b"".join(struct.pack("<QQ", *entry) for entry in index)))
        opened.flush()
        os.fsync(opened.fileno())
    record = ArrayFile(path=path, bytes=stream.size, hash=stream.hash, values=tally.row_sum)
    return record, tally.statistics(content.absmax)


def _chunks(
    manifest: Manifest, shard: int, array: ArrayKey, content: Content, tally: Tally
) -> Iterator[Array]:
    """Inner chunks (chunk_rows, tokens, dim) of stored values that hold a row, in order.

    Each is valid until the next one is asked for; its rows have been hashed and summed up.
    """
    shape, dtype = manifest.chunk_shape(array.kind), stored_type(manifest, array.kind)
    size, held, first = manifest.chunk_rows, content.held, manifest.shard_range(shard).start
    scratch: Array | None = None
    for start in range(0, len(held), size):
        stop = min(start + size, len(held))
        if held.dtype == dtype and stop - start == size:
            chunk = held[start:stop]
        else:
            scratch = np.empty(shape, dtype) if scratch is None else scratch
            scratch[stop - start :] = fill_of(dtype)
            chunk = scratch
        for rows in row_groups(start, stop, shape[1] * shape[2]):
            stored = chunk[rows.start - start : rows.stop - start]
            if chunk is scratch:
                store_into(held[rows], stored)
            tally.add(first + rows.start, content.decoded(rows, stored), content.is_ok[rows])
        yield chunk
