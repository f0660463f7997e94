"""The contract of a format under test, and the batches of those that can take any row at any time.

Float32 (rows, layers, tokens, dim) goes in; every way of reading gives torch float32 of the same layout back.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from activations import BATCH_ROWS, Activations, Precision, as_16_bits, widen
from torch.utils.data import DataLoader, Dataset


def num_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Format(ABC):
    """One way to keep activations, opened for reading as it is first needed.

    Args:
        folder: where it lies; nothing else does.
        source: what it is written from.
    """

    name: ClassVar[str] = ""
    precision: Precision = "bfloat16"
    workers: ClassVar[tuple[int, ...]] = (0,)
    """Numbers of worker processes that a shuffled epoch is tried with; the best one counts."""
    notes: ClassVar[str] = ""
    """What the table must say of it."""

    def __init__(self, folder: Path, source: Activations) -> None:
        self.folder = folder
        self.source = source

    def plan(self) -> None:  # noqa: B027
        """What comes once before writing and does not grow with the rows; it is not timed."""

    @abstractmethod
    def write(self) -> None:
        """All rows and layers into the folder, which is there and empty."""

    @abstractmethod
    def sequential(self, layers: range) -> Iterator[torch.Tensor]:
        """All rows in order, in blocks (n, layers, tokens, dim)."""

    @abstractmethod
    def cls(self) -> torch.Tensor:
        """(rows, all layers, dim): the CLS tokens."""

    @abstractmethod
    def rows(self, numbers: Sequence[int], layers: range) -> torch.Tensor:
        """(n, layers, tokens, dim) of rows anywhere."""

    @abstractmethod
    def shuffled(self, layers: range, num_workers: int) -> Iterator[torch.Tensor]:
        """One epoch in random order, in batches (64, layers, tokens, dim); the last may be smaller."""

    def shuffled_16_bits(self, layers: range, num_workers: int) -> Iterator[torch.Tensor]:
        """The same in the 16 bits that are stored, for a consumer that casts on its device."""
        raise NotImplementedError(f"{self.name} holds no 16-bit floats")

    def close(self) -> None:  # noqa: B027
        """Let go of what was read ahead."""

    def num_bytes(self) -> int:
        """Bytes on disk."""
        return sum(file.stat().st_size for file in self.folder.rglob("*") if file.is_file())


class RandomAccess(Format):
    """A format whose rows can be read one by one: a shuffled epoch is a permutation.

    In the process itself rows are widened as they are copied; torch's DataLoader gets whole batches of 16-bit
    values from its workers (`__getitems__`), so that half the bytes pass between processes.
    """

    workers = (0, num_cores())

    @abstractmethod
    def held(self, numbers: Sequence[int], layers: range) -> torch.Tensor:
        """(n, layers, tokens, dim) of rows anywhere, in 16 bits as stored."""

    def rows(self, numbers: Sequence[int], layers: range) -> torch.Tensor:  # noqa: D102
        return widen(self.held(numbers, layers))

    def shuffled(self, layers: range, num_workers: int) -> Iterator[torch.Tensor]:  # noqa: D102
        if num_workers == 0:
            order = np.random.default_rng().permutation(self.source.num_rows).tolist()
            for start in range(0, len(order), BATCH_ROWS):
                yield self.rows(order[start : start + BATCH_ROWS], layers)
            return
        for batch in self._worked(layers, num_workers):
            yield widen(batch)

    def shuffled_16_bits(self, layers: range, num_workers: int) -> Iterator[torch.Tensor]:  # noqa: D102
        if num_workers == 0:
            order = np.random.default_rng().permutation(self.source.num_rows).tolist()
            for start in range(0, len(order), BATCH_ROWS):
                yield as_16_bits(self.held(order[start : start + BATCH_ROWS], layers))
            return
        for batch in self._worked(layers, num_workers):
            yield as_16_bits(batch)

    def _worked(self, layers: range, num_workers: int) -> Iterator[torch.Tensor]:
        """Batches as held, from worker processes."""
        if not hasattr(self, "_loader"):
            self._loader = DataLoader(
                _Rows(type(self)(self.folder, self.source), layers),
                batch_size=BATCH_ROWS,
                shuffle=True,
                num_workers=num_workers,
                persistent_workers=True,
                collate_fn=_same,
            )
        yield from self._loader


class _Rows(Dataset[torch.Tensor]):
    def __init__(self, form: RandomAccess, layers: range) -> None:
        self._form = form
        self._layers = layers

    def __len__(self) -> int:
        return self._form.source.num_rows

    def __getitem__(self, row: int) -> torch.Tensor:
        return self._form.held([row], self._layers)

    def __getitems__(self, rows: list[int]) -> torch.Tensor:
        return self._form.held(rows, self._layers)


def _same(batch: Any) -> Any:
    """A batch that `__getitems__` has made already."""
    return batch
