"""Count, mean, variance and absolute maximum of every channel, per layer and kind, merged over shards.

Float32 values (rows, tokens, dim) in, float64 vectors (dim,) out. Shards are merged by the pairwise rule of
Chan, Golub and LeVeque (1979), always in the same order, so that the result is reproducible.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

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

__all__ = [
    "ChannelStats",
    "Losses",
    "Moments",
    "Tensors",
    "checked_tensors",
    "merge",
    "most_statistics_bytes",
    "read_statistics",
    "statistics_bytes",
    "tensor_names",
]

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Tensors = dict[str, npt.NDArray[Any]]
_BLOCK_VALUES: Final = 3 << 13
"""Values in float64 at a time: with their pivots 384 KiB, in a core's own cache."""


@dataclass(frozen=True, eq=False)
class Losses:
    """What quantising has cost."""

    sse: Float64
    """(dim,) sum of squared errors."""
    clipped: Int64
    """(dim,) codes that were clipped."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Losses):
            return NotImplemented
        return np.array_equal(self.sse, other.sse) and np.array_equal(self.clipped, other.clipped)


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
    losses: Losses | None = None
    """For the patches of an int8 store."""

    @property
    def var(self) -> Float64:
        """(dim,) population variance; 0 where nothing was seen."""
        return self.m2 / max(self.count, 1)

    @property
    def r2(self) -> float:
        """R2 of the decoded values against the ones that were quantised; 1 where nothing was lost."""
        sse, m2 = 0.0 if self.losses is None else float(self.losses.sse.sum()), float(self.m2.sum())
        return 1 - sse / m2 if m2 else -np.inf if sse else 1.0

    @property
    def error(self) -> float:
        """Mean squared error a value; 0 where nothing was lost."""
        sse = 0.0 if self.losses is None else float(self.losses.sse.sum())
        return sse / max(self.count * len(self.mean), 1)

    @staticmethod
    def empty(dim: int) -> ChannelStats:
        """Of no tokens at all."""
        return ChannelStats(0, np.zeros(dim), np.zeros(dim), np.zeros(dim))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ChannelStats):
            return NotImplemented
        mine, theirs = (self.mean, self.m2, self.absmax), (other.mean, other.m2, other.absmax)
        same = self.count == other.count and self.losses == other.losses
        return same and all(map(np.array_equal, mine, theirs))


class Moments:
    """Sums over the tokens of one array's shard, fed a few rows at a time while they are in a core's cache.

    Sums of the gaps to a pivot that is the mean of what comes first: one pass, and as exact as two. Additions
    and products alone, in one order, so that every machine gets the same bits.
    """

    def __init__(self, dim: int) -> None:
        self._count = 0
        self._step = max(1, _BLOCK_VALUES // dim)
        # The pivot once a token: subtracting it as one row costs three times as much.
        self._pivot = np.zeros((self._step, dim))
        self._gaps = np.empty((self._step, dim))
        self._sum = np.zeros(dim)
        self._squares = np.zeros(dim)

    def add(self, values: npt.NDArray[np.float32]) -> None:
        """Take in (rows, tokens, dim), all of them finite."""
        tokens = values.reshape(-1, values.shape[-1])
        if not self._count and len(tokens):
            # Of a channel that never changes all gaps are exactly 0, and so is its variance.
            first = tokens[0].astype(np.float64)
            self._pivot[:] = first + np.subtract(tokens[: self._step], first).mean(axis=0)
        for start in range(0, len(tokens), self._step):
            block = tokens[start : start + self._step]
            gaps = self._gaps[: len(block)]
            np.copyto(gaps, block)
            gaps -= self._pivot[: len(block)]
            self._sum += np.add.reduce(gaps, axis=0)
            gaps *= gaps
            self._squares += np.add.reduce(gaps, axis=0)
        self._count += len(tokens)

    def finish(self, absmax: Float64) -> ChannelStats:
        """Statistics of all that was added; `absmax` (dim,) is known from elsewhere."""
        if not self._count:
            return ChannelStats.empty(len(absmax))
        shift = self._sum / self._count
        m2 = self._squares - self._count * shift * shift
        return ChannelStats(self._count, self._pivot[0] + shift, np.maximum(m2, 0.0), absmax)


def merge(first: ChannelStats, second: ChannelStats) -> ChannelStats:
    """Statistics of both together."""
    losses = _merged(first.losses, second.losses)
    if not first.count or not second.count:
        return replace(first if first.count else second, losses=losses)
    count = first.count + second.count
    with np.errstate(invalid="ignore", over="ignore"):  # what was read may be anything
        gap = second.mean - first.mean
        return ChannelStats(
            count,
            first.mean + gap * (second.count / count),
            first.m2 + second.m2 + gap * gap * (first.count * second.count / count),
            np.maximum(first.absmax, second.absmax),
            losses,
        )


def _merged(first: Losses | None, second: Losses | None) -> Losses | None:
    if first is None or second is None:
        return first or second
    return Losses(first.sse + second.sse, first.clipped + second.clipped)


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
        if stats.losses is not None:
            tensors[f"{_name(array)}.sse"] = stats.losses.sse
            tensors[f"{_name(array)}.clipped"] = stats.losses.clipped
    return save(tensors)


def most_statistics_bytes(manifest: Manifest) -> int:
    """Most bytes of a shard's statistics file: six vectors of float64 a layer and kind, and their names."""
    return 4096 + len(manifest.layers) * len(manifest.kinds) * (64 * manifest.dim + 4096)


