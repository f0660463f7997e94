"""One inner chunk back from its bytes: checked whole, decompressed only as far as it is wanted.

Blosc compresses a chunk in blocks, each for itself, and says where they begin. A chunk of which few rows are
wanted costs the blocks that hold them: for single rows a twentieth of decompressing all of it.

A block of float32 is four streams, of the values' lowest to highest bytes, their bits put in order
(bitshuffle). Of bfloat16 values the two low ones are all zeros, and the two high ones are the block of the
same values as 16-bit patterns: decompressed as such it takes half as long, and nothing has to be narrowed.

Both are told to Blosc by other numbers in the chunk's own header and table of blocks, written over the old
ones: nothing is copied.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
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
    data: bytes | Bytes,
    scratch: Array,
    what: str,
    compression: Compression = "blosc",
    rows: Int64 | None = None,
) -> Array:
    """The stored values of one inner chunk.

    Args:
        data: the chunk as it stands in its file; what can be written to is written over.
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
    payload = (memoryview(data) if isinstance(data, bytes) else data.data)[:-4]
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
    blocks = frame.wanted(rows, len(scratch)) if frame is not None else ()
    if scratch.dtype == np.uint16:
        if frame is None:
            whole = np.empty(scratch.shape, np.float32)
            blosc.decompress(payload, whole)
            _narrow(whole, scratch.reshape(-1))
            return
        _upper_halves(frame.private(), blocks or range(frame.num_blocks), scratch.reshape(-1))
        return
    if frame is None or not blocks:
        blosc.decompress(payload, scratch)
        return
    frame, into = frame.private(), scratch.reshape(-1).view(np.uint8)
    for block in blocks:
        frame.decompress(block, into[block * frame.size : (block + 1) * frame.size])


@dataclass(frozen=True)
class _Frame:
    """A compressed chunk whose blocks stand in it in their order.

    Its header and its table of blocks are written anew for each call of Blosc, which is told the length of
    the whole and checks what it follows against that.
    """

    payload: memoryview
    """The chunk."""
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
        bounds = (*struct.unpack_from(f"<{num_blocks}I", payload, _HEADER.size), stored)
        if bounds[0] != first or any(start >= stop for start, stop in pairwise(bounds)):
            return None
        return _Frame(payload, header, bounds)

    def private(self) -> _Frame:
        """The same, in bytes that may be written to."""
        if not self.payload.readonly:
            return self
        return replace(self, payload=memoryview(bytearray(self.payload)))

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
        if rows is None or self.num_blocks == 1:
            return ()
        row_bytes = self.header[4] // num_rows
        first, last = rows * row_bytes // self.size, ((rows + 1) * row_bytes - 1) // self.size
        steps = range(int((last - first).max()) + 1) if len(rows) else ()
        blocks = np.unique(np.concatenate([np.minimum(first + step, last) for step in steps]))
        return blocks.tolist() if len(blocks) <= _MOST_BLOCKS * self.num_blocks else ()

    def decompress(self, block: int, into: Array) -> None:
        """One block, as a chunk of its own."""
        flags, typesize, length = self.header[2], self.header[3], self.length(block)
        if length < self.size:
            flags |= _NOT_SPLIT  # blosc never splits a last block that is shorter
        self._run(flags, typesize, length, [self.bounds[block]], into)

    def decompress_halves(self, starts: Sequence[int], into: Array) -> None:
        """Two streams each of some whole blocks, which begin at `starts`, as 16-bit values in a row."""
        self._run(self.header[2], 2, self.size // 2, starts, into)

    def _run(self, flags: int, typesize: int, size: int, starts: Sequence[int], into: Array) -> None:
        version, codec, *_, stored = self.header
        num_bytes = size * len(starts)
        assert into.nbytes == num_bytes
        _HEADER.pack_into(self.payload, 0, version, codec, flags, typesize, num_bytes, size, stored)
        struct.pack_into(f"<{len(starts)}I", self.payload, _HEADER.size, *starts)
        blosc.decompress(self.payload, into)

    def high_streams(self, block: int) -> int | None:
        """Where the two high streams of a block of float32 begin, the low ones being zeros.

        None for a block that is not of four streams.

        Raises:
            _NotBfloat16: the low ones are not.
        """
        _, _, flags, typesize, *_ = self.header
        if flags & _NOT_SPLIT or not flags & _BITSHUFFLE or typesize != 4 or self.size % 32:
            return None
        start, stop = self.bounds[block : block + 2]
        ends = list(_ends_of_streams(self.payload, start, stop))
        if self.length(block) < self.size or len(ends) != 4 or ends[3] != stop:
            return None
        low = bytes(self.payload[start : ends[1]])
        if _known_zeros.get(self.size) != low:
            zeros = np.empty(self.size // 4, np.uint16)
            self.decompress_halves([start], zeros)
            if zeros.any():
                raise _NotBfloat16
            _known_zeros[self.size] = low
        return ends[1]


def _ends_of_streams(payload: memoryview, start: int, stop: int) -> Iterator[int]:
    """Where each stream of a split block ends; stops before one that leaves the block."""
    end = start
    while end + _LENGTH.size <= stop:
        end += _LENGTH.size + _LENGTH.unpack_from(payload, end)[0]
        if end > stop:
            return
        yield end


def _upper_halves(frame: _Frame, blocks: Sequence[int], bits: npt.NDArray[np.uint16]) -> None:
    """Blocks of bfloat16 values, stored as float32, as bit patterns to their places."""
    values = frame.size // 4
    starts = [frame.high_streams(block) for block in blocks]
    # Blocks in a row are decompressed by one call.
    for (_, in_streams), run in groupby(
        enumerate(blocks), lambda entry: (entry[1] - entry[0], starts[entry[0]] is not None)
    ):
        places = [place for place, _ in run]
        first, last = blocks[places[0]], blocks[places[-1]]
        if in_streams:
            found = [start for start in starts[places[0] : places[-1] + 1] if start is not None]
            frame.decompress_halves(found, bits[first * values : (last + 1) * values])
            continue
        for block in range(first, last + 1):
            whole = np.empty(frame.length(block) // 4, np.float32)
            frame.decompress(block, whole.view(np.uint8))
            _narrow(whole, bits[block * values : (block + 1) * values])


def _narrow(values: npt.NDArray[np.float32], bits: npt.NDArray[np.uint16]) -> None:
    halves = values.reshape(-1).view(np.uint16)
    if halves[0::2].any():
        raise _NotBfloat16
    bits[...] = halves[1::2]
