"""Count, mean, variance and absolute maximum of every channel, per layer and kind, merged over shards.

Float32 values (rows, tokens, dim) in, float64 vectors (dim,) out. Blocks and shards are merged by the
pairwise rule of Chan, Golub and LeVeque (1979), always in the same order, so that the result is reproducible.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from .errors import CorruptStoreError
from .files import xxh3
from .layout import layer_name
from .manifest import Manifest
from .records import ArrayKey, ShardRecord, arrays_of, extract_again
from .storage import Storage

__all__ = ["ChannelStats", "merge", "read_statistics", "statistics_bytes", "statistics_of"]

Float64 = npt.NDArray[np.float64]
_BLOCK_VALUES = 1 << 16
"""Values in float64 at a time: 512 KiB, in a core's own cache."""


@dataclass(frozen=True, eq=False)
class ChannelStats:
    """Statistics of one layer's tokens of one kind, over the rows that are ok."""

    count: int
    """Tokens seen."""
    mean: Float64
    """(dim,)"""
    m2: Float64
    """(dim,) sum of squared deviations from the mean."""
    absmax: Float64
    """(dim,) largest absolute value."""

    @property
    def var(self) -> Float64:
        """(dim,) population variance; 0 where nothing was seen."""
        return self.m2 / max(self.count, 1)

    @staticmethod
    def empty(dim: int) -> ChannelStats:
        """Of no tokens at all."""
        return ChannelStats(0, np.zeros(dim), np.zeros(dim), np.zeros(dim))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ChannelStats):
            return NotImplemented
        mine, theirs = (self.mean, self.m2, self.absmax), (other.mean, other.m2, other.absmax)
        return self.count == other.count and all(map(np.array_equal, mine, theirs))


def statistics_of(values: npt.NDArray[np.float32]) -> ChannelStats:
    """Statistics of float32 values (rows, tokens, dim), none of them NaN."""
    dim = values.shape[-1]
    tokens = values.reshape(-1, dim)
    step = max(1, _BLOCK_VALUES // dim)
    total = ChannelStats.empty(dim)
    for start in range(0, len(tokens), step):
        block = tokens[start : start + step]
        # The first token as the first pivot: a channel that never changes then has exactly no variance.
        total = merge(total, _of_block(block, total.mean if total.count else block[0].astype(np.float64)))
    return total


def _of_block(tokens: npt.NDArray[np.float32], pivot: Float64) -> ChannelStats:
    """Statistics of (tokens, dim) from sums about a pivot near the mean: one pass, not two."""
    absmax = np.abs(tokens).max(axis=0).astype(np.float64)
    gaps = np.subtract(tokens, pivot, dtype=np.float64)
    shift = np.add.reduce(gaps, axis=0) / len(tokens)
    m2 = np.einsum("td,td->d", gaps, gaps) - len(tokens) * shift * shift
    return ChannelStats(len(tokens), pivot + shift, np.maximum(m2, 0.0), absmax)


def merge(first: ChannelStats, second: ChannelStats) -> ChannelStats:
    """Statistics of both together."""
    if not first.count or not second.count:
        return first if first.count else second
    count = first.count + second.count
    gap = second.mean - first.mean
    return ChannelStats(
        count,
        first.mean + gap * (second.count / count),
        first.m2 + second.m2 + gap * gap * (first.count * second.count / count),
        np.maximum(first.absmax, second.absmax),
    )


def _name(array: ArrayKey) -> str:
    return f"{layer_name(array.layer)}.{array.kind}"


def statistics_bytes(statistics: Mapping[ArrayKey, ChannelStats]) -> bytes:
    """A shard's statistics file."""
    tensors: dict[str, npt.NDArray[np.float64] | npt.NDArray[np.int64]] = {}
    for array, stats in statistics.items():
        tensors[f"{_name(array)}.count"] = np.array([stats.count], np.int64)
        tensors[f"{_name(array)}.mean"] = stats.mean
        tensors[f"{_name(array)}.m2"] = stats.m2
        tensors[f"{_name(array)}.absmax"] = stats.absmax
    return save(tensors)


def read_statistics(
    storage: Storage, manifest: Manifest, record: ShardRecord
) -> dict[ArrayKey, ChannelStats]:
    """A shard's statistics, checked against its record and the manifest.

    Raises:
        CorruptStoreError: the file is missing, altered or not of this store's shape.
    """
    file, remedy = record.statistics, extract_again(record.shard)
    try:
        data = storage.read(file.path, file.bytes)
    except FileNotFoundError as exc:
        raise CorruptStoreError(f"{file.path} is missing; {remedy}") from exc
    if len(data) != file.bytes:
        raise CorruptStoreError(f"{file.path} must have {file.bytes} bytes; it has {len(data)}; {remedy}")
    if xxh3(data) != file.hash:
        raise CorruptStoreError(f"{file.path} is not what was written (its hash disagrees); {remedy}")
    try:
        tensors = load(data)
        found = {
            array: ChannelStats(
                int(tensors[f"{_name(array)}.count"][0]),
                *(tensors[f"{_name(array)}.{part}"] for part in ("mean", "m2", "absmax")),
            )
            for array in arrays_of(manifest)
        }
    except (SafetensorError, KeyError, IndexError) as exc:
        raise CorruptStoreError(f"{file.path} does not hold this store's statistics ({exc})") from exc
    for array, stats in found.items():
        if any(part.shape != (manifest.dim,) for part in (stats.mean, stats.m2, stats.absmax)):
            raise CorruptStoreError(f"{file.path}: {_name(array)} must have {manifest.dim} channels")
    return found
