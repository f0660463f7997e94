"""Rows a chunk and rows a shard, from stated byte targets."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from .errors import ConfigError
from .layout import TokenKind, TokenLayout
from .manifest import MOST_SHARD_ROWS, Manifest, StoredDtype

__all__ = [
    "CHUNK_BYTES",
    "MAX_CHUNK_ROWS",
    "MAX_SHARD_ROWS",
    "SHARD_BUFFER_BYTES",
    "choose_grid",
    "chunk_bytes",
    "shard_bytes",
]

CHUNK_BYTES: Final = 24 << 20
"""Aimed size of the largest kind's inner chunk, decoded: 32 rows of a ViT-B/14 at 224 pixels."""
MAX_CHUNK_ROWS: Final = 64
"""A loader mixes whole chunks, so that longer ones make poorer batches."""
SHARD_BUFFER_BYTES: Final = 4 << 30
MAX_SHARD_ROWS: Final = 1024
_VALUE_BYTES: Final[dict[StoredDtype, int]] = {"bfloat16": 2, "float16": 2, "float32": 4, "int8": 1}
_LOSS_BYTES: Final = 12
"""A row's sum of squared errors and count of clipped values, for each layer and channel of an int8 buffer."""


def _row_bytes(
    layout: TokenLayout, kinds: Collection[TokenKind], num_layers: int, dim: int, dtype: StoredDtype
) -> int:
    """Bytes of one row in a shard buffer, all layers and kinds."""
    tokens = sum(layout.count(kind) for kind in kinds)
    if dtype != "int8":
        return num_layers * tokens * dim * _VALUE_BYTES[dtype]
    patches = layout.count("patches")
    others = (tokens - patches) * _VALUE_BYTES["bfloat16"]
    return num_layers * dim * (patches * _VALUE_BYTES["int8"] + others + _LOSS_BYTES)


def chunk_bytes(manifest: Manifest) -> int:
    """Bytes of the largest kind's inner chunk, decoded to float32; `CHUNK_BYTES` is aimed at."""
    largest = max(manifest.layout.count(kind) for kind in manifest.kinds)
    return manifest.chunk_rows * largest * manifest.dim * 4


def shard_bytes(manifest: Manifest) -> int:
    """Bytes of a shard's buffer, all layers and kinds; `SHARD_BUFFER_BYTES` is not exceeded."""
    row_bytes = _row_bytes(
        manifest.layout, manifest.kinds, len(manifest.layers), manifest.dim, manifest.dtype
    )
    return row_bytes * min(manifest.shard_rows, manifest.num_rows)


def choose_grid(
    *,
    num_rows: int,
    layout: TokenLayout,
    kinds: Collection[TokenKind],
    num_layers: int,
    dim: int,
    dtype: StoredDtype = "bfloat16",
    shard_rows: int | None = None,
    buffer_bytes: int = SHARD_BUFFER_BYTES,
) -> tuple[int, int]:
    """`(shard_rows, chunk_rows)` for a store.

    The chunk is the largest power of two of rows, up to 64, whose largest kind fits in 24 MiB of float32. The
    shard is the largest multiple of it that keeps the shard buffer (all layers and kinds, as held for the
    dtype) within `buffer_bytes` and the rows within 1,024, and no longer than the store. A `shard_rows` that
    is asked for is kept, and the chunk becomes the largest divisor of it that is no longer.

    Raises:
        ConfigError: `shard_rows` is below 1 or needs a larger buffer than `buffer_bytes`.
    """
    row_bytes = _row_bytes(layout, kinds, num_layers, dim, dtype)
    largest = max(layout.count(kind) for kind in kinds) * dim * 4
    chunk_rows = MAX_CHUNK_ROWS
    while chunk_rows > 1 and chunk_rows * largest > CHUNK_BYTES:
        chunk_rows //= 2
    if shard_rows is None:
        room = min(buffer_bytes // row_bytes, MAX_SHARD_ROWS, -(-num_rows // chunk_rows) * chunk_rows)
        chunk_rows = max(1, min(chunk_rows, room))
        return max(1, room // chunk_rows) * chunk_rows, chunk_rows
    most = min(buffer_bytes // row_bytes, MOST_SHARD_ROWS)
    if not 1 <= shard_rows <= most:
        raise ConfigError(
            f"rows a shard are 1 to {most} here (a row takes {row_bytes / 1e3:,.1f} kB "
            f"of the {buffer_bytes / 1e9:.1f} GB buffer); got {shard_rows}"
        )
    chunk_rows = next(rows for rows in range(min(chunk_rows, shard_rows), 0, -1) if shard_rows % rows == 0)
    return shard_rows, chunk_rows
