"""Token sources held in memory, for analyses that need no disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from activault.store.layout import TokenKind, TokenLayout, parse_kinds


@dataclass
class ArraySource:
    """What `LayerSource` asks for, over one array (rows, layers, all tokens, D); notes every read."""

    array: np.ndarray
    layout: TokenLayout
    kinds: tuple[TokenKind, ...] = ()
    layers: tuple[int, ...] = ()
    bad: tuple[int, ...] = ()
    reads: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.kinds = self.kinds or self.layout.kinds
        self.layers = self.layers or tuple(range(self.array.shape[1]))

    @property
    def dim(self) -> int:
        return int(self.array.shape[-1])

    @property
    def valid_rows(self) -> np.ndarray:
        return np.setdiff1d(np.arange(len(self.array)), np.array(self.bad, dtype=np.int64))

    def read(
        self,
        rows: slice | Sequence[int] | np.ndarray,
        layers: Iterable[int],
        tokens: str | Sequence[TokenKind] = "all",
    ) -> np.ndarray:
        kinds = [kind for kind in parse_kinds(tokens, self.layout) if kind in self.kinds]
        columns = np.concatenate([np.r_[self.layout.span(kind)] for kind in kinds])
        places = [self.layers.index(layer) for layer in layers]
        found = self.array[rows][:, places][:, :, columns]
        self.reads.append(len(found))
        return np.ascontiguousarray(found, dtype=np.float32)


def random_source(
    rows: int = 12,
    layers: int = 6,
    dim: int = 8,
    registers: int = 2,
    grid: tuple[int, int] = (2, 3),
    seed: int = 0,
) -> ArraySource:
    """A random walk over the layers, so that near layers are alike."""
    layout = TokenLayout(num_cls=1, num_registers=registers, grid=grid)
    steps = np.random.default_rng(seed).normal(size=(rows, layers, layout.num_tokens, dim))
    return ArraySource(np.cumsum(steps, axis=1).astype(np.float32), layout)


@pytest.fixture
def source() -> ArraySource:
    return random_source()


@pytest.fixture
def make_source() -> Callable[..., ArraySource]:
    return random_source
