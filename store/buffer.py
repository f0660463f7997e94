"""One shard's values in memory, until they are published.

Float32 tokens of layers (n, num_tokens, dim), or of the kept kinds alone, in; per layer and kind one array
(rows, tokens of the kind, dim) of held values (see `codecs.py`): 1 byte a value for int8 codes, 2 for
bfloat16 and float16, 4 for float32. Every row starts as the fill value. Nothing depends on how many rows are
written at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .codecs import (
    BLOCK_VALUES,
    MAX_CODE,
    fill_of,
    held_type,
    non_finite,
    round_to_bfloat16,
    round_to_float16,
)
from .errors import ConfigError
from .layout import TokenKind
from .manifest import Manifest
from .quantise import Steps
from .records import ArrayKey, arrays_of

__all__ = ["ShardBuffer", "refuse_other_shard"]


_EXPONENT: Final = {np.dtype(np.float16): np.uint16(0x7C00), np.dtype(np.uint16): np.uint16(0x7F80)}
"""Bits that are all set where a float16 or a bfloat16 is not finite."""


@dataclass
class _Losses:
    """What quantising one layer's patches has cost, row by row, so that a row can be taken back."""

    steps: Steps
    errors: npt.NDArray[np.float64]
    """(rows, dim) sum of squared errors."""
    clipped: npt.NDArray[np.int32]
    """(rows, dim)"""


def refuse_other_shard(manifest: Manifest, shard: int) -> None:
    """Refuse a number that is of no shard of this store.

    Raises:
        ConfigError: it is not.
    """
    if not manifest.holds(shard):
        ranges = manifest.shards or ((0, manifest.num_shards),)
        held = ", ".join(f"{first} to {stop - 1}" for first, stop in ranges)
        raise ConfigError(f"shards here are {held}; got {shard}")


