"""What `activault info` tells of a store.

Its root, its shards and its sample table in, values that JSON can hold out.
"""

from __future__ import annotations

from typing import Any

from .grid import chunk_bytes, shard_bytes
from .layout import layer_name
from .manifest import Manifest
from .records import ArrayKey
from .root import Root
from .sample_tables import SampleTable
from .shards import ShardIndex

__all__ = ["facts_of", "float32_bytes"]


def facts_of(root: Root, shards: ShardIndex, samples: SampleTable) -> dict[str, Any]:
    """See `Store.info`; sizes are in bytes."""
    manifest, num_finished = root.manifest, len(samples.finished_rows)
    return {
        "format": manifest.format,
        "digest": shards.digest,
        "arrays_digest": shards.arrays_digest,
        "complete": samples.complete,
        "num_rows": manifest.num_rows,
        "num_finished": num_finished,
        "num_bad": shards.num_bad,
        "num_shards": manifest.num_shards,
        "num_finished_shards": len(shards.finished),
        "shard_rows": manifest.shard_rows,
        "chunk_rows": manifest.chunk_rows,
        # Aimed at are 24 MiB of float32 a chunk, and at most 4 GiB and 1,024 rows a shard.
        "chunk_bytes": chunk_bytes(manifest),
        "shard_bytes": shard_bytes(manifest),
        "layers": list(manifest.layers),
        "tokens": {kind: manifest.layout.count(kind) for kind in manifest.kinds},
        "grid": list(manifest.layout.grid),
        "kept_patches": manifest.layout.model_dump(mode="json")["kept_patches"],
        "dim": manifest.dim,
        "dtype": manifest.dtype,
        "compression": manifest.compression,
        "quantisation": _losses(manifest, shards),
        "shards": manifest.shards,
        "num_bytes": shards.num_bytes,
        # What `pull` copies: array and statistics files of every shard, and the teacher's.
        "num_files": len(shards.finished) * (len(manifest.layers) * len(manifest.kinds) + 1)
        + len(root.teacher),
        "float32_bytes": float32_bytes(manifest, num_finished),
        "num_classes": len(samples.labels[0]),
        "teacher": manifest.teacher.model_dump(mode="json"),
        "preprocessing": manifest.model_dump(mode="json")["preprocessing"],
        "source": manifest.source.model_dump(mode="json"),
        "row_seed": manifest.row_seed,
        "license": manifest.license,
        "citation": manifest.citation,
        "details": dict(manifest.details),
    }


def float32_bytes(manifest: Manifest, num_rows: int) -> int:
    """Bytes that so many rows would take as plain float32."""
    return num_rows * len(manifest.layers) * manifest.tokens_per_layer * manifest.dim * 4


def _losses(manifest: Manifest, shards: ShardIndex) -> dict[str, Any] | None:
    """What int8 has cost each layer's patches: R2 (null where nothing varies) and clipped values."""
    found: dict[str, Any] = {}
    if manifest.dtype != "int8" or "patches" not in manifest.kinds:
        return None
    for layer in manifest.layers:
        stats = shards.statistics[ArrayKey(layer, "patches")]
        if stats.losses is not None and stats.count:
            r2 = stats.r2 if stats.m2.any() else None
            found[layer_name(layer)] = {"r2": r2, "clipped": int(stats.losses.clipped.sum())}
    return found
