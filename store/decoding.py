"""One inner chunk back from its bytes: checked whole, decompressed only as far as it is wanted.

Blosc compresses a chunk in blocks, each for itself, and says where they begin. A chunk of which few rows are
wanted costs the blocks that hold them: for single rows a twentieth of decompressing all of it.

A block of float32 is four streams, of the values' lowest to highest bytes, their bits put in order
(bitshuffle). Of bfloat16 values the two low ones are all zeros, and the two high ones are the block of the
same values as 16-bit patterns: decompressed as such it takes half as long, and nothing has to be narrowed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
Bytes = npt.NDArray[np.uint8]
Int64 = npt.NDArray[np.int64]

_HEADER: Final = struct.Struct("<BBBBIII")
"""Blosc's: versions of format and codec, flags, typesize; decoded bytes, bytes a block, stored bytes."""
_LENGTH: Final = struct.Struct("<I")
_RESIDUE: Final = 0x48674BC7
"""What crc32c gives for any bytes with their own crc32c behind them: it is checked without a copy of them."""
_STORED: Final = 0x02
"""Flag: the values stand there as they are."""
_BITSHUFFLE: Final = 0x04
_NOT_SPLIT: Final = 0x10
"""Flag: the bytes of a block are one stream."""
_MOST_BLOCKS: Final = 0.7
"""Share of the blocks from which on all are decompressed at once."""
_known_zeros: dict[int, bytes] = {}
"""By a block's bytes, its two low streams if they are all zeros: the same few hundred bytes every time."""


def decode_chunk(
    data: bytes, scratch: Array, what: str, compression: Compression = "blosc", rows: Int64 | None = None
) -> Array:
    """The stored values of one inner chunk.

    Args:
        data: the chunk as it stands in its file.
        scratch: (chunk_rows, tokens, dim), contiguous; room for the values, of the stored type, or uint16 for
            the bit patterns of bfloat16 values, which are stored as float32.
        what: what to call the chunk in an error.
        compression: the manifest's.
        rows: rows within the chunk that are wanted; None is all. Any other row may come back as anything.

    Returns:
        (chunk_rows, tokens, dim): `scratch`, or a read-only view of `data` where nothing has to be done.

    Raises:
        CorruptStoreError: the checksum disagrees, the chunk says that it holds another number of bytes, or
            values are more precise than bfloat16 that should not be.
    """
    if len(data) < 4 or crc32c(data) != _RESIDUE:
        raise CorruptStoreError(f"{what} is not what was written (crc32c disagrees)")
    payload = memoryview(data)[:-4]
    num_bytes = scratch.size * (4 if scratch.dtype == np.uint16 else scratch.itemsize)
    if compression == "none":
        if len(payload) != num_bytes:
            raise CorruptStoreError(f"{what} must hold {num_bytes} bytes of values; it holds {len(payload)}")
        if scratch.dtype != np.uint16:
            return np.frombuffer(payload, scratch.dtype).reshape(scratch.shape)
    # The header is believed by blosc itself: its sizes are checked before anything is allocated from them.
    header = _HEADER.unpack_from(payload) if len(payload) >= _HEADER.size else (0,) * 7
    if compression == "blosc" and (header[4] != num_bytes or header[6] != len(payload)):
        raise CorruptStoreError(f"{what} must hold {num_bytes} bytes of values; its header says otherwise")
    try:
        if compression == "none":
            _narrow(np.frombuffer(payload, np.float32), scratch.reshape(-1))
        else:
            _decompress(_Frame.of(payload, header), payload, scratch, rows)
    except RuntimeError as exc:
        raise CorruptStoreError(f"{what} cannot be decompressed") from exc
    except _NotBfloat16 as exc:
        raise CorruptStoreError(f"{what} must hold bfloat16 values; some have more bits") from exc
    return scratch


class _NotBfloat16(Exception):  # noqa: N818  it never leaves this file
    pass


def _decompress(frame: _Frame | None, payload: memoryview, scratch: Array, rows: Int64 | None) -> None:
    if scratch.dtype == np.uint16:
        if frame is None:
            whole = np.empty(scratch.shape, np.float32)
            blosc.decompress(payload, whole)
            _narrow(whole, scratch.reshape(-1))
            return
        for block in frame.wanted(rows, len(scratch)) or range(frame.num_blocks):
            _upper_half(frame, block, scratch.reshape(-1))
        return
    blocks = frame.wanted(rows, len(scratch)) if frame is not None else ()
    if frame is None or not blocks:
        blosc.decompress(payload, scratch)
        return
    into = scratch.reshape(-1).view(np.uint8)
    for block in blocks:
        blosc.decompress(frame.alone(block), into[block * frame.size : (block + 1) * frame.size])


