"""What an analysis reads: rows of every layer's tokens, in batches that fit a stated memory budget.

`LayerSource` is the part of `activault.store.Store` that analyses use, so that anything with these names and
shapes can be analysed, arrays in memory included. One batch: float32 (n, layers, tokens, D).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from activault.store.errors import ConfigError
from activault.store.layout import TokenKind, TokenLayout

__all__ = ["Batch", "LayerSource", "choose_layers", "choose_rows", "kind_spans", "read_batches"]

FloatArray = npt.NDArray[np.float32]
RowArray = npt.NDArray[np.int64]
DEFAULT_BYTES = 256 << 20
# A batch's tokens, their directions, the updates between layers, and one temporary, all alive at once.
COPIES = 5


class LayerSource(Protocol):
    """Rows of layers of tokens; `activault.store.Store` is one."""

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers that are kept, ascending."""

    @property
    def kinds(self) -> tuple[TokenKind, ...]:
        """Token kinds that are kept."""

    @property
    def layout(self) -> TokenLayout:
        """Tokens of one layer of the teacher."""

    @property
    def dim(self) -> int:
        """Width of a token."""

    @property
    def valid_rows(self) -> RowArray:
        """Rows that hold a good image's tokens."""

    def read(
        self,
        rows: slice | Sequence[int] | RowArray,
        layers: Iterable[int],
        tokens: str | Sequence[TokenKind] = "all",
    ) -> FloatArray:
        """Tokens of some rows, float32 (n, layers, tokens, D), kinds in the layout's order."""


@dataclass(frozen=True)
class Batch:
    """Consecutive positions of a selection of rows."""

    start: int
    """Position of the first row in the selection."""
    tokens: FloatArray
    """float32 (n, layers, tokens, D)."""

    @property
    def stop(self) -> int:
        """Position after the last row."""
        return self.start + len(self.tokens)


def choose_rows(source: LayerSource, rows: RowArray | Sequence[int] | None) -> RowArray:
    """The rows to analyse, ascending: the valid ones by default.

    Raises:
        ConfigError: there are none, or a row that was asked for has no valid tokens.
    """
    valid = np.asarray(source.valid_rows, dtype=np.int64)
    if rows is None:
        chosen = valid
    else:
        chosen = np.unique(np.asarray(rows, dtype=np.int64))
        bad = np.setdiff1d(chosen, valid)
        if bad.size:
            raise ConfigError(
                f"only rows with a good, finished image can be analysed; {bad.size} of {chosen.size} "
                f"are not, the first is row {bad[0]}; leave them out"
            )
    if not chosen.size:
        raise ConfigError("an analysis needs at least one row; the selection has no valid rows")
    return chosen


def choose_layers(source: LayerSource, layers: Iterable[int] | None) -> tuple[int, ...]:
    """The layers to analyse, ascending: all that the source keeps by default.

    Raises:
        ConfigError: a layer is not kept, or there are fewer than two.
    """
    chosen = tuple(sorted(set(source.layers if layers is None else layers)))
    absent = [layer for layer in chosen if layer not in source.layers]
    if absent:
        raise ConfigError(
            f"layer {absent[0]} is not kept; there are layers {', '.join(map(str, source.layers))}"
        )
    if len(chosen) < 2:
        raise ConfigError(f"an analysis across layers needs at least two layers; got {len(chosen)}")
    return chosen


def kind_spans(layout: TokenLayout, kinds: Sequence[TokenKind]) -> dict[TokenKind, slice]:
    """Where each of the kept kinds stands on the token axis of what `read` returns."""
    spans: dict[TokenKind, slice] = {}
    start = 0
    for kind in layout.kinds:
        if kind in kinds:
            spans[kind] = slice(start, start + layout.count(kind))
            start += layout.count(kind)
    return spans


def read_batches(
    source: LayerSource,
    rows: RowArray,
    layers: Sequence[int],
    kinds: Sequence[TokenKind],
    memory_bytes: int = DEFAULT_BYTES,
) -> Iterator[Batch]:
    """The rows in order, as many at a time as keep `COPIES` float32 copies of them within `memory_bytes`."""
    num_tokens = sum(source.layout.count(kind) for kind in kinds)
    row_bytes = 4 * len(layers) * num_tokens * source.dim
    size = max(1, memory_bytes // (COPIES * row_bytes))
    for start in range(0, len(rows), size):
        yield Batch(start, source.read(rows[start : start + size], layers, kinds))
