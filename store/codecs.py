"""How values become bytes: bfloat16 rounding, the arrays' metadata, and one inner chunk back again.

Values go in as float32 and are kept as bfloat16 bit patterns (uint16) or float32; a chunk of an array's file
comes out as float32 (chunk_rows, tokens, dim). zarr-python writes the files; reading needs no zarr at all.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import google_crc32c
import numpy as np
import numpy.typing as npt
from numcodecs import blosc

from .errors import CorruptStoreError
from .layout import TokenKind
from .manifest import Manifest

__all__ = [
    "FILL_BITS",
    "array_metadata",
    "buffer_dtype",
    "crc32c",
    "decode_chunk",
    "group_metadata",
    "non_finite",
    "round_to_bfloat16",
    "to_float32",
]

Float32 = npt.NDArray[np.float32]
UInt16 = npt.NDArray[np.uint16]

FILL_BITS: Final = 0x7FC0
"""NaN in bfloat16; followed by 16 zero bits it is Zarr's own NaN in float32."""
_CAST_VALUES = 1 << 16
"""Values rounded at a time: 256 KiB of float32, so that the passes stay in a core's own cache."""
_BLOSC_HEADER = 16


def buffer_dtype(manifest: Manifest) -> np.dtype[Any]:
    """What a shard buffer holds a value in: 16-bit patterns for bfloat16, float32 as it is."""
    return np.dtype(np.uint16 if manifest.dtype == "bfloat16" else np.float32)


def round_to_bfloat16(values: Float32) -> UInt16:
    """Bit patterns of float32 values rounded to bfloat16, to nearest, ties to even; every NaN becomes 0x7FC0.

    Values beyond bfloat16's range become infinite, which `StoreWriter.publish` refuses.
    """
    flat = np.ascontiguousarray(values, dtype=np.float32).reshape(-1).view(np.uint32)
    bits = np.empty(flat.shape, np.uint16)
    for start in range(0, flat.size, _CAST_VALUES):
        block = flat[start : start + _CAST_VALUES]
        rounded = (block >> 16) & 1
        rounded += 0x7FFF
        rounded += block
        rounded >>= 16
        rounded[(block & 0x7FFFFFFF) > 0x7F800000] = FILL_BITS
        bits[start : start + _CAST_VALUES] = rounded
    return bits.reshape(values.shape)


def to_float32(held: npt.NDArray[Any]) -> Float32:
    """Values as a buffer holds them (bfloat16 bit patterns or float32), as a new float32 array."""
    if held.dtype == np.float32:
        return held.copy()
    wide = held.astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)


def non_finite(held: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Where held values are NaN or infinite."""
    wrong = ~np.isfinite(held) if held.dtype == np.float32 else (held & 0x7F80) == 0x7F80
    return np.asarray(wrong, dtype=np.bool_)


def group_metadata(attributes: dict[str, Any]) -> dict[str, Any]:
    """A group's `zarr.json`."""
    return {"zarr_format": 3, "node_type": "group", "attributes": attributes}


def array_metadata(manifest: Manifest, kind: TokenKind) -> dict[str, Any]:
    """The `zarr.json` that every layer's array of one kind has; nothing in it depends on the layer."""
    rows, tokens, dim = manifest.array_shape(kind)
    little_endian = {"name": "bytes", "configuration": {"endian": "little"}}
    lz4 = {"typesize": 4, "cname": "lz4", "clevel": 5, "shuffle": "bitshuffle", "blocksize": 0}
    sharding = {
        "chunk_shape": [manifest.chunk_rows, tokens, dim],
        "codecs": [little_endian, {"name": "blosc", "configuration": lz4}, {"name": "crc32c"}],
        "index_codecs": [little_endian, {"name": "crc32c"}],
        "index_location": "end",
    }
    grid = {"chunk_shape": [manifest.shard_rows, tokens, dim]}
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [rows, tokens, dim],
        "data_type": "float32",
        "chunk_grid": {"name": "regular", "configuration": grid},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": "NaN",
        "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
        "attributes": {},
        "dimension_names": ["row", "token", "channel"],
        "storage_transformers": [],
    }


def crc32c(data: bytes) -> int:
    """Checksum of a chunk or an index, as Zarr's crc32c codec appends it."""
    return int(google_crc32c.value(data))


def checked(data: bytes, what: str) -> bytes:
    """`data` without the crc32c at its end.

    Raises:
        CorruptStoreError: the checksum disagrees.
    """
    if len(data) < 4 or crc32c(data[:-4]) != struct.unpack("<I", data[-4:])[0]:
        raise CorruptStoreError(f"{what} is not what was written (crc32c disagrees)")
    return data[:-4]


def decode_chunk(data: bytes, out: Float32, what: str) -> None:
    """Decompress one inner chunk into `out` (chunk_rows, tokens, dim), which is contiguous.

    Raises:
        CorruptStoreError: the checksum disagrees, or the chunk says that it holds another number of bytes.
    """
    payload = checked(data, what)
    if len(payload) >= _BLOSC_HEADER:
        # The header is believed by blosc itself: its sizes are checked before anything is allocated from
        # them.
        decoded, _, stored = struct.unpack("<III", payload[4:_BLOSC_HEADER])
        if decoded == out.nbytes and stored == len(payload):
            try:
                blosc.decompress(payload, out)
            except RuntimeError as exc:
                raise CorruptStoreError(f"{what} cannot be decompressed") from exc
            return
    raise CorruptStoreError(f"{what} must hold {out.nbytes} bytes of values; its header says otherwise")