@dataclass(frozen=True)
class _Frame:
    """A compressed chunk whose blocks stand in it in their order."""

    payload: memoryview
    header: tuple[int, ...]
    bounds: Sequence[int]
    """Where each block begins, and the last one ends."""

    @staticmethod
    def of(payload: memoryview, header: tuple[int, ...]) -> _Frame | None:
        """None if nothing is compressed, or blocks stand in another order (of a compressor with threads)."""
        _, _, flags, _, decoded, size, stored = header
        if flags & _STORED or not 0 < size <= decoded:
            return None
        num_blocks = -(-decoded // size)
        first = _HEADER.size + 4 * num_blocks
        if first > stored:
            return None
        bounds = np.append(np.frombuffer(payload, "<u4", num_blocks, _HEADER.size).astype(np.int64), stored)
        if bounds[0] != first or (np.diff(bounds) <= 0).any():
            return None
        return _Frame(payload, header, bounds.tolist())

    @property
    def size(self) -> int:
        """Decoded bytes of a block; the last may have fewer."""
        return self.header[5]

    @property
    def num_blocks(self) -> int:
        return len(self.bounds) - 1

    def length(self, block: int) -> int:
        """Decoded bytes of one block."""
        return min(self.size, self.header[4] - block * self.size)

    def wanted(self, rows: Int64 | None, num_rows: int) -> Sequence[int]:
        """Blocks that hold the given rows out of `num_rows`; none if all of them may as well be taken."""
        if rows is None:
            return ()
        row_bytes = self.header[4] // num_rows
        first, last = rows * row_bytes // self.size, ((rows + 1) * row_bytes - 1) // self.size
        steps = range(int((last - first).max()) + 1) if len(rows) else ()
        blocks = np.unique(np.concatenate([np.minimum(first + step, last) for step in steps]))
        return blocks.tolist() if len(blocks) <= _MOST_BLOCKS * self.num_blocks else ()

    def alone(self, block: int) -> bytes:
        """One block as a chunk of its own."""
        version, codec, flags, typesize, *_ = self.header
        length = self.length(block)
        if length < self.size:
            flags |= _NOT_SPLIT  # blosc never splits a last block that is shorter
        return _chunk((version, codec, flags, typesize), length, self._bytes(block))

    def upper_half(self, block: int) -> tuple[bytes, bytes] | None:
        """The low streams of a block of float32, and its high ones as a chunk of 16-bit values.

        None for a block that is not of four streams.
        """
        version, codec, flags, typesize, *_ = self.header
        length = self.length(block)
        if (
            flags & _NOT_SPLIT
            or not flags & _BITSHUFFLE
            or typesize != 4
            or length < self.size
            or length % 32
        ):
            return None
        encoded = self._bytes(block)
        ends = list(_ends_of_streams(encoded))
        if len(ends) != 4 or ends[3] != len(encoded):
            return None
        low, high = encoded[: ends[1]], encoded[ends[1] :]
        return bytes(low), _chunk((version, codec, flags, 2), length // 2, high)

    def low_half(self, low: bytes, block: int) -> bytes:
        """The low streams as a chunk of 16-bit values."""
        version, codec, flags, *_ = self.header
        return _chunk((version, codec, flags, 2), self.length(block) // 2, memoryview(low))

    def _bytes(self, block: int) -> memoryview:
        return self.payload[self.bounds[block] : self.bounds[block + 1]]


def _chunk(kind: tuple[int, int, int, int], length: int, encoded: memoryview) -> bytes:
    """A chunk of one block."""
    start = _HEADER.size + _LENGTH.size
    front = _HEADER.pack(*kind, length, length, start + len(encoded))
    return b"".join((front, _LENGTH.pack(start), encoded))


def _ends_of_streams(encoded: memoryview) -> Iterator[int]:
    """Where each stream of a split block ends; stops before one that leaves the block."""
    end = 0
    while end + _LENGTH.size <= len(encoded):
        end += _LENGTH.size + _LENGTH.unpack_from(encoded, end)[0]
        if end > len(encoded):
            return
        yield end


def _upper_half(frame: _Frame, block: int, bits: npt.NDArray[np.uint16]) -> None:
    """One block of bfloat16 values, stored as float32, as bit patterns to its place."""
    place = bits[block * frame.size // 4 : (block + 1) * frame.size // 4]
    halves = frame.upper_half(block)
    if halves is None:
        values = np.empty(len(place), np.float32)
        blosc.decompress(frame.alone(block), values)
        _narrow(values, place)
        return
    low, high = halves
    if _known_zeros.get(frame.size) != low:
        zeros = np.empty(len(place), np.uint16)
        blosc.decompress(frame.low_half(low, block), zeros)
        if zeros.any():
            raise _NotBfloat16
        _known_zeros[frame.size] = low
    blosc.decompress(high, place)


def _narrow(values: npt.NDArray[np.float32], bits: npt.NDArray[np.uint16]) -> None:
    halves = values.reshape(-1).view(np.uint16)
    if halves[0::2].any():
        raise _NotBfloat16
    bits[...] = halves[1::2]
