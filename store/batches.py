"""A batch, and the memory that batches and pools are in.

Tokens (batch, layers, tokens, dim) with their rows and labels; to a device without waiting where the memory
is pinned, and there to another dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from .recycling import Recycler

__all__ = ["Batch", "Memory", "PinnedMemory", "RecycledMemory"]


@dataclass(frozen=True)
class Batch:
    """Rows of one step."""

    tokens: torch.Tensor
    """(batch, layers, tokens, dim) of the loader's dtype."""
    rows: torch.Tensor
    """(batch,) int64 row numbers."""
    labels: torch.Tensor
    """(batch,) int64 places in `Store.classes`; -1 where unknown."""
    num_global: int
    """Rows of all ranks at this step: a sum over the ranks is divided by it."""

    def __len__(self) -> int:
        return len(self.rows)

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Batch:
        """The batch on a device, its tokens cast there.

        16-bit tokens cross in half the time, and from pinned memory the copy goes on while the caller does:
        work of the same stream waits for it by itself, and the memory is not used again before it is over.
        """
        tokens = self.tokens.to(device, non_blocking=True)
        if dtype is not None:
            tokens = tokens.to(dtype)
        rows, labels = (part.to(device, non_blocking=True) for part in (self.rows, self.labels))
        return Batch(tokens, rows, labels, self.num_global)


class Memory(Protocol):
    """Hands out tensors whose memory is used again once nobody looks into them; for many threads."""

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor of any content."""


class RecycledMemory:
    """Memory of the process.

    Args:
        most_free: blocks that are kept for use again.
    """

    def __init__(self, most_free: int) -> None:
        self._blocks = Recycler(most_free)

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor of any content."""
        block = self._blocks.array((*shape[:-1], shape[-1] * dtype.itemsize), np.dtype(np.uint8))
        return torch.from_numpy(block).view(dtype)


class PinnedMemory:
    """Page-locked memory, which a GPU fetches from by itself.

    It is torch's own to use again: only torch knows when a copy that somebody did not wait for is over. That
    holds for torch's own tensors and views of them, not for NumPy's arrays turned into tensors.
    """

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor of any content."""
        return torch.empty(shape, dtype=dtype, pin_memory=True)
