"""The real activations that every format of the benchmark is made of, and what each must give back.

A float32 store in; one `.npy` in the work folder, float32 (rows, layers, tokens, dim), from which every
format is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import torch

from activault.store import Store, open_store

BATCH_ROWS: Final = 64
BLOCK_ROWS: Final = 128
"""Rows that a sequential reader asks for at a time: the reference's chunk."""
SPAN: Final = range(8)
"""Layers 0 to 7, the span of the reference's first phase."""
ONE_LAYER: Final = range(7, 8)
Precision = Literal["float32", "bfloat16", "float16", "int8"]
MOST_LOST: Final = 1e-3
"""Share of a layer's variance that int8 may lose over all rows: the format's bound, R2 >= 0.999."""
_MOST_LOST_IN_FEW: Final = 5e-3
"""In a few rows, whose variance is another one than the store's."""


@dataclass(frozen=True)
class Activations:
    """Where they are; opened anew in every process."""

    file: Path
    store: Path
    """The store that they were read from: it gives ours its manifest and its keys."""

    @property
    def values(self) -> npt.NDArray[np.float32]:
        """(rows, layers, tokens, dim), mapped; never held, since it would be pickled with this."""
        return _mapped(self.file)

    @property
    def num_rows(self) -> int:
        """Rows taken from the store."""
        return len(self.values)

    def block(self, start: int, num_rows: int = BLOCK_ROWS) -> torch.Tensor:
        """(n, layers, tokens, dim) float32, a copy."""
        return torch.from_numpy(self.values[start : start + num_rows].copy())

    def layer(self, start: int, stop: int, place: int) -> npt.NDArray[np.float32]:
        """(n, tokens, dim) of one layer."""
        return self.values[start:stop, place]

    def starts(self, num_rows: int = BLOCK_ROWS) -> range:
        """First rows of all blocks."""
        return range(0, self.num_rows, num_rows)


@cache
def _mapped(file: Path) -> npt.NDArray[np.float32]:
    # "c": torch wants memory that may be written; nothing is.
    return np.asarray(np.load(file, mmap_mode="c"))


def take(store_path: Path, work: Path, num_rows: int | None, *, rounded: bool = False) -> Activations:
    """Read a float32 store's rows into `work`, once; a later run finds them there.

    `rounded` takes stores of any dtype too, where what is measured is not how well values compress.

    Raises:
        SystemExit: the store's values are rounded already, so that peers in float32 would be flattered.
    """
    store = open_store(store_path)
    exact = rounded or store.manifest.dtype == "float32"
    if not exact or len(store.layers) != store.manifest.teacher.num_blocks + 1:
        raise SystemExit(
            "the benchmark takes all layers of a float32 store (rounded values compress better than real "
            f"ones); {store_path.name} holds {len(store.layers)} layers of {store.manifest.dtype}; "
            "extract it with --dtype float32"
        )
    rows = store.valid_rows[:num_rows]
    file = work / f"activations-{store.digest[:12]}-{len(rows)}.npy"
    if not file.exists():
        _copy(store, rows, file)
    return Activations(file, store_path)


def _copy(store: Store, rows: Sequence[int] | npt.NDArray[np.int64], file: Path) -> None:
    shape = (len(rows), len(store.layers), store.manifest.tokens_per_layer, store.dim)
    partial = file.with_suffix(".partial")
    values = np.lib.format.open_memmap(partial, "w+", np.float32, shape)
    for start in range(0, len(rows), BLOCK_ROWS):
        values[start : start + BLOCK_ROWS] = store.read(rows[start : start + BLOCK_ROWS], store.layers)
    values.flush()
    partial.rename(file)


def to_bits(values: torch.Tensor) -> torch.Tensor:
    """Float32 as bfloat16 bit patterns, int16: what peers without the type hold."""
    return values.bfloat16().view(torch.int16)


def empty(*shape: int) -> torch.Tensor:
    """Room for float32 results; NumPy asks for huge pages, which torch does not.

    Faulting in 4 KiB pages of fresh results cost more than all reading here (1.5 against 8 GB/s), so the
    benchmark's own results for peers are made this way.
    """
    return torch.from_numpy(np.empty(shape, np.float32))


def as_16_bits(held: torch.Tensor) -> torch.Tensor:
    """The same values as a 16-bit float type, from int16 that are bfloat16's bits without a copy."""
    return held.view(torch.bfloat16) if held.dtype == torch.int16 else held


def widen(held: torch.Tensor) -> torch.Tensor:
    """Float32 from bfloat16, float16, or int16 that are bfloat16's bits."""
    return empty(*held.shape).copy_(as_16_bits(held))


def check(got: torch.Tensor, want: torch.Tensor, precision: Precision, what: str) -> None:
    """Assert that a reader gave back what was written, to the precision that is stored.

    int8 is bounded loosely here, since these are a few rows; `lost_by_layer` is of all of them.
    """
    assert got.dtype == torch.float32, f"{what} is {got.dtype}"
    assert got.shape == want.shape, f"{what} has the shape {tuple(got.shape)}, not {tuple(want.shape)}"
    if precision == "int8":
        spread = (want - want.mean(dim=(0, -2), keepdim=True)).square().sum()
        lost = float((got - want).square().sum() / spread.clamp(min=1e-9))
        assert lost < _MOST_LOST_IN_FEW, f"{what} loses {lost:.4f} of the variance"
    else:
        rounded = want if precision == "float32" else want.to(getattr(torch, precision)).float()
        assert torch.equal(got, rounded), f"{what} is not what was written"


def lost_by_layer(
    blocks: Iterable[torch.Tensor], want: npt.NDArray[np.float32], tokens: slice
) -> npt.NDArray[np.float64]:
    """(layers,): the share of the variance of some tokens that is lost over all rows, 1 - R2.

    Args:
        blocks: all rows in order, (n, layers, tokens, dim).
        want: (rows, layers, tokens, dim), what was written.
        tokens: patches, which are what int8 rounds.
    """
    num_rows, num_layers, _, dim = want.shape
    total, squares, lost = np.zeros((num_layers, dim)), np.zeros((num_layers, dim)), np.zeros(num_layers)
    start = 0
    for block in blocks:
        for layer in range(num_layers):
            values = want[start : start + len(block), layer, tokens].astype(np.float64)
            total[layer] += values.sum(axis=(0, 1))
            squares[layer] += np.square(values).sum(axis=(0, 1))
            lost[layer] += np.square(block[:, layer, tokens].numpy() - values).sum()
        start += len(block)
    assert start == num_rows, f"{start} rows in order"
    count = num_rows * len(range(*tokens.indices(want.shape[2])))
    return lost / (squares - np.square(total) / count).sum(axis=1)
