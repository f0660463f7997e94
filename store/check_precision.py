"""Verification of int8's promise: what quantising cost every shard and the whole, by their statistics.

A place, its root and the records that were found in; findings out. A store of another dtype has nothing to
look at.
"""

from __future__ import annotations

from typing import Final

from .check_records import FoundRecords
from .errors import StoreError
from .findings import Findings
from .manifest import Manifest
from .quantise import MAX_ERROR
from .records import ArrayKey, ShardRecord, arrays_of
from .remedies import COPY
from .root import Root
from .statistics import ChannelStats, merge, read_statistics
from .storage import NUM_REQUESTS, Storage, gather

__all__ = ["check_precision"]

_REMEDY: Final = f"{COPY}, or plan the store with dtype bfloat16"


def check_precision(storage: Storage, root: Root, found: FoundRecords, findings: Findings) -> None:
    """Every shard's squared errors against the format's bound; R2 of the whole where it is all there."""
    manifest = root.manifest
    arrays = [array for array in arrays_of(manifest) if manifest.stored_dtype(array.kind) == "int8"]
    if not arrays:
        return
    all_records = found.ascending
    merged = {array: ChannelStats.empty(manifest.dim) for array in arrays}

    def read(record: ShardRecord) -> dict[ArrayKey, ChannelStats] | None:
        try:
            return read_statistics(storage, manifest, record)
        except StoreError:
            return None  # its size or bytes are a fault of their own

    num_read = 0
    for start in range(0, len(all_records), NUM_REQUESTS):  # as many as are held in memory at once
        records = all_records[start : start + NUM_REQUESTS]
        for record, statistics in zip(records, gather(storage, read, records), strict=True):
            if statistics is None:
                continue
            num_read += 1
            for array in arrays:
                _check_shard(manifest, record, array, statistics[array], findings)
                merged[array] = merge(merged[array], statistics[array])
    if manifest.shards is None and num_read == manifest.num_shards:
        for array, stats in merged.items():
            _check_whole(array, stats, findings)


def _check_shard(
    manifest: Manifest, record: ShardRecord, array: ArrayKey, stats: ChannelStats, findings: Findings
) -> None:
    quantisation = manifest.quantisation_of(array.layer, array.kind)
    assert quantisation is not None
    most = MAX_ERROR * quantisation.variance
    if stats.error <= most:
        return
    findings.fault(
        record.statistics.path,
        f"must keep the mean squared error of every layer's patches within {MAX_ERROR:g} of their variance",
        f"in layer {array.layer} it is {stats.error:.3g}, and may be {most:.3g}; {_REMEDY}",
        "copy",
        record.shard,
    )


def _check_whole(array: ArrayKey, stats: ChannelStats, findings: Findings) -> None:
    if 1 - stats.r2 > MAX_ERROR:
        findings.fault(
            "store",
            f"must keep R2 of every layer's patches at {1 - MAX_ERROR:g} or above",
            f"in layer {array.layer} it is {stats.r2:.6f}; {_REMEDY}",
            "copy",
        )
