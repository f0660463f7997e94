"""Peers that read any row at any time: a plain memory map, HDF5, and safetensors in shards.

All keep bfloat16: as its bits where the library has no such type.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import h5py
import numpy as np
import torch
from activations import BLOCK_ROWS, empty, to_bits, widen
from formats import RandomAccess
from safetensors import safe_open
from safetensors.torch import save_file

SHARD_ROWS = 64


class MemoryMap(RandomAccess):
    """One `.npy` of bfloat16 bits, (rows, layers, tokens, dim): nothing is decoded, nothing is checked."""

    name = "memory map, bfloat16"

    def write(self) -> None:
        """Through a mapping of the whole file."""
        held = np.lib.format.open_memmap(self._file, "w+", np.int16, self.source.values.shape)
        for start in self.source.starts():
            held[start : start + BLOCK_ROWS] = to_bits(self.source.block(start)).numpy()
        held.flush()

    @property
    def _file(self) -> Any:
        return self.folder / "activations.npy"

    @cached_property
    def _mapped(self) -> torch.Tensor:
        # "c": torch wants memory that may be written; nothing is.
        return torch.from_numpy(np.load(self._file, mmap_mode="c")).view(torch.bfloat16)

    def sequential(self, layers: range) -> Iterator[torch.Tensor]:  # noqa: D102
        for start in self.source.starts():
            yield widen(self._mapped[start : start + BLOCK_ROWS, layers.start : layers.stop])

    def cls(self) -> torch.Tensor:  # noqa: D102
        return widen(self._mapped[:, :, 0])

    def held(self, numbers: Sequence[int], layers: range) -> torch.Tensor:  # noqa: D102
        found = [self._mapped[row, layers.start : layers.stop] for row in numbers]
        return torch.stack(found)

    def rows(self, numbers: Sequence[int], layers: range) -> torch.Tensor:  # noqa: D102
        out = empty(len(numbers), len(layers), *self._mapped.shape[2:])
        for place, row in enumerate(numbers):
            out[place].copy_(self._mapped[row, layers.start : layers.stop])
        return out


class Hdf5(RandomAccess):
    """One HDF5 data set of bfloat16 bits, contiguous.

    h5py's guide: contiguous storage unless something needs chunks (compression, resizing), since every
    chunk that is touched is read whole through its cache; `read_direct` to save a copy; no lists of rows,
    which it reads slowly. Chunks of one row and layer with the chunk cache raised to 64 MiB were 0.8 times as
    fast, and 0.3 times with the lzf and shuffle filters on them.
    """

    name = "HDF5 (h5py), bfloat16 bits"

    def write(self) -> None:  # noqa: D102
        with h5py.File(self._file, "w", libver="latest") as file:
            data = file.create_dataset("activations", self.source.values.shape, np.int16)
            for start in self.source.starts():
                data[start : start + BLOCK_ROWS] = to_bits(self.source.block(start)).numpy()

    @property
    def _file(self) -> Any:
        return self.folder / "activations.h5"

    @cached_property
    def _data(self) -> Any:
        return h5py.File(self._file, "r", libver="latest")["activations"]

    def _read(self, shape: tuple[int, ...], places: Sequence[tuple[Any, Any]]) -> torch.Tensor:
        out = np.empty(shape, np.int16)
        for source, target in places:
            self._data.read_direct(out, source, target)
        return torch.from_numpy(out)

    def sequential(self, layers: range) -> Iterator[torch.Tensor]:  # noqa: D102
        num_rows, _, *token = self._data.shape
        for start in self.source.starts():
            stop = min(start + BLOCK_ROWS, num_rows)
            span = np.s_[start:stop, layers.start : layers.stop]
            yield widen(self._read((stop - start, len(layers), *token), [(span, np.s_[:])]))

    def cls(self) -> torch.Tensor:  # noqa: D102
        num_rows, num_layers, _, dim = self._data.shape
        return widen(self._read((num_rows, num_layers, dim), [(np.s_[:, :, 0], np.s_[:])]))

    def held(self, numbers: Sequence[int], layers: range) -> torch.Tensor:  # noqa: D102
        places = [(np.s_[row, layers.start : layers.stop], np.s_[place]) for place, row in enumerate(numbers)]
        return self._read((len(numbers), len(layers), *self._data.shape[2:]), places)


class Safetensors(RandomAccess):
    """Files of 64 rows, one bfloat16 tensor (rows, tokens, dim) a layer.

    The library's guide: `safe_open` once, then tensors by name without reading the rest; on a CPU a tensor
    is a view of the mapped file, which a row is copied from (`get_slice` a row and layer was 0.8 times as
    fast). Written without compression: the format has none.
    """

    name = "safetensors, bfloat16"

    def write(self) -> None:  # noqa: D102
        for start in self.source.starts(SHARD_ROWS):
            block = self.source.block(start, SHARD_ROWS).bfloat16()
            layers = {f"layer_{layer:02d}": block[:, layer].contiguous() for layer in range(block.shape[1])}
            save_file(layers, self.folder / f"{start // SHARD_ROWS:05d}.safetensors")

    @cached_property
    def _shards(self) -> list[list[torch.Tensor]]:
        shards = []
        for path in sorted(self.folder.glob("*.safetensors")):
            with safe_open(path, framework="pt") as file:
                shards.append([file.get_tensor(name) for name in sorted(file.keys())])
        return shards

    def sequential(self, layers: range) -> Iterator[torch.Tensor]:  # noqa: D102
        for shard in self._shards:
            out = empty(len(shard[0]), len(layers), *shard[0].shape[1:])
            for place, layer in enumerate(layers):
                out[:, place].copy_(shard[layer])
            yield out

    def cls(self) -> torch.Tensor:  # noqa: D102
        return torch.cat([torch.stack([layer[:, 0] for layer in shard], 1) for shard in self._shards]).float()

    def held(self, numbers: Sequence[int], layers: range) -> torch.Tensor:  # noqa: D102
        return self._gather(numbers, layers, torch.empty)

    def rows(self, numbers: Sequence[int], layers: range) -> torch.Tensor:  # noqa: D102
        return self._gather(numbers, layers, empty)

    def _gather(self, numbers: Sequence[int], layers: range, room: Any) -> torch.Tensor:
        shape = (len(numbers), len(layers), *self._shards[0][0].shape[1:])
        out = room(*shape) if room is empty else room(shape, dtype=torch.bfloat16)
        for place, row in enumerate(numbers):
            shard, local = divmod(row, SHARD_ROWS)
            for layer in layers:
                out[place, layer - layers.start].copy_(self._shards[shard][layer][local])
        return out