def _infinite_rows(held: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """(rows,) whether a float16 or a bfloat16 in it is not finite; in blocks that stay in a core's cache."""
    exponent = _EXPONENT[held.dtype]
    bits, found = held.view(np.uint16), np.zeros(len(held), np.bool_)
    step = max(1, BLOCK_VALUES // max(1, held[:1].size))
    for start in range(0, len(held), step):
        block = bits[start : start + step] & exponent
        if block.max() == exponent:
            found[start : start + step] = (block == exponent).any(axis=(1, 2))
    return found


class ShardBuffer:
    """Rows of one shard, all layers and kinds; filled by `write`, handed to `StoreWriter.publish`."""

    def __init__(self, manifest: Manifest, shard: int) -> None:
        refuse_other_shard(manifest, shard)
        self.shard = shard
        self.rows = manifest.shard_range(shard)
        self.manifest = manifest
        """What it was made for."""
        self._held = {array: self._filled(array.kind) for array in arrays_of(manifest)}
        self._refused: dict[tuple[ArrayKey, int], float] = {}
        self._losses = {
            ArrayKey(layer, "patches"): self._no_losses(Steps.of(quantisation))
            for layer, quantisation in zip(manifest.layers, manifest.quantisation or (), strict=False)
        }

    def _filled(self, kind: TokenKind) -> npt.NDArray[Any]:
        shape = (len(self.rows), *self.manifest.array_shape(kind)[1:])
        dtype = held_type(self.manifest, kind)
        return np.full(shape, fill_of(dtype), dtype)

    def _no_losses(self, steps: Steps) -> _Losses:
        shape = (len(self.rows), self.manifest.dim)
        return _Losses(steps, np.zeros(shape), np.zeros(shape, np.int32))

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        losses = sum(loss.errors.nbytes + loss.clipped.nbytes for loss in self._losses.values())
        return sum(held.nbytes for held in self._held.values()) + losses

    def held(self, array: ArrayKey) -> npt.NDArray[Any]:
        """One array's rows as they are held: bfloat16 bit patterns (uint16), float16, float32, int8 codes."""
        return self._held[array]

    def refused(self, array: ArrayKey, offset: int) -> float | None:
        """First value of a row as it was given that is not finite, or beyond what the dtype holds."""
        return self._refused.get((array, offset))

    def errors(self, array: ArrayKey) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]] | None:
        """(dim,) sum of squared errors and (dim,) clipped values over the rows that are held; int8 only.

        Rows that were cleared or never written count nothing. None for an array that is not quantised.
        """
        loss = self._losses.get(array)
        return None if loss is None else (loss.errors.sum(axis=0), loss.clipped.sum(axis=0, dtype=np.int64))

    def write(self, layer: int, offset: int, tokens: npt.NDArray[Any]) -> None:
        """Put one layer of `n` rows at row `offset` of the shard.

        Args:
            layer: one of the manifest's layers.
            offset: row within the shard.
            tokens: (n, num_tokens, dim) in the layout's order, or of the kept kinds alone (n,
                tokens_per_layer, dim); float32, or what a device has rounded before it copied: uint16 bit
                patterns for a bfloat16 store, float16 for a float16 store.

        Raises:
            ConfigError: the layer is not kept, the shape or the type differs, or the rows leave the shard.
        """
        manifest = self.manifest
        whole, kept, dim = manifest.layout.num_tokens, manifest.tokens_per_layer, manifest.dim
        if tokens.ndim != 3 or tokens.shape[1:] not in {(whole, dim), (kept, dim)}:
            of_kept = f", of the kept kinds (n, {kept}, {dim})" if kept != whole else ""
            raise ConfigError(
                f"tokens of whole layers have the shape (n, {whole}, {dim}){of_kept}; got {tokens.shape}"
            )
        if offset < 0 or offset + len(tokens) > len(self.rows):
            raise ConfigError(
                f"shard {self.shard} takes rows in 0 to {len(self.rows)}; got {len(tokens)} at row {offset}"
            )
        if layer not in manifest.layers:
            raise ConfigError(f"this store keeps the layers {manifest.layers}; got {layer}")
        if tokens.dtype != np.float32 and not self._takes_as_is(tokens.dtype):
            raise ConfigError(f"a {manifest.dtype} store takes float32 tokens; got {tokens.dtype}")
        rounded = tokens
        if tokens.dtype == np.float32 and self._takes_as_is(np.dtype(np.uint16)):
            rounded = round_to_bfloat16(tokens)
        start = 0
        for kind in manifest.kinds:
            span = manifest.layout.span(kind)
            if tokens.shape[1] != whole:
                span = slice(start, start := start + manifest.layout.count(kind))
            self._write(ArrayKey(layer, kind), offset, rounded[:, span], tokens[:, span])

    def _takes_as_is(self, dtype: np.dtype[Any]) -> bool:
        return all(held_type(self.manifest, kind) == dtype for kind in self.manifest.kinds)

    def _write(self, array: ArrayKey, offset: int, tokens: npt.NDArray[Any], given: npt.NDArray[Any]) -> None:
        held = self._held[array][offset : offset + len(tokens)]
        for row in range(offset, offset + len(tokens)):
            self._refused.pop((array, row), None)
        if array in self._losses:
            self._quantise(array, offset, tokens, held)
            return
        if tokens.dtype == held.dtype:
            held[...] = tokens
        elif held.dtype == np.uint16:
            held[...] = round_to_bfloat16(tokens)
        else:
            held[...] = round_to_float16(tokens)
        if held.dtype != np.float32 and given.dtype != np.uint16:
            self._refuse(array, offset, given, held, _infinite_rows(held))

    def _quantise(
        self, array: ArrayKey, offset: int, tokens: npt.NDArray[np.float32], codes: npt.NDArray[np.int8]
    ) -> None:
        loss = self._losses[array]
        errors, clipped = loss.steps.quantise(tokens, codes)
        self._refuse(array, offset, tokens, codes, np.asarray(~np.isfinite(errors).all(axis=1)))
        loss.errors[offset : offset + len(tokens)] = errors
        loss.clipped[offset : offset + len(tokens)] = clipped

    def _refuse(
        self,
        array: ArrayKey,
        offset: int,
        tokens: npt.NDArray[Any],
        held: npt.NDArray[Any],
        wrong: npt.NDArray[np.bool_],
    ) -> None:
        """Remember the values as they were given: what is held does not say any more what they were."""
        for place in np.flatnonzero(wrong):
            bad = non_finite(held[place])
            if bad.any():
                self._refused[array, offset + int(place)] = float(tokens[place][bad][0])

    def count_losses(
        self, array: ArrayKey, offset: int, errors: npt.NDArray[Any], clipped: npt.NDArray[Any]
    ) -> None:
        """Note what int8 codes that were put into `held` as they are have cost, under one row that is kept.

        Args:
            array: whose codes they are.
            offset: row of the shard; not one that `write` or `clear` is called for afterwards.
            errors: (dim,) sum of squared errors.
            clipped: (dim,) codes that were clipped.
        """
        self._losses[array].errors[offset] = errors
        self._losses[array].clipped[offset] = clipped

    def take_over(self, array: ArrayKey, held: npt.NDArray[Any], is_ok: npt.NDArray[np.bool_]) -> None:
        """Put in the place of one array's values those of the same rows that another machine computed.

        Of int8 what quantising cost stays as it was here, where codes of the same values differ by their
        rounding alone; no more values count as clipped than codes stand at an end.

        Args:
            array: which.
            held: (rows, tokens, dim) as they are held.
            is_ok: (rows,)
        """
        self._held[array][...] = held
        for offset in range(len(self.rows)):
            self._refused.pop((array, offset), None)
        loss = self._losses.get(array)
        if loss is not None:
            at_ends = (np.abs(held.astype(np.int16)) == MAX_CODE).sum(axis=1) * is_ok[:, None]
            np.minimum(loss.clipped, at_ends, out=loss.clipped, casting="unsafe")

    def clear(self, offset: int) -> None:
        """Make one row of the shard the fill value again, in every array."""
        for array, held in self._held.items():
            held[offset] = fill_of(held.dtype)
            self._refused.pop((array, offset), None)
        for loss in self._losses.values():
            loss.errors[offset] = 0
            loss.clipped[offset] = 0
