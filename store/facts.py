"""What `activault info` tells of a store.

An opened store in, values that JSON can hold out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .grid import chunk_bytes, shard_bytes
from .layout import layer_name

if TYPE_CHECKING:
    from .reader import Store

__all__ = ["facts_of"]


def facts_of(store: Store) -> dict[str, Any]:
    """See `Store.info`; sizes are in bytes."""
    manifest = store.manifest
    return {
        "format": manifest.format,
        "digest": store.digest,
        "arrays_digest": store.arrays_digest,
        "complete": store.complete,
        "num_rows": store.num_rows,
        "num_finished": len(store.finished_rows),
        "num_bad": store.num_bad,
        "num_shards": manifest.num_shards,
        "num_finished_shards": store.num_finished_shards,
        "shard_rows": manifest.shard_rows,
        "chunk_rows": manifest.chunk_rows,
        # Aimed at are 24 MiB of float32 a chunk, and at most 4 GiB and 1,024 rows a shard.
        "chunk_bytes": chunk_bytes(manifest),
        "shard_bytes": shard_bytes(manifest),
        "layers": list(store.layers),
        "tokens": {kind: store.layout.count(kind) for kind in store.kinds},
        "grid": list(store.layout.grid),
        "dim": store.dim,
        "dtype": manifest.dtype,
        "compression": manifest.compression,
        "quantisation": _losses(store),
        "shards": manifest.shards,
        "num_bytes": store.num_bytes,
        # An array's file each, a record and statistics a shard.
        "num_files": store.num_finished_shards * (len(store.layers) * len(store.kinds) + 2),
        "float32_bytes": store.float32_bytes,
        "num_classes": len(store.classes),
        "teacher": manifest.teacher.model_dump(mode="json"),
        "preprocessing": manifest.model_dump(mode="json")["preprocessing"],
        "source": manifest.source.model_dump(mode="json"),
        "row_seed": manifest.row_seed,
        "license": manifest.license,
        "citation": manifest.citation,
    }


def _losses(store: Store) -> dict[str, Any] | None:
    """What int8 has cost each layer's patches: R2 (null where nothing varies) and clipped values."""
    found: dict[str, Any] = {}
    if store.manifest.dtype != "int8" or "patches" not in store.kinds:
        return None
    for layer in store.layers:
        stats = store.statistics(layer, "patches")
        if stats.losses is not None and stats.count:
            spread = float(stats.m2.sum())
            r2 = 1 - float(stats.losses.sse.sum()) / spread if spread else None
            found[layer_name(layer)] = {"r2": r2, "clipped": int(stats.losses.clipped.sum())}
    return found
