"""The reference's layout: one Zarr v2 array of float32, rows x layers x tokens x width, opened for reading.

    reference = open_reference(Path("activations.zarr"))
    reference.read(Span(range(0, 128), range(0, 1)))  # float32 (128, 1, tokens, dim), and what is wrong

KempnerInstitute/raptor at ba3b53f (data/precompute_dinov2_act.py) writes (N, 13, 261, 768) in chunks of
(128, 1, 261, 768) through Blosc. Layer 0 is the embedded input, tokens stand as CLS, registers, patches, rows
in the order of a shuffle with seed 42; there are no ids, labels or attributes. Its writer goes on after an
error, so that chunks may never have been written, and Zarr reads those as zeros, at any time: here, chunk
files are read one by one, and one that is missing is an error or a bad row, never zeros.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from .errors import ConfigError, NotAStoreError
from .reference_codec import DamagedChunk
from .reference_files import ChunkFiles, list_chunks
from .reference_metadata import MAX_METADATA_BYTES, ArrayMetadata, parse_metadata
from .storage import storage_error

__all__ = ["Reference", "RowFault", "Span", "open_reference"]

Float32 = npt.NDArray[np.float32]
_log: Final = logging.getLogger(__name__)
_ZARRAY: Final = ".zarray"
_MOST_TOLD: Final = 8
"""Names that a message lists."""


@dataclass(frozen=True)
class Span:
    """A block of rows and of places on the layer axis that lies within one row of chunks."""

    rows: range
    layers: range


@dataclass(frozen=True)
class RowFault:
    """Why a row of the source has no activations."""

    row: int
    status: str
    """`missing`, `damaged` or `non-finite`."""
    reason: str


@dataclass(frozen=True)
class Reference:
    """A reference-layout array; made by `open_reference`. Used by several threads at once."""

    path: Path
    metadata: ArrayMetadata
    files: ChunkFiles
    fingerprint: str
    """Hash of `.zarray` and of the names and sizes of all chunk files."""

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Rows, layers, tokens, width."""
        return self.metadata.shape

    @property
    def chunks(self) -> tuple[int, int, int, int]:
        """Shape of a chunk."""
        return self.metadata.chunks

    @property
    def num_rows(self) -> int:
        """Rows of the array, written or not."""
        return self.shape[0]

    @property
    def name(self) -> str:
        """Last part of its path, as text that can be stored: a name may be any bytes."""
        return os.fsencode(self.path.resolve().name).decode("utf-8", "backslashreplace")

    def spans(self, rows: range) -> Iterator[Span]:
        """Blocks of whole chunks that cover `rows`, without the rows that are not asked for."""
        high, deep = self.chunks[:2]
        for first in range(rows.start // high * high, rows.stop, high):
            for layer in range(0, self.shape[1], deep):
                yield Span(
                    range(max(first, rows.start), min(first + high, rows.stop)),
                    range(layer, min(layer + deep, self.shape[1])),
                )

    def read(self, span: Span) -> tuple[Float32 | None, list[RowFault]]:
        """Values of a block, float32 (rows, layers, tokens, dim), and its rows that have no activations.

        The values are None where nothing can be read, and may be read-only.

        Raises:
            StoreMismatchError: a file of the block was changed, removed or written since it was opened.
            StorageError: the disk cannot be read.
        """
        where = _place(span.layers)
        row, layer = span.rows.start // self.chunks[0], span.layers.start // self.chunks[1]
        if not self.files.present[row, layer]:
            for name, _ in self.files.names(row, layer):
                self.files.refuse_changed(name)
            reason = f"{where} was never written to the source"
            return None, [RowFault(row, "missing", reason) for row in span.rows]
        try:
            values = self._assembled(span, row, layer)
        except DamagedChunk as exc:
            reason = f"{where} of the source cannot be decoded ({exc})"
            return None, [RowFault(row, "damaged", reason) for row in span.rows]
        return values, list(self._faults(values, span))

    def _assembled(self, span: Span, row: int, layer: int) -> Float32:
        """A block of the chunks that lie beside each other along tokens and width."""
        high, deep, long, wide = self.chunks
        part = (
            slice(span.rows.start - row * high, span.rows.stop - row * high),
            slice(span.layers.start - layer * deep, span.layers.stop - layer * deep),
        )
        chunks = ((place, self._chunk(name)[part]) for name, place in self.files.names(row, layer))
        if self.metadata.counts[2:] == (1, 1):
            ((_, chunk),) = chunks
            return chunk[:, :, : self.shape[2], : self.shape[3]]
        values = np.empty((len(span.rows), len(span.layers), *self.shape[2:]), np.float32)
        for (token, channel), chunk in chunks:
            into = values[:, :, token * long : (token + 1) * long, channel * wide : (channel + 1) * wide]
            into[:] = chunk[:, :, : into.shape[2], : into.shape[3]]
        return values

    def _chunk(self, name: str) -> Float32:
        codec, num_bytes = self.metadata.codec, self.files.found[name].num_bytes
        if num_bytes > codec.most_bytes:
            raise DamagedChunk(f"its file has {num_bytes} bytes, more than a chunk can have")
        return codec.decode(self.files.read(name))

    def _faults(self, values: Float32, span: Span) -> Iterator[RowFault]:
        """Rows that hold a NaN or an infinity in a layer, or nothing but the fill value."""
        fill = self.metadata.fill
        for place, row in product(range(len(span.layers)), range(len(span.rows))):
            tokens, where = values[row, place], _place(span.layers[place : place + 1])
            if not np.isfinite(tokens).all():
                yield RowFault(span.rows[row], "non-finite", f"{where} holds a NaN or an infinity")
            elif fill is not None and tokens.flat[0] == fill and (tokens == fill).all():
                yield RowFault(span.rows[row], "missing", f"{where} holds nothing but the fill value {fill}")


def _place(layers: range) -> str:
    """In a reason: where on the layer axis."""
    return f"[:, {layers.start}]" if len(layers) == 1 else f"[:, {layers.start}:{layers.stop}]"


def open_reference(path: Path) -> Reference:
    """Open a reference-layout array on this machine; files in it that are no chunks are logged by name.

    Raises:
        ConfigError: it is a URL.
        NotAStoreError: it is something else than one Zarr v2 array of float32 with four axes, has a
            compressor that cannot be used, or something else than a file in the place of a chunk.
        StorageError: it cannot be read.
    """
    if "://" in str(path) or str(path).startswith(("http:/", "s3:/", "https:/")):
        raise ConfigError(
            f"a reference-layout store is read from a folder; got {path}; copy it to this machine first"
        )
    try:
        return _opened(path)
    except OSError as exc:
        raise storage_error(exc, str(exc.filename or path)) from exc


def _opened(path: Path) -> Reference:
    file = path / _ZARRAY
    if not file.is_file():
        raise NotAStoreError(_what_else(path))
    if file.stat().st_size > MAX_METADATA_BYTES:
        raise NotAStoreError(f"{file} is at most {MAX_METADATA_BYTES} bytes; it is larger")
    text = file.read_bytes()
    metadata = parse_metadata(text, file)
    files = list_chunks(path, metadata.separator, metadata.counts)
    if files.strangers:
        _log.warning(_told(path, files.strangers))
    return Reference(path, metadata, files, files.fingerprint(text))


def _told(path: Path, strangers: tuple[str, ...]) -> str:
    names = ", ".join(map(ascii, strangers[:_MOST_TOLD]))
    more = f" and {len(strangers) - _MOST_TOLD} more" if len(strangers) > _MOST_TOLD else ""
    return (
        f"{path} holds what is no chunk of the array and is not imported: {names}{more}; a chunk is named "
        "like 0.12.0.0 or 0/12/0/0, as dimension_separator says, without leading zeros, and within the shape"
    )


def _what_else(path: Path) -> str:
    """What is there instead of a Zarr v2 array."""
    if not path.exists():
        return f"{path} does not exist; name the folder of the reference's array (it holds a {_ZARRAY})"
    if (path / "zarr.json").exists():
        return f"{path} is Zarr v3; import reads the reference's layout, which is one Zarr v2 array"
    depths = ("*", "*/*") if (path / ".zgroup").exists() else ("*",)
    inside = sorted(
        str(file.parent.relative_to(path)) for depth in depths for file in path.glob(f"{depth}/{_ZARRAY}")
    )
    if inside:
        return f"{path} is a group; name one of its arrays: {', '.join(inside[:_MOST_TOLD])}"
    return f"{path} is not a Zarr v2 array (no {_ZARRAY} in it); name the folder of the reference's array"
