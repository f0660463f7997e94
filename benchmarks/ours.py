"""activault's own stores: each dtype, and uncompressed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, cached_property
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from activations import BATCH_ROWS, BLOCK_ROWS, Activations, Precision
from formats import Format

from activault.store import (
    ActivationLoader,
    Batch,
    Manifest,
    Outcome,
    Store,
    StoredDtype,
    choose_grid,
    create_store,
    open_store,
    plan_samples,
)
from activault.store.manifest import Quantisation
from activault.store.quantise import PatchMoments

CALIBRATION_ROWS = 256
POOL_BYTES = 256 << 20
"""Of the loader: its own 1 GiB would hold all of 250 rows, and reading never overlap with cutting batches."""


class Activault(Format):
    """A store of one dtype, written and read through the public interface; defaults but for the pool."""

    def __init__(
        self, folder: Path, source: Activations, dtype: Precision = "bfloat16", compression: str | None = None
    ) -> None:
        super().__init__(folder, source)
        self.precision = dtype
        self._compression = compression
        self._streams: dict[tuple[range, torch.dtype], tuple[Iterator[Batch], int]] = {}

    @property
    def path(self) -> Path:
        """Where the store lies."""
        return self.folder / "a.zarr"

    def _manifest(self, taken: Store) -> Manifest:
        """The source store's, for these rows and this dtype."""
        told = taken.manifest
        num_rows = self.source.num_rows
        shard_rows, chunk_rows = choose_grid(
            num_rows=num_rows,
            layout=told.layout,
            kinds=told.kinds,
            num_layers=len(told.layers),
            dim=told.dim,
            dtype=self.precision,
        )
        changes: dict[str, Any] = {
            "dtype": self.precision,
            "num_rows": num_rows,
            "shard_rows": shard_rows,
            "chunk_rows": chunk_rows,
        }
        if self.precision == "int8":
            changes["quantisation"] = _quantisation(self.source)
        if self._compression is not None:
            changes["compression"] = self._compression
        return Manifest.model_validate(told.model_dump() | changes)

    def plan(self) -> None:
        """The steps of int8, which are found once, whatever the size of the store."""
        if self.precision == "int8":
            _quantisation(self.source)

    def write(self) -> None:  # noqa: D102
        taken = open_store(self.source.store)
        manifest = self._manifest(taken)
        planned = taken.samples.slice(0, manifest.num_rows)
        samples = plan_samples(planned["key"].to_pylist(), planned["label"].to_pylist(), manifest.source.name)
        with create_store(self.path, manifest, samples, _no_teacher) as writer:
            for shard in writer.unfinished:
                buffer = writer.buffer(shard)
                rows = buffer.rows
                for place, layer in enumerate(manifest.layers):
                    buffer.write(layer, 0, self.source.layer(rows.start, rows.stop, place))
                writer.publish(buffer, [Outcome(status="ok", width=256, height=256) for _ in rows])
            writer.complete()

    @cached_property
    def _store(self) -> Store:
        return open_store(self.path)

    @property
    def patches(self) -> slice:
        """Which tokens of a layer are patches."""
        return self._store.layout.span("patches")

    def sequential(self, layers: range) -> Iterator[torch.Tensor]:  # noqa: D102
        for start in self.source.starts():
            stop = min(start + BLOCK_ROWS, self.source.num_rows)
            yield torch.from_numpy(self._store.read(slice(start, stop), layers))

    def cls(self) -> torch.Tensor:  # noqa: D102
        return torch.from_numpy(self._store.read(slice(None), self._store.layers, "cls")[:, :, 0])

    def rows(self, numbers: Sequence[int], layers: range) -> torch.Tensor:  # noqa: D102
        return torch.from_numpy(self._store.read(np.asarray(numbers), layers))

    def shuffled(self, layers: range, num_workers: int) -> Iterator[torch.Tensor]:  # noqa: ARG002, D102
        yield from self._epoch(layers, torch.float32)

    def shuffled_16_bits(self, layers: range, num_workers: int) -> Iterator[torch.Tensor]:  # noqa: ARG002, D102
        # float16 would not hold every value of other types.
        yield from self._epoch(layers, torch.float16 if self.precision == "float16" else torch.bfloat16)

    def _epoch(self, layers: range, dtype: torch.dtype) -> Iterator[torch.Tensor]:
        """The next epoch of a stream that stays open, as the workers of others do."""
        key = layers, dtype
        if key not in self._streams:
            loader = ActivationLoader(
                self._store, layers=layers, batch_size=BATCH_ROWS, pool_bytes=POOL_BYTES, dtype=dtype
            )
            self._streams[key] = loader.stream(), len(loader)
        stream, length = self._streams[key]
        for batch in islice(stream, length):
            yield batch.tokens

    def close(self) -> None:
        """End the streams."""
        self._streams.clear()

    def files(self, layers: range) -> list[Path]:
        """Array files of some layers, in the order that they were written."""
        return [
            file
            for layer in layers
            for file in sorted((self.path / f"layer_{layer:02d}").rglob("*"))
            if file.is_file() and file.name != "zarr.json"
        ]


@cache
def _quantisation(source: Activations) -> tuple[Quantisation, ...]:
    """One a layer, from as many rows as `activault extract` takes."""
    span = open_store(source.store).layout.span("patches")
    values = source.values[:CALIBRATION_ROWS]
    found = []
    for layer in range(values.shape[1]):
        moments = PatchMoments(values.shape[3])
        moments.add(values[:, layer, span])
        found.append(moments.quantisation(source.num_rows))
    return tuple(found)


def _no_teacher(folder: Path) -> None:
    # The teacher's weights are no part of what is measured.
    (folder / "config.json").write_text("{}")


def variants() -> list[tuple[str, Precision, str | None]]:
    """Name, dtype and compression of every kind of store that the installed activault writes."""
    names: list[tuple[str, Precision, str | None]] = [
        (f"activault {dtype}", dtype, None) for dtype in get_args(StoredDtype)
    ]
    if "compression" in Manifest.model_fields:
        names.append(("activault float16, uncompressed", "float16", "none"))
    return names
