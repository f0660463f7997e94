"""How values become bytes: what a buffer holds, the arrays' metadata, and one inner chunk back again.

A value has three forms. *Held*, in a shard buffer: uint16 bit patterns for bfloat16, float16, float32, or
int8 codes. *Stored*, in an array: float32 (also for bfloat16), float16 or int8. *Read*: float32. Chunks
(chunk_rows, tokens, dim) of stored values become bytes here and come back; zarr itself is not needed.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any, Final

import google_crc32c
import numpy as np
import numpy.typing as npt

from .deferred import Deferred
from .errors import CorruptStoreError
from .layout import TokenKind
from .manifest import Compression, Manifest, StoredDtype

if TYPE_CHECKING:
    from . import blosc
else:
    blosc = Deferred("activault.store.blosc")

__all__ = [
    "BLOCK_VALUES",
    "FILL_BITS",
    "FILL_CODE",
    "MAX_CODE",
    "array_metadata",
    "checked",
    "crc32c",
    "crc_bytes",
    "fill_of",
    "group_metadata",
    "held_type",
    "most_chunk_bytes",
    "non_finite",
    "pack_chunk",
    "round_to_bfloat16",
    "round_to_float16",
    "store_into",
    "stored_type",
    "to_float32",
    "to_stored",
    "with_crc",
]

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]
UInt16 = npt.NDArray[np.uint16]
Half = npt.NDArray[np.float16]

FILL_BITS: Final = 0x7FC0
"""NaN in bfloat16; followed by 16 zero bits it is Zarr's own NaN in float32."""
FILL_CODE: Final = -128
"""The int8 code that is no value."""
MAX_CODE: Final = 127
"""int8 codes of values are -127 to 127."""
BLOCK_VALUES: Final = 1 << 16
"""Values converted at a time: 256 KiB of float32, so that several passes stay in a core's own cache."""
_HELD: Final[dict[StoredDtype, type[np.generic]]] = {
    "bfloat16": np.uint16,
    "float16": np.float16,
    "float32": np.float32,
    "int8": np.int8,
}


def held_type(manifest: Manifest, kind: TokenKind) -> np.dtype[Any]:
    """What a shard buffer holds a value of one kind in; bfloat16 as its bit pattern."""
    return np.dtype(_HELD[manifest.stored_dtype(kind)])


def stored_type(manifest: Manifest, kind: TokenKind) -> np.dtype[Any]:
    """What a value of one kind is in an array; bfloat16 as float32."""
    held = held_type(manifest, kind)
    return np.dtype(np.float32) if held == np.uint16 else held


def fill_of(dtype: np.dtype[Any]) -> Any:
    """The fill value, held or stored, of a dtype."""
    if dtype == np.uint16:
        return np.uint16(FILL_BITS)
    return np.int8(FILL_CODE) if dtype == np.int8 else dtype.type(np.nan)


def round_to_bfloat16(values: Float32) -> UInt16:
    """Bit patterns of float32 values rounded to bfloat16, to nearest, ties to even; every NaN becomes 0x7FC0.

    Values beyond bfloat16's range become infinite, which `StoreWriter.publish` refuses.
    """
    flat = np.ascontiguousarray(values, dtype=np.float32).reshape(-1).view(np.uint32)
    bits = np.empty(flat.shape, np.uint16)
    for start in range(0, flat.size, BLOCK_VALUES):
        block = flat[start : start + BLOCK_VALUES]
        rounded = (block >> 16) & 1
        rounded += 0x7FFF
        rounded += block
        rounded >>= 16
        rounded[(block & 0x7FFFFFFF) > 0x7F800000] = FILL_BITS
        bits[start : start + BLOCK_VALUES] = rounded
    return bits.reshape(values.shape)


def round_to_float16(values: Float32) -> Half:
    """Float32 values rounded to float16, to nearest, ties to even.

    Values beyond float16's range become infinite, which `StoreWriter.publish` refuses.
    """
    with np.errstate(over="ignore"):
        return values.astype(np.float16)


def to_stored(held: Array) -> Array:
    """Held values as they stand in an array: bit patterns become float32, anything else is itself."""
    if held.dtype != np.uint16:
        return held
    wide = np.empty(held.shape, np.float32)
    store_into(held, wide)
    return wide


def store_into(held: Array, out: Array) -> None:
    """The same into `out`, of the held values' shape and the stored type."""
    if held.dtype != np.uint16:
        out[...] = held
        return
    bits = out.view(np.uint32)
    np.copyto(bits, held)
    bits <<= 16


