"""The reference's store and its own loader (KempnerInstitute/raptor at ba3b53f, MIT).

Its loader is run from a checkout outside this repository. Without one, a plain zarr-python read of the same
layout stands for it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numcodecs
import numpy as np
import torch
import zarr
from activations import BATCH_ROWS, BLOCK_ROWS
from formats import Format


class Reference(Format):
    """Zarr v2, one float32 array (rows, layers, tokens, dim), chunks (128, 1, tokens, dim), zstd 3, shuffle.

    Settings are its own: 8 threads, a queue of 30 batches. Its shuffle takes runs of 64 rows in random order,
    and its loader calls `pin_memory`, which fails without a GPU and is left out there.
    """

    name = "the reference"
    precision = "float32"
    checkout: ClassVar[Path | None] = None

    def write(self) -> None:  # noqa: D102
        values = self.source.values
        array: Any = zarr.create_array(
            str(self.folder / "activations.zarr"),
            shape=values.shape,
            chunks=(BLOCK_ROWS, 1, *values.shape[2:]),
            dtype=np.float32,
            compressors=numcodecs.Blosc(cname="zstd", clevel=3, shuffle=numcodecs.Blosc.SHUFFLE),
            zarr_format=2,
        )
        for start in self.source.starts():
            array[start : start + BLOCK_ROWS] = self.source.block(start).numpy()

    @cached_property
    def _array(self) -> Any:
        return zarr.open(str(self.folder / "activations.zarr"), mode="r")

    def sequential(self, layers: range) -> Iterator[torch.Tensor]:  # noqa: D102
        for start in self.source.starts():
            yield torch.from_numpy(self._array[start : start + BLOCK_ROWS, layers.start : layers.stop])

    def cls(self) -> torch.Tensor:  # noqa: D102
        return torch.from_numpy(self._array[:, :, 0])

    def rows(self, numbers: Sequence[int], layers: range) -> torch.Tensor:  # noqa: D102
        order = np.argsort(numbers)
        found = self._array.oindex[np.asarray(numbers)[order], layers.start : layers.stop]
        return torch.from_numpy(found[np.argsort(order)])

    def shuffled(self, layers: range, num_workers: int) -> Iterator[torch.Tensor]:  # noqa: ARG002, D102
        if self.checkout is None:
            for start in np.random.default_rng().permutation(self.source.starts(BATCH_ROWS)).tolist():
                yield torch.from_numpy(self._array[start : start + BATCH_ROWS, layers.start : layers.stop])
            return
        loader = loader_class(self.checkout)(
            str(self.folder / "activations.zarr"),
            layers.start,
            layers.stop - 1,
            batch_size=BATCH_ROWS,
            num_workers=8,
            queue_size=30,
            device="cuda" if torch.cuda.is_available() else "cpu",
        )
        batches = iter(loader)  # without end: an epoch is as many as there are runs
        for _ in self.source.starts(BATCH_ROWS):
            yield next(batches)
        loader.close()
        batches.close()


def loader_class(checkout: Path) -> Any:
    """`AsynchZarrLoader` of the checkout."""
    if not torch.cuda.is_available():
        torch.Tensor.pin_memory = _unpinned  # type: ignore[assignment, method-assign]
    folder = str(checkout / "raptor")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module("dataloader").AsynchZarrLoader


def _unpinned(tensor: torch.Tensor, *_: Any) -> torch.Tensor:
    return tensor
