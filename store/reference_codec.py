"""Chunks of a reference-layout array, from their bytes to values.

A `compressor` of a `.zarray` and a chunk's shape in, checked before anything is planned; then the bytes of a
chunk's file in and float32 out, or `DamagedChunk`. Only codecs that cannot run code are accepted: numcodecs
would as well unpickle what a `.zarray` asks it to.
"""

from __future__ import annotations

import lzma
import math
import struct
import zlib
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

__all__ = ["CODECS", "ChunkCodec", "DamagedChunk", "UnusableCodec", "make_codec"]

CODECS: Final = ("blosc", "bz2", "gzip", "lz4", "lzma", "zlib", "zstd")
_REFUSALS: Final = (
    TypeError, ValueError, LookupError, AttributeError, OverflowError, MemoryError, RuntimeError, OSError,
    zlib.error, lzma.LZMAError,
)  # fmt: skip
"""What numcodecs raises for options that are none: it hands them on to the compressors unchecked."""
_DAMAGED: Final = (RuntimeError, ValueError, EOFError, OSError, zlib.error, lzma.LZMAError)
"""What it raises for bytes that are none of a compressor's; of gzip and bz2 `OSError`, with sound disks."""
_SPARE: Final = 64 << 10
"""Bytes that a compressor may add to what it cannot compress, beside an eighth of it."""
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"


class DamagedChunk(Exception):  # noqa: N818  it becomes the reason of bad rows
    """The bytes are not those of a chunk; the text says why."""


class UnusableCodec(Exception):  # noqa: N818  it becomes a NotAStoreError that names the file
    """The compressor is none that is accepted, or has options that it cannot have; the text says why."""


@dataclass(frozen=True)
class ChunkCodec:
    """Decodes chunks of one array; made by `make_codec`. Used by several threads at once."""

    shape: tuple[int, ...]
    compressor: Any
    """A codec of numcodecs, or None."""
    name: str | None
    """Its id."""

    @property
    def num_bytes(self) -> int:
        """Bytes of a chunk, decoded."""
        return 4 * math.prod(self.shape)

    @property
    def most_bytes(self) -> int:
        """Bytes that the file of a chunk has at most."""
        return self.num_bytes if self.compressor is None else self.num_bytes * 9 // 8 + _SPARE

    def decode(self, data: bytes) -> npt.NDArray[np.float32]:
        """Values of a whole chunk, float32 of `shape`; they may be a read-only view of `data`.

        Raises:
            DamagedChunk: it cannot be decoded, or to another number of bytes than a chunk has.
        """
        self._refuse_claims(data)
        try:
            decoded = memoryview(data if self.compressor is None else self.compressor.decode(data)).cast("B")
        except _DAMAGED as exc:
            raise DamagedChunk(str(exc)[:100]) from exc
        if decoded.nbytes != self.num_bytes:
            raise DamagedChunk(f"it must hold {self.num_bytes} bytes of values; it holds {decoded.nbytes}")
        return np.frombuffer(decoded, "<f4").reshape(self.shape).astype(np.float32, copy=False)

    def _refuse_claims(self, data: bytes) -> None:
        """Compressors believe what a header says, allocate as much, and blosc reads as far."""
        claimed = _claimed_bytes(self.name, data)
        if claimed not in (None, self.num_bytes):
            raise DamagedChunk(f"it must hold {self.num_bytes} bytes of values; its header says {claimed}")
        if self.name == "blosc" and struct.unpack_from("<I", data, 12)[0] != len(data):
            raise DamagedChunk("its header says another length than the file has")


def _claimed_bytes(name: str | None, data: bytes) -> int | None:
    """How many bytes a compressor's header says that there are; None where it does not say."""
    if name == "blosc":
        return int(struct.unpack_from("<I", data, 4)[0]) if len(data) >= 16 else 0
    if name == "lz4":
        return int(struct.unpack_from("<I", data)[0]) if len(data) >= 4 else 0
    if name != "zstd" or not data.startswith(_ZSTD_MAGIC) or len(data) < 18:
        return None
    # RFC 8878, 3.1.1.1: flags; the window's size, unless it is a single segment; a dictionary's id; the size.
    flags = data[4]
    single, width = flags >> 5 & 1, flags >> 6
    start = 5 + (not single) + (0, 1, 2, 4)[flags & 3]
    if width == 0 and not single:
        return None
    claimed = int.from_bytes(data[start : start + (1 << width)], "little")
    return claimed + 256 if width == 1 else claimed


def make_codec(config: Any, shape: tuple[int, ...]) -> ChunkCodec:
    """What decodes the chunks of an array, tried on a few values.

    Args:
        config: the `compressor` of its `.zarray`.
        shape: of a chunk.

    Raises:
        UnusableCodec: there is no such compressor, or not with these options.
    """
    if config is None:
        return ChunkCodec(shape, None, None)
    name = config.get("id") if isinstance(config, dict) else None
    if name not in CODECS:
        raise UnusableCodec(f"null or one of {', '.join(CODECS)}")
    import numcodecs

    sample = np.arange(256, dtype=np.float32)
    try:
        compressor = numcodecs.get_codec(dict(config))
        back = bytes(compressor.decode(bytes(compressor.encode(sample))))
    except _REFUSALS as exc:
        raise UnusableCodec(f"one with the options of {name} ({str(exc)[:100]})") from exc
    if back != sample.tobytes():
        raise UnusableCodec(f"one with options by which {name} gives back what it was given")
    return ChunkCodec(shape, compressor, name)