def read_statistics(
    storage: Storage, manifest: Manifest, record: ShardRecord
) -> dict[ArrayKey, ChannelStats]:
    """A shard's statistics, checked against its record and the manifest.

    Raises:
        CorruptStoreError: the file is missing, altered or not of this store's shape.
    """
    file, remedy = record.statistics, extract_again(record.shard)
    most = most_statistics_bytes(manifest)  # a record may say anything
    try:
        data = storage.read(file.path, min(file.bytes, most))
    except FileNotFoundError as exc:
        raise CorruptStoreError(f"{file.path} is missing; {remedy}") from exc
    if len(data) != file.bytes:
        raise CorruptStoreError(f"{file.path} must have {file.bytes} bytes; it has {len(data)}; {remedy}")
    if xxh3(data) != file.hash:
        raise CorruptStoreError(f"{file.path} is not what was written (its hash disagrees); {remedy}")
    try:
        tensors = load(data)
        _refuse_others(tensors, manifest)
        return {array: _channel_stats(tensors, manifest, array) for array in arrays_of(manifest)}
    except (SafetensorError, KeyError, ValueError) as exc:
        raise CorruptStoreError(
            f"{file.path} does not hold this store's statistics ({exc}); {remedy}"
        ) from exc


def _refuse_others(tensors: Tensors, manifest: Manifest) -> None:
    """A file of anything more would not come back the same from the parts of its store."""
    known = {name for array in arrays_of(manifest) for name in tensor_names(manifest, array)}
    if others := tensors.keys() - known:
        raise ValueError(f"{min(others)} is none of them")


def checked_tensors(tensors: Tensors, manifest: Manifest, array: ArrayKey) -> Tensors:
    """The tensors of one array out of a statistics file, by their names there, and no others.

    Raises:
        ValueError: one is missing, or of another type or shape.
    """
    found = {}
    for part, (dtype, size) in _parts(manifest, array).items():
        name = f"{_name(array)}.{part}"
        tensor = tensors.get(name)
        if tensor is None or tensor.shape != (size,) or tensor.dtype != dtype:
            there = "missing" if tensor is None else f"{tensor.dtype} of the shape {tensor.shape}"
            raise ValueError(f"{name} must be {size} of {np.dtype(dtype)}; it is {there}")
        found[name] = tensor
    count = int(found[f"{_name(array)}.count"][0])
    if count < 0:
        raise ValueError(f"{_name(array)}.count must be at least 0; it is {count}")
    return found


def tensor_names(manifest: Manifest, array: ArrayKey) -> list[str]:
    """Names of one array's tensors in a statistics file."""
    return [f"{_name(array)}.{part}" for part in _parts(manifest, array)]


def _parts(manifest: Manifest, array: ArrayKey) -> dict[str, tuple[type, int]]:
    """Type and size of every tensor of an array."""
    vector = (np.float64, manifest.dim)
    parts: dict[str, tuple[type, int]] = {
        "count": (np.int64, 1),
        "mean": vector,
        "m2": vector,
        "absmax": vector,
    }
    if manifest.stored_dtype(array.kind) == "int8":
        parts |= {"sse": vector, "clipped": (np.int64, manifest.dim)}
    return parts


def _channel_stats(tensors: Tensors, manifest: Manifest, array: ArrayKey) -> ChannelStats:
    """One array's statistics; a ValueError says what is wrong with them."""
    found = checked_tensors(tensors, manifest, array)
    part = {name.rpartition(".")[2]: tensor for name, tensor in found.items()}
    losses = Losses(part["sse"], part["clipped"]) if "sse" in part else None
    return ChannelStats(int(part["count"][0]), part["mean"], part["m2"], part["absmax"], losses)
