"""Peers that keep samples for streaming: a WebDataset of `.npy`, and litData.

Both shuffle shards or chunks and then samples in a buffer; neither is made for reading a few rows, or one
layer.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import litdata
import numpy as np
import numpy.typing as npt
import torch
import webdataset as wds
from activations import BATCH_ROWS, BLOCK_ROWS, Activations, as_16_bits, empty, to_bits, widen
from formats import Format, num_cores

Sample = dict[str, Any]


class WebDataset(Format):
    """Tar shards; a sample has one `.npy` of bfloat16 bits a layer, so that layers can be left out.

    Its guide: many shards, so that workers share them and their order is shuffled; a shuffle buffer of
    undecoded samples; batches made in the workers, passed on by `WebLoader(batch_size=None)`. Shards of
    32 samples (83 MB here) for 2 workers; a buffer of 128 samples, since one takes 2.6 MB. A tar is a stream:
    rows and layers that are not wanted are passed over by `select_files`, but the file is read to its end.
    """

    name = "WebDataset of .npy, bfloat16 bits"
    workers = (0, num_cores())
    notes = "64 random rows: by reading all shards"
    shard_rows, buffer_rows = 32, 128

    def write(self) -> None:  # noqa: D102
        for start in self.source.starts(self.shard_rows):
            block = to_bits(self.source.block(start, self.shard_rows)).numpy()
            with wds.TarWriter(str(self.folder / f"{start // self.shard_rows:05d}.tar")) as tar:
                for offset, row in enumerate(block):
                    layers = {f"{layer:02d}.npy": _npy(values) for layer, values in enumerate(row)}
                    tar.write({"__key__": f"{start + offset:09d}", **layers})

    def _samples(self, layers: range, keys: frozenset[str] | None = None, **options: Any) -> Any:
        shards = sorted(str(path) for path in self.folder.glob("*.tar"))
        wanted = _Wanted(frozenset(f"{layer:02d}.npy" for layer in layers), keys)
        return wds.WebDataset(shards, select_files=wanted, empty_check=False, **options)

    def sequential(self, layers: range) -> Iterator[torch.Tensor]:  # noqa: D102
        samples = self._samples(layers, shardshuffle=False)
        for batch in samples.batched(BLOCK_ROWS, collation_fn=partial(_stack, layers=layers)):
            yield widen(batch)

    def cls(self) -> torch.Tensor:  # noqa: D102
        layers = range(self.source.values.shape[1])
        samples = self._samples(layers, shardshuffle=False)
        rows = [np.stack([_array(sample, layer)[0] for layer in layers]) for sample in samples]
        return widen(torch.from_numpy(np.stack(rows)))

    def rows(self, numbers: Sequence[int], layers: range) -> torch.Tensor:  # noqa: D102
        keys = frozenset(f"{row:09d}" for row in numbers)
        found = {sample["__key__"]: sample for sample in self._samples(layers, keys, shardshuffle=False)}
        return widen(_stack([found[f"{row:09d}"] for row in numbers], layers))

    def shuffled(self, layers: range, num_workers: int) -> Iterator[torch.Tensor]:  # noqa: D102
        for batch in self._batches(layers, num_workers):
            yield widen(batch)

    def shuffled_16_bits(self, layers: range, num_workers: int) -> Iterator[torch.Tensor]:  # noqa: D102
        for batch in self._batches(layers, num_workers):
            yield as_16_bits(batch)

    def _batches(self, layers: range, num_workers: int) -> Any:
        if not hasattr(self, "_loaders"):
            self._loaders: dict[int, Any] = {}
        if num_workers not in self._loaders:
            samples = self._samples(layers, shardshuffle=100).shuffle(self.buffer_rows)
            batches = samples.batched(BATCH_ROWS, collation_fn=partial(_stack, layers=layers))
            self._loaders[num_workers] = wds.WebLoader(
                batches, batch_size=None, num_workers=num_workers, persistent_workers=num_workers > 0
            )
        return self._loaders[num_workers]


@dataclass(frozen=True)
class _Wanted:
    """Whether a file of a tar is read; pickled to workers."""

    parts: frozenset[str]
    keys: frozenset[str] | None

    def __call__(self, name: str) -> bool:
        key, _, part = name.partition(".")
        return part in self.parts and (self.keys is None or key in self.keys)


def _npy(values: npt.NDArray[np.int16]) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def _array(sample: Sample, layer: int) -> npt.NDArray[np.int16]:
    """One layer of an undecoded sample, (tokens, dim).

    A view behind the header, where webdataset's own decoder makes two copies.
    """
    data = sample[f"{layer:02d}.npy"]
    file = io.BytesIO(data[:256])
    np.lib.format.read_magic(file)
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    return np.frombuffer(data, dtype, offset=file.tell()).reshape(shape)


def _stack(samples: Sequence[Sample], layers: range) -> torch.Tensor:
    """(samples, layers, tokens, dim) bits."""
    first = _array(samples[0], layers.start)
    out = np.empty((len(samples), len(layers), *first.shape), np.int16)
    for place, sample in enumerate(samples):
        for layer in layers:
            out[place, layer - layers.start] = _array(sample, layer)
    return torch.from_numpy(out)


class LitData(Format):
    """litData's chunks; an item is one tensor of bfloat16 bits, (layers, tokens, dim).

    Its guide: chunks of 256 to 512 MB where an item takes a few MB (64 MB is for small ones); chunks of a
    local folder are mapped in place by themselves; `StreamingDataLoader` rather than torch's; `transform` in
    the worker, which here drops the layers that are not wanted before they are batched.
    """

    name = "litData, bfloat16 bits"
    workers = (0, num_cores())
    notes = "CLS and one layer: through whole items"

    def write(self) -> None:  # noqa: D102
        litdata.optimize(
            fn=partial(_item, self.source),
            inputs=list(range(self.source.num_rows)),
            output_dir=str(self.folder / "chunks"),
            chunk_bytes="256MB",
            num_workers=num_cores(),
            keep_data_ordered=True,
            verbose=False,
        )

    def _dataset(self, layers: range | None, *, shuffle: bool) -> Any:
        return litdata.StreamingDataset(
            str(self.folder / "chunks"), shuffle=shuffle, transform=partial(_keep, layers=layers)
        )

    @cached_property
    def _items(self) -> Any:
        return self._dataset(None, shuffle=False)

    def _read(self, numbers: Iterable[int], layers: range) -> torch.Tensor:
        items = [_keep(self._items[int(row)], layers) for row in numbers]
        out = empty(len(items), *items[0].shape)
        for place, item in enumerate(items):
            out[place].copy_(item.view(torch.bfloat16))
        return out

    def sequential(self, layers: range) -> Iterator[torch.Tensor]:  # noqa: D102
        for start in self.source.starts():
            yield self._read(range(start, min(start + BLOCK_ROWS, self.source.num_rows)), layers)

    def cls(self) -> torch.Tensor:  # noqa: D102
        rows = [self._items[row][:, 0] for row in range(self.source.num_rows)]
        return widen(torch.stack(rows))

    def rows(self, numbers: Sequence[int], layers: range) -> torch.Tensor:  # noqa: D102
        return self._read(numbers, layers)

    def shuffled(self, layers: range, num_workers: int) -> Iterator[torch.Tensor]:  # noqa: D102
        for batch in self._batches(layers, num_workers):
            yield widen(batch)

    def shuffled_16_bits(self, layers: range, num_workers: int) -> Iterator[torch.Tensor]:  # noqa: D102
        for batch in self._batches(layers, num_workers):
            yield as_16_bits(batch)

    def _batches(self, layers: range, num_workers: int) -> Any:
        if not hasattr(self, "_loaders"):
            self._loaders: dict[int, Any] = {}
        if num_workers not in self._loaders:
            self._loaders[num_workers] = litdata.StreamingDataLoader(
                self._dataset(layers, shuffle=True),
                batch_size=BATCH_ROWS,
                num_workers=num_workers,
                persistent_workers=num_workers > 0,
            )
        return self._loaders[num_workers]


def _item(source: Activations, row: int) -> torch.Tensor:
    return to_bits(source.block(row, 1)[0])


def _keep(item: torch.Tensor, layers: range | None) -> torch.Tensor:
    return item if layers is None else item[layers.start : layers.stop]
