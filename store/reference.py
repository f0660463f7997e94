"""The reference's layout: one Zarr v2 array of float32, rows x layers x tokens x width, opened for reading.

    reference = open_reference(Path("activations.zarr"))
    reference.read(rows=range(0, 128), layers=range(0, 1))  # float32 (128, 1, tokens, dim), and what is wrong

KempnerInstitute/raptor at ba3b53f (data/precompute_dinov2_act.py) writes (N, 13, 261, 768) in chunks of
(128, 1, 261, 768) through Blosc. Layer 0 is the embedded input, tokens stand as CLS, registers, patches, rows
in the order of a shuffle with seed 42; there are no ids, labels or attributes. Its writer goes on after an
error, so that chunks may never have been written, and Zarr reads those as zeros: here, presence is told from
the files.

Only codecs that cannot run code are accepted: numcodecs would as well unpickle what a `.zarray` asks it to.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .errors import ConfigError, NotAStoreError, StorageError
from .files import parse_json

__all__ = ["Reference", "RowFault", "Span", "open_reference"]

Float32 = npt.NDArray[np.float32]
_ZARRAY: Final = ".zarray"
_MOST_METADATA: Final = 1 << 20
_MOST_CHUNK: Final = 4 << 30
_CODECS: Final = frozenset({"blosc", "zstd", "lz4", "zlib", "gzip", "bz2", "lzma"})
_DAMAGED: Final = (RuntimeError, ValueError, EOFError, zlib.error, lzma.LZMAError)
"""What numcodecs and zarr raise for a chunk that cannot be decoded; disks that fail raise OSError."""


@dataclass(frozen=True)
class Span:
    """A block of rows and of places on the layer axis that is made of whole chunks."""

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
    """A reference-layout array; made by `open_reference`."""

    path: Path
    shape: tuple[int, int, int, int]
    """Rows, layers, tokens, width."""
    chunks: tuple[int, int, int, int]
    separator: str
    fill: float | None
    present: npt.NDArray[np.bool_]
    """(row chunks, layer chunks): whether all of the files of a block are there."""
    fingerprint: str
    """Hash of `.zarray` and of the names and sizes of all chunk files."""

    @property
    def num_rows(self) -> int:
        """Rows of the array, written or not."""
        return self.shape[0]

    @property
    def name(self) -> str:
        """Last part of its path."""
        return self.path.resolve().name

    @cached_property
    def _array(self) -> Any:
        import zarr

        return zarr.open_array(str(self.path), mode="r", zarr_format=2)

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

        The values are None where nothing can be read.

        Raises:
            StorageError: the disk cannot be read.
        """
        where, place = (
            _place(span.layers),
            (span.rows.start // self.chunks[0], span.layers.start // self.chunks[1]),
        )
        if not self.present[place]:
            reason = f"{where} was never written to the source"
            return None, [RowFault(row, "missing", reason) for row in span.rows]
        try:
            values = self._array[span.rows.start : span.rows.stop, span.layers.start : span.layers.stop]
        except _DAMAGED as exc:
            reason = f"{where} of the source cannot be decoded ({str(exc)[:100]})"
            return None, [RowFault(row, "damaged", reason) for row in span.rows]
        except OSError as exc:
            raise StorageError(
                f"{self.path} cannot be read ({exc.strerror or exc}); mend the disk or the mount"
            ) from exc
        return values, list(self._faults(np.asarray(values), span))

    def _faults(self, values: Float32, span: Span) -> Iterator[RowFault]:
        """Rows that hold a NaN or an infinity in a layer, or nothing but the fill value."""
        for place, row in product(range(len(span.layers)), range(len(span.rows))):
            tokens, where = values[row, place], _place(span.layers[place : place + 1])
            if not np.isfinite(tokens).all():
                yield RowFault(span.rows[row], "non-finite", f"{where} holds a NaN or an infinity")
            elif self.fill is not None and tokens.flat[0] == self.fill and (tokens == self.fill).all():
                yield RowFault(
                    span.rows[row], "missing", f"{where} holds nothing but the fill value {self.fill}"
                )


def _place(layers: range) -> str:
    """In a reason: where on the layer axis."""
    return f"[:, {layers.start}]" if len(layers) == 1 else f"[:, {layers.start}:{layers.stop}]"


def open_reference(path: Path) -> Reference:
    """Open a reference-layout array on this machine.

    Raises:
        ConfigError: it is a URL.
        NotAStoreError: it is something else than one Zarr v2 array of float32 with four axes.
        StorageError: it cannot be read.
    """
    if "://" in str(path) or str(path).startswith(("http:/", "s3:/", "https:/")):
        raise ConfigError(
            f"a reference-layout store is read from a folder; got {path}; copy it to this machine first"
        )
    try:
        return _opened(path)
    except OSError as exc:
        raise StorageError(
            f"{path} cannot be read ({exc.strerror or exc}); grant the right to read it"
        ) from exc


def _opened(path: Path) -> Reference:
    file = path / _ZARRAY
    if not file.is_file():
        raise NotAStoreError(_what_else(path))
    if file.stat().st_size > _MOST_METADATA:
        raise NotAStoreError(f"{file} is at most {_MOST_METADATA} bytes; it is larger")
    text = file.read_bytes()
    metadata = parse_json(text, str(file))
    if not isinstance(metadata, dict):
        raise NotAStoreError(f"{file} must be a JSON object; got {str(metadata)[:100]}")
    _check(file, metadata)
    shape, chunks = tuple(metadata["shape"]), tuple(metadata["chunks"])
    separator = metadata.get("dimension_separator", ".")
    files = dict(sorted(_chunk_files(path, separator)))
    state = hashlib.sha256(text)
    for name, size in files.items():
        state.update(f"\n{name} {size}".encode())
    fill = metadata.get("fill_value")
    return Reference(
        path=path,
        shape=shape,
        chunks=chunks,
        separator=separator,
        fill=float(fill) if isinstance(fill, int | float) else None,
        present=_presence(shape, chunks, separator, files),
        fingerprint=state.hexdigest(),
    )


def _what_else(path: Path) -> str:
    """What is there instead of a Zarr v2 array."""
    if not path.exists():
        return f"{path} does not exist; name the folder of the reference's array (it holds a {_ZARRAY})"
    if (path / "zarr.json").exists():
        return f"{path} is Zarr v3; import reads the reference's layout, which is one Zarr v2 array"
    inside = (
        sorted(str(file.parent.relative_to(path)) for file in path.glob(f"*/{_ZARRAY}"))
        if path.is_dir()
        else []
    )
    if inside:
        return f"{path} is a group; name one of its arrays: {', '.join(inside[:8])}"
    return f"{path} is not a Zarr v2 array (no {_ZARRAY} in it); name the folder of the reference's array"


def _check(file: Path, metadata: dict[str, Any]) -> None:
    """Every claim that something is read or allocated by.

    Raises:
        NotAStoreError: one is not that of the reference's layout.
    """
    compressor = metadata.get("compressor")
    known = compressor is None or (isinstance(compressor, dict) and compressor.get("id") in _CODECS)
    shape, chunks = metadata.get("shape"), metadata.get("chunks")
    rules = {
        "zarr_format": (metadata.get("zarr_format") == 2, "2"),
        "shape": (_four(shape), "rows, layers, tokens, width"),
        "chunks": (_four(chunks), "four numbers"),
        "dtype": (metadata.get("dtype") == "<f4", "'<f4', float32"),
        "order": (metadata.get("order") == "C", "'C'"),
        "filters": (not metadata.get("filters"), "null"),
        "compressor": (known, f"null or one of {', '.join(sorted(_CODECS))}"),
        "dimension_separator": (metadata.get("dimension_separator", ".") in (".", "/"), "'.' or '/'"),
    }
    for name, (holds, rule) in rules.items():
        if not holds:
            raise NotAStoreError(
                f"{file}: {name} of the reference's layout is {rule}; got {str(metadata.get(name))[:100]}"
            )
    assert isinstance(chunks, list)
    if 4 * int(np.prod([int(length) for length in chunks], dtype=object)) > _MOST_CHUNK:
        raise NotAStoreError(f"{file}: a chunk is at most {_MOST_CHUNK} bytes; got the shape {chunks}")


def _four(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 4
        and all(type(length) is int and 1 <= length <= 1 << 40 for length in value)
    )


def _chunk_files(path: Path, separator: str) -> Iterator[tuple[str, int]]:
    """Names of chunks and their files' sizes; anything else in the folder is left out."""
    if separator == ".":
        with os.scandir(path) as entries:
            for entry in entries:
                if _numbers(entry.name, separator) and entry.is_file():
                    yield entry.name, entry.stat().st_size
        return
    for folder, _, names in os.walk(path):
        for name in names:
            file = Path(folder, name)
            key = file.relative_to(path).as_posix()
            if _numbers(key, separator):
                yield key, file.stat().st_size


def _numbers(key: str, separator: str) -> tuple[int, ...]:
    """The place of a chunk by its name; nothing if it is no chunk's."""
    parts = key.split(separator)
    if len(parts) != 4 or not all(part.isdecimal() and part.isascii() for part in parts):
        return ()
    return tuple(map(int, parts))


def _presence(
    shape: tuple[int, ...], chunks: tuple[int, ...], separator: str, files: dict[str, int]
) -> npt.NDArray[np.bool_]:
    counts = [-(-length // chunk) for length, chunk in zip(shape, chunks, strict=True)]
    if counts[0] * counts[1] > max(64 * len(files), 1 << 20):
        raise NotAStoreError(
            f"the array says that it has {counts[0]} x {counts[1]} chunks of rows and layers; there are "
            f"{len(files)} files"
        )
    found = np.zeros(counts[:2], np.int64)
    for name in files:
        place = _numbers(name, separator)
        if all(index < count for index, count in zip(place, counts, strict=True)):
            found[place[:2]] += 1
    return np.asarray(found == counts[2] * counts[3])
