"""Verification of statistics: what a shard's file claims must be possible for the rows that it speaks of.

A place and its records in; findings out. No value is looked at: whether the claims are true, and not merely
possible, `check_values.py` finds out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from .errors import StoreError
from .findings import Findings
from .manifest import Manifest
from .records import ArrayKey, ShardRecord, arrays_of, extract_again
from .statistics import ChannelStats, read_statistics
from .storage import NUM_REQUESTS, Storage, gather

__all__ = ["check_statistics", "num_ok_tokens"]

_SLACK: Final = 1e-6
"""Relative; sums over 2^30 tokens differ by less, whatever their order."""


def check_statistics(
    storage: Storage, manifest: Manifest, records: Sequence[ShardRecord], findings: Findings
) -> None:
    """Every shard's counts, and bounds that no values are beyond; files that a fault names are left out."""
    named = findings.named
    asked = [record for record in records if record.statistics.path not in named]

    def read(record: ShardRecord) -> dict[ArrayKey, ChannelStats] | StoreError:
        try:
            return read_statistics(storage, manifest, record)
        except StoreError as exc:
            return exc

    for start in range(0, len(asked), NUM_REQUESTS):  # as many as are held in memory at once
        block = asked[start : start + NUM_REQUESTS]
        for record, found in zip(block, gather(storage, read, block), strict=True):
            path = record.statistics.path
            if isinstance(found, StoreError):
                findings.unreadable(path, found, "extract", record.shard)
                continue
            for array in arrays_of(manifest):
                claim = _impossible(found[array], num_ok_tokens(manifest, record, array))
                if claim is not None:
                    findings.fault(
                        path,
                        "must state what the rows of its shard can have",
                        f"layer {array.layer}, {array.kind}: {claim}; {extract_again(record.shard)}",
                        "extract",
                        record.shard,
                    )


def num_ok_tokens(manifest: Manifest, record: ShardRecord, array: ArrayKey) -> int:
    """Tokens of one array in the rows of a shard that are ok."""
    first, stop = record.rows
    return (stop - first - len(record.bad)) * manifest.layout.count(array.kind)


def _impossible(stats: ChannelStats, num_tokens: int) -> str | None:
    """The first thing in some statistics that no values of so many tokens can have."""
    if stats.count != num_tokens:
        return f"its count is {stats.count}, and the rows that are ok have {num_tokens} tokens"
    parts = {"mean": stats.mean, "m2": stats.m2, "absmax": stats.absmax}
    if stats.losses is not None:
        parts |= {"sse": stats.losses.sse, "clipped": stats.losses.clipped.astype(np.float64)}
    if not all(np.isfinite(part).all() for part in parts.values()):
        return "not all of it is finite"
    least = {name: part for name, part in parts.items() if name != "mean"}
    for name, part in least.items():
        if part.min() < 0:
            return _at(name, part, part < 0, "at least 0")
    if not num_tokens and any(part.any() for part in parts.values()):
        return "it is not all 0, and no row is ok"
    mean, absmax = np.abs(stats.mean), stats.absmax
    if (beyond := mean > absmax * (1 + _SLACK)).any():
        return _at("mean", stats.mean, beyond, f"within its absmax, {absmax[beyond][0]:g}")
    # The sum of squares is m2 + count * mean**2, and no square is above absmax**2.
    most = num_tokens * (absmax * absmax * (1 + _SLACK) - mean * mean)
    if (beyond := stats.m2 > np.maximum(most, 0) + num_tokens * absmax * absmax * _SLACK).any():
        return _at("m2", stats.m2, beyond, f"at most {most[beyond][0]:g} with its mean and absmax")
    if stats.losses is not None and (beyond := stats.losses.clipped > num_tokens).any():
        return _at("clipped", stats.losses.clipped, beyond, f"at most {num_tokens}")
    return None


def _at(name: str, part: npt.NDArray[np.float64 | np.int64], beyond: npt.NDArray[np.bool_], rule: str) -> str:
    channel = int(np.flatnonzero(beyond)[0])
    return f"{name} of channel {channel} must be {rule}; it is {part[channel]:g}"
