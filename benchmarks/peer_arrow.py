"""Arrow through Hugging Face `datasets`: one memory-mapped table, a column a layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from activations import BLOCK_ROWS, Activations, empty, to_bits, widen
from datasets import Array2D, Dataset, Features, concatenate_datasets
from formats import RandomAccess


class Arrow(RandomAccess):
    """A column a layer, `Array2D` of bfloat16 bits, through the NumPy format.

    The library's guide: arrays of a fixed shape as `Array2D` features, so that a batch becomes one array
    without lists; `with_format` rather than Python objects; `select_columns` for what is wanted; a batch by a
    list of row numbers in one call (`__getitems__` for the DataLoader). The torch format would widen 16-bit
    integers to 64 (float16 through it was 0.3 times as fast), so NumPy's is asked for int16.
    """

    name = "Arrow (datasets), bfloat16 bits"

    def write(self) -> None:  # noqa: D102
        _, num_layers, *token = self.source.values.shape
        features = Features({_column(layer): Array2D(tuple(token), "int16") for layer in range(num_layers)})
        Dataset.from_generator(
            _samples,
            features=features,
            cache_dir=str(self.folder),
            gen_kwargs={"source": self.source},
            writer_batch_size=64,
        )

    @cached_property
    def _table(self) -> Any:
        files = sorted(self.folder.rglob("*.arrow"))
        return concatenate_datasets([Dataset.from_file(str(file)) for file in files])

    def _columns(self, layers: range) -> Any:
        if not hasattr(self, "_selected"):
            self._selected: dict[range, Any] = {}
        if layers not in self._selected:
            selected = self._table.select_columns([_column(layer) for layer in layers])
            self._selected[layers] = selected.with_format("numpy", dtype=np.int16)
        return self._selected[layers]

    def sequential(self, layers: range) -> Iterator[torch.Tensor]:  # noqa: D102
        for start in self.source.starts():
            yield _widened(self._columns(layers)[start : start + BLOCK_ROWS], layers)

    def cls(self) -> torch.Tensor:  # noqa: D102
        layers = range(self.source.values.shape[1])
        blocks = (self._columns(layers)[start : start + BLOCK_ROWS] for start in self.source.starts())
        return widen(torch.cat([_stacked(block, layers, np.s_[:, 0]) for block in blocks]))

    def held(self, numbers: Sequence[int], layers: range) -> torch.Tensor:  # noqa: D102
        return _stacked(self._columns(layers)[list(numbers)], layers, np.s_[:])

    def rows(self, numbers: Sequence[int], layers: range) -> torch.Tensor:  # noqa: D102
        return _widened(self._columns(layers)[list(numbers)], layers)


def _column(layer: int) -> str:
    return f"layer_{layer:02d}"


def _samples(source: Activations) -> Iterator[dict[str, Any]]:
    for start in source.starts(64):
        for row in to_bits(source.block(start, 64)).numpy():
            yield {_column(layer): values for layer, values in enumerate(row)}


def _stacked(block: dict[str, Any], layers: range, part: Any) -> torch.Tensor:
    """(rows, layers, ...) bits."""
    return torch.from_numpy(np.stack([block[_column(layer)][part] for layer in layers], axis=1))


def _widened(block: dict[str, Any], layers: range) -> torch.Tensor:
    """(rows, layers, tokens, dim) float32, without a copy of the bits in between."""
    first = block[_column(layers.start)]
    out = empty(len(first), len(layers), *first.shape[1:])
    for place, layer in enumerate(layers):
        out[:, place].copy_(torch.from_numpy(np.array(block[_column(layer)], copy=None)).view(torch.bfloat16))
    return out
