"""How large a store becomes: the files that FORMAT.md gives a manifest, and what of their bytes it fixes.

A manifest in, numbers out; nothing is read or written.
"""

from __future__ import annotations

from typing import Final

from .manifest import Manifest

__all__ = ["index_bytes", "num_array_files", "num_files"]

_OF_THE_STORE: Final = 6
"""zarr.json, samples.parquet, index.parquet, CARD.md, .lock and shards/.lock."""
_ENTRY_BYTES: Final = 16
"""Offset and length of a chunk."""
_CRC_BYTES: Final = 4


def num_array_files(manifest: Manifest) -> int:
    """Files of array values: one a layer, kind and shard."""
    return len(manifest.layers) * len(manifest.kinds) * len(manifest.held_shards)


def num_files(manifest: Manifest, num_teacher_files: int) -> int:
    """All files of the complete store on a disk, which are what a quota on files counts."""
    arrays = len(manifest.layers) * len(manifest.kinds)
    described = len(manifest.layers) + arrays
    recorded = 2 * len(manifest.held_shards)
    return _OF_THE_STORE + num_teacher_files + described + recorded + num_array_files(manifest)


def index_bytes(manifest: Manifest) -> int:
    """Bytes of the places of its chunks, at the end of every array's file."""
    return manifest.chunks_per_shard * _ENTRY_BYTES + _CRC_BYTES