def to_float32(held: Array, scale: Float32 | None = None, offset: Float32 | None = None) -> Float32:
    """Held or stored values as new float32: exact, but for int8 codes, which are decoded.

    Args:
        held: (..., dim) uint16 bit patterns, float16, float32 or int8 codes.
        scale: (dim,) steps of int8 codes; given for them alone.
        offset: (dim,) values of code 0.

    Code -128 becomes NaN. Product and sum are each rounded to float32, as every reader does it.
    """
    if held.dtype == np.int8:
        assert scale is not None
        assert offset is not None
        values = held.astype(np.float32)
        values *= scale
        values += offset
        values[held == FILL_CODE] = np.nan
        return values
    return held.astype(np.float32) if held.dtype != np.uint16 else to_stored(held)


def non_finite(held: Array) -> npt.NDArray[np.bool_]:
    """Where held values are NaN, infinite or no value at all (code -128)."""
    if held.dtype == np.uint16:
        wrong = (held & 0x7F80) == 0x7F80
    elif held.dtype == np.int8:
        wrong = held == FILL_CODE
    else:
        wrong = ~np.isfinite(held)
    return np.asarray(wrong, dtype=np.bool_)


def group_metadata(attributes: dict[str, Any]) -> dict[str, Any]:
    """A group's `zarr.json`."""
    return {"zarr_format": 3, "node_type": "group", "attributes": attributes}


def _blosc_of(dtype: np.dtype[Any]) -> dict[str, Any]:
    """Blosc's parameters for a stored dtype, as `zarr.json` has them."""
    if dtype == np.int8:
        # Entropy coding alone: level 1 finds no matches, of which codes have none that pay.
        how: dict[str, Any] = {"cname": "zstd", "clevel": 1, "shuffle": "noshuffle", "blocksize": 131072}
    else:
        how = {"cname": "lz4", "clevel": 5, "shuffle": "bitshuffle", "blocksize": 0}
    return how | {"typesize": dtype.itemsize}


def array_metadata(manifest: Manifest, kind: TokenKind) -> dict[str, Any]:
    """The `zarr.json` that every layer's array of one kind has; nothing in it depends on the layer."""
    rows, tokens, dim = manifest.array_shape(kind)
    dtype = stored_type(manifest, kind)
    little_endian = {"name": "bytes", "configuration": {"endian": "little"}}
    codecs: list[dict[str, Any]] = [little_endian]
    if manifest.compression == "blosc":
        codecs.append({"name": "blosc", "configuration": _blosc_of(dtype)})
    sharding = {
        "chunk_shape": [manifest.chunk_rows, tokens, dim],
        "codecs": [*codecs, {"name": "crc32c"}],
        "index_codecs": [little_endian, {"name": "crc32c"}],
        "index_location": "end",
    }
    grid = {"chunk_shape": [manifest.shard_rows, tokens, dim]}
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [rows, tokens, dim],
        "data_type": dtype.name,
        "chunk_grid": {"name": "regular", "configuration": grid},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": FILL_CODE if dtype == np.int8 else "NaN",
        "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
        "attributes": {},
        "dimension_names": ["row", "token", "channel"],
        "storage_transformers": [],
    }


def crc32c(data: bytes | npt.NDArray[np.uint8]) -> int:
    """Checksum of a chunk or an index, as Zarr's crc32c codec has it."""
    return int(google_crc32c.value(data))


def crc_bytes(data: bytes) -> bytes:
    """Checksum of a chunk or an index, as it stands behind it."""
    return struct.pack("<I", crc32c(data))


def with_crc(data: bytes) -> bytes:
    """`data` and its crc32c."""
    return data + crc_bytes(data)


def checked(data: bytes, what: str) -> bytes:
    """`data` without the crc32c at its end.

    Raises:
        CorruptStoreError: the checksum disagrees.
    """
    if len(data) < 4 or crc32c(data[:-4]) != struct.unpack("<I", data[-4:])[0]:
        raise CorruptStoreError(f"{what} is not what was written (crc32c disagrees)")
    return data[:-4]


def most_chunk_bytes(shape: tuple[int, ...]) -> int:
    """Most bytes of an inner chunk (chunk_rows, tokens, dim) and its checksum, whatever its type.

    Blosc adds 16 bytes to what it cannot compress; the rest is room to spare.
    """
    return 4 * math.prod(shape) + 4096


def pack_chunk(values: Array, compression: Compression) -> bytes:
    """One inner chunk as it stands in a shard file, but for its checksum: the bytes that zarr-python writes.

    Args:
        values: (chunk_rows, tokens, dim) stored values (float32, float16 or int8), contiguous.
        compression: the manifest's.
    """
    if compression == "none":
        return values.tobytes()
    how = _blosc_of(values.dtype)
    # Its typesize is the values' own.
    shuffle = blosc.NOSHUFFLE if how["shuffle"] == "noshuffle" else blosc.BITSHUFFLE
    packed: bytes = blosc.compress(values, how["cname"].encode(), how["clevel"], shuffle, how["blocksize"])
    return packed
