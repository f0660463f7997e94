"""One shard's values in memory, until they are published.

Float32 tokens of whole layers (n, num_tokens, dim) in; per layer and kind one array (rows, tokens of the
kind, dim) held in 2 bytes a value for bfloat16, 4 for float32. Every row starts as the fill value.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .codecs import FILL_BITS, buffer_dtype, round_to_bfloat16
from .errors import ConfigError
from .layout import TokenKind
from .manifest import Manifest
from .records import ArrayKey, arrays_of

__all__ = ["ShardBuffer"]


def _spoken(manifest: Manifest) -> str:
    if manifest.shards is None:
        return f"0 to {manifest.num_shards - 1}"
    return ", ".join(f"{first} to {stop - 1}" for first, stop in manifest.shards)


class ShardBuffer:
    """Rows of one shard, all layers and kinds; filled by `write`, handed to `StoreWriter.publish`."""

    def __init__(self, manifest: Manifest, shard: int) -> None:
        if not manifest.holds(shard):
            raise ConfigError(f"shards here are {_spoken(manifest)}; got {shard}")
        self.shard = shard
        self.rows = manifest.shard_range(shard)
        self._manifest = manifest
        self._held = {array: self._filled(array.kind) for array in arrays_of(manifest)}

    def _filled(self, kind: TokenKind) -> npt.NDArray[Any]:
        shape = (len(self.rows), *self._manifest.array_shape(kind)[1:])
        dtype = buffer_dtype(self._manifest)
        return np.full(shape, np.nan if dtype == np.float32 else FILL_BITS, dtype)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(held.nbytes for held in self._held.values())

    def held(self, array: ArrayKey) -> npt.NDArray[Any]:
        """One array's rows as they are held: bfloat16 bit patterns (uint16), or float32."""
        return self._held[array]

    def write(self, layer: int, offset: int, tokens: npt.NDArray[Any]) -> None:
        """Put whole layers of `n` rows at row `offset` of the shard.

        Args:
            layer: one of the manifest's layers.
            offset: row within the shard.
            tokens: (n, num_tokens, dim) in the layout's order; float32, or uint16 bit patterns of values
                that are already bfloat16 (a device can round before it copies).

        Raises:
            ConfigError: the layer is not kept, the shape differs, or the rows leave the shard.
        """
        manifest = self._manifest
        expected = (len(tokens), manifest.layout.num_tokens, manifest.dim)
        if tokens.shape != expected or offset < 0 or offset + len(tokens) > len(self.rows):
            raise ConfigError(
                f"rows {offset} to {offset + len(tokens)} of shard {self.shard} (of {len(self.rows)} rows) "
                f"take tokens of the shape {expected}; got {tokens.shape}"
            )
        if layer not in manifest.layers:
            raise ConfigError(f"this store keeps the layers {manifest.layers}; got {layer}")
        values = self._as_held(tokens)
        for kind in manifest.kinds:
            span = manifest.layout.span(kind)
            self._held[ArrayKey(layer, kind)][offset : offset + len(tokens)] = values[:, span]

    def _as_held(self, tokens: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if self._manifest.dtype == "bfloat16":
            if tokens.dtype == np.uint16:
                return tokens
            if tokens.dtype == np.float32:
                return round_to_bfloat16(tokens)
        elif tokens.dtype == np.float32:
            return tokens
        raise ConfigError(f"a {self._manifest.dtype} store takes float32 tokens; got {tokens.dtype}")

    def clear(self, offset: int) -> None:
        """Make one row of the shard the fill value again, in every array."""
        for held in self._held.values():
            held[offset] = np.nan if held.dtype == np.float32 else FILL_BITS
