"""What the `.zarray` of a reference-layout array says, every claim checked.

The file's bytes in; shapes, fill value and a codec that was tried out, or a refusal that names file, field,
value and remedy. Nothing is planned from an array that could not be decoded.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from .errors import CorruptStoreError, NotAStoreError
from .files import parse_json
from .reference_codec import ChunkCodec, UnusableCodec, make_codec

__all__ = ["MAX_METADATA_BYTES", "ArrayMetadata", "parse_metadata"]

MAX_METADATA_BYTES: Final = 1 << 20
_MOST_CHUNK: Final = 4 << 30
_MOST: Final = (1 << 28, 4097, 1 << 25, 1 << 20)
"""Rows, whose keys are made up in memory (ImageNet-21k has a twentieth); the others as format 1 has them."""
_REMEDY: Final = "import reads what the reference's own script writes; write the array again like that"
_NUMBERS: Final = ("NaN", "Infinity", "-Infinity")
"""Fill values that Zarr writes as words."""
_MOST_FLOAT32: Final = float(np.finfo(np.float32).max)

Four = tuple[int, int, int, int]


@dataclass(frozen=True)
class ArrayMetadata:
    """One Zarr v2 array of float32 with four axes."""

    shape: Four
    """Rows, layers, tokens, width."""
    chunks: Four
    separator: str
    """Between the numbers of a chunk's name."""
    fill: np.float32 | None
    """What Zarr reads where nothing was written; None if nothing says, and for NaN, which equals nothing."""
    codec: ChunkCodec

    @property
    def counts(self) -> tuple[int, ...]:
        """Chunks along each axis."""
        return tuple(-(-length // chunk) for length, chunk in zip(self.shape, self.chunks, strict=True))


def parse_metadata(text: bytes, file: Path) -> ArrayMetadata:
    """Read a `.zarray`.

    Args:
        text: its bytes.
        file: what to call it in an error.

    Raises:
        NotAStoreError: it is not that of the reference's layout.
    """
    try:
        value = parse_json(text, str(file))
    except CorruptStoreError as exc:
        raise NotAStoreError(
            f"{file} must be the JSON of a Zarr v2 array ({exc.__cause__}); {_REMEDY}"
        ) from exc
    if not isinstance(value, dict):
        raise NotAStoreError(f"{file} must be a JSON object; got {str(value)[:100]}; {_REMEDY}")
    _check(file, value)
    chunks: Four = tuple(value["chunks"])
    try:
        codec = make_codec(value["compressor"], chunks)
    except UnusableCodec as exc:
        raise _refusal(file, value, "compressor", str(exc)) from exc
    if codec.num_bytes > _MOST_CHUNK:
        raise NotAStoreError(
            f"{file}: a chunk is at most {_MOST_CHUNK} bytes; got the shape {list(chunks)}; {_REMEDY}"
        )
    return ArrayMetadata(
        shape=tuple(value["shape"]),
        chunks=chunks,
        separator=value.get("dimension_separator", "."),
        fill=_fill(file, value),
        codec=codec,
    )


def _refusal(file: Path, value: dict[str, Any], name: str, rule: str) -> NotAStoreError:
    got = repr(value[name])[:100] if name in value else "nothing"
    return NotAStoreError(f"{file}: {name} of the reference's layout is {rule}; got {got}; {_REMEDY}")


def _check(file: Path, value: dict[str, Any]) -> None:
    """Every claim but the compressor's and the fill value's.

    Raises:
        NotAStoreError: one is not that of the reference's layout.
    """
    shape = value.get("shape")
    rules = {
        "zarr_format": (value.get("zarr_format") == 2, "2"),
        "shape": (
            shape is not None and _four(shape) and all(map(operator.le, shape, _MOST)),
            f"rows, layers, tokens, width, each at least 1 and at most {', '.join(map(str, _MOST))}",
        ),
        "chunks": (_four(value.get("chunks")), "four numbers from 1"),
        "dtype": (value.get("dtype") == "<f4", "'<f4', float32"),
        "order": (value.get("order") == "C", "'C'"),
        "filters": (not value.get("filters"), "null"),
        "compressor": ("compressor" in value, "there"),
        "dimension_separator": (value.get("dimension_separator", ".") in (".", "/"), "'.' or '/'"),
    }
    for name, (holds, rule) in rules.items():
        if not holds:
            raise _refusal(file, value, name, rule)


def _four(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 4
        and all(type(length) is int and 1 <= length <= 1 << 40 for length in value)
    )


def _fill(file: Path, value: dict[str, Any]) -> np.float32 | None:
    """The fill value, if it is a number that a value can be equal to."""
    said = value.get("fill_value")
    if said is None:
        return None
    if type(said) not in (int, float) and said not in _NUMBERS:
        raise _refusal(file, value, "fill_value", f"null, a number or one of {', '.join(_NUMBERS)}")
    try:
        number = float(said)
    except OverflowError:  # an integer beyond float64
        number = math.inf
    if math.isinf(number) or abs(number) > _MOST_FLOAT32:
        if said not in _NUMBERS:
            raise _refusal(file, value, "fill_value", "null or a number that float32 can hold")
        return None  # a row that holds it is not finite, whatever it means
    return None if math.isnan(number) else np.float32(number)
