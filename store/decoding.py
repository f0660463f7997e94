"""One inner chunk back from its bytes: checked whole, decompressed only where its rows are wanted.

Blosc compresses a chunk in blocks, each for itself, and says where they begin. A chunk of which few rows are
wanted costs the blocks that hold them: for single rows a twentieth of decompressing all of it.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from .codecs import crc32c
from .deferred import Deferred
from .errors import CorruptStoreError
from .manifest import Compression

if TYPE_CHECKING:
    from . import blosc
else:
    blosc = Deferred("activault.store.blosc")

__all__ = ["decode_chunk"]

Array = npt.NDArray[Any]
Int64 = npt.NDArray[np.int64]

_HEADER: Final = struct.Struct("<BBBBIII")
"""Blosc's: versions of format and codec, flags, typesize; decoded bytes, bytes a block, stored bytes."""
_RESIDUE: Final = 0x48674BC7
"""What crc32c gives for any bytes with their own crc32c behind them: it is checked without a copy of them."""
_STORED: Final = 0x02
"""Flag: the values stand there as they are."""
_NOT_SPLIT: Final = 0x10
"""Flag: the bytes of a block are one stream."""
_MOST_BLOCKS: Final = 0.7
"""Share of the blocks from which on all are decompressed at once."""


def decode_chunk(
    data: bytes, scratch: Array, what: str, compression: Compression = "blosc", rows: Int64 | None = None
) -> Array:
    """The stored values of one inner chunk.

    Args:
        data: the chunk as it stands in its file.
        scratch: (chunk_rows, tokens, dim) of the stored type, contiguous; room for the values.
        what: what to call the chunk in an error.
        compression: the manifest's.
        rows: rows within the chunk that are wanted; None is all. Any other row may come back as anything.

    Returns:
        (chunk_rows, tokens, dim): `scratch`, or a read-only view of `data` where nothing is compressed.

    Raises:
        CorruptStoreError: the checksum disagrees, or the chunk says that it holds another number of bytes.
    """
    if len(data) < 4 or crc32c(data) != _RESIDUE:
        raise CorruptStoreError(f"{what} is not what was written (crc32c disagrees)")
    payload = memoryview(data)[:-4]
    if compression == "none":
        if len(payload) != scratch.nbytes:
            raise CorruptStoreError(
                f"{what} must hold {scratch.nbytes} bytes of values; it holds {len(payload)}"
            )
        return np.frombuffer(payload, scratch.dtype).reshape(scratch.shape)
    # The header is believed by blosc itself: its sizes are checked before anything is allocated from them.
    if len(payload) >= _HEADER.size:
        header = _HEADER.unpack_from(payload)
        if header[4] == scratch.nbytes and header[6] == len(payload):
            try:
                if rows is None or not _decode_blocks(payload, header, scratch, rows):
                    blosc.decompress(payload, scratch)
            except RuntimeError as exc:
                raise CorruptStoreError(f"{what} cannot be decompressed") from exc
            return scratch
    raise CorruptStoreError(f"{what} must hold {scratch.nbytes} bytes of values; its header says otherwise")


def _decode_blocks(payload: memoryview, header: tuple[int, ...], scratch: Array, rows: Int64) -> bool:
    """Decompress the blocks that hold the rows, each to its place; False if all of them may as well be."""
    version, codec, flags, typesize, decoded, size, stored = header
    if flags & _STORED or not 0 < size < decoded:
        return False
    num_blocks = -(-decoded // size)
    row_bytes = decoded // len(scratch)
    first, last = rows * row_bytes // size, ((rows + 1) * row_bytes - 1) // size
    wanted = np.unique(np.concatenate([first + step for step in range(int((last - first).max()) + 1)]))
    wanted = wanted[wanted < num_blocks]
    if len(wanted) > _MOST_BLOCKS * num_blocks or _HEADER.size + 4 * num_blocks > stored:
        return False
    starts = np.frombuffer(payload, "<u4", num_blocks, _HEADER.size).astype(np.int64)
    bounds = np.append(starts, stored)
    # A compressor with threads of its own may put blocks in another order; then where one ends is not known.
    if bounds[0] != _HEADER.size + 4 * num_blocks or (np.diff(bounds) <= 0).any():
        return False
    into = scratch.reshape(-1).view(np.uint8)
    for block in wanted.tolist():
        start, stop = int(bounds[block]), int(bounds[block + 1])
        place = into[block * size : (block + 1) * size]
        # A block alone is a chunk of one block; a last one that is shorter is never split by blosc.
        kind = flags | _NOT_SPLIT if len(place) < size else flags
        front = _HEADER.pack(version, codec, kind, typesize, len(place), len(place), 20 + stop - start)
        blosc.decompress(b"".join((front, b"\x14\0\0\0", payload[start:stop])), place)
    return True
