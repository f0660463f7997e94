"""Blocks of a reference-layout array on their way to a store: read ahead, hashed as they must read back.

Spans of the source in; float32 values (rows, layers, tokens, dim), faults of rows, and for every row of every
array the XXH3 of 128 bits, seeded with the row's number, of the values that the store must give for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Final

import numpy as np
import numpy.typing as npt

from .codecs import round_to_bfloat16, round_to_float16, to_float32
from .cores import num_cores
from .errors import ImageSourceError
from .layout import TokenKind, TokenLayout
from .manifest import Manifest, Quantisation
from .quantise import PatchMoments, Steps
from .reference import Reference, RowFault, Span
from .row_sums import row_hashes

__all__ = ["Block", "blocks", "calibrated"]

Float32 = npt.NDArray[np.float32]
_CALIBRATION_CHUNKS: Final = 8
_CALIBRATION_ROWS: Final = 64
"""Rows of each of these chunks of the source that int8's steps follow from."""
_MOST_THREADS: Final = 4
_ROWS_HASHED: Final = 8
"""Rows rounded and hashed at a time, so that no block is there three times."""


@dataclass(frozen=True)
class Block:
    """A block of the source and what its rows must read as."""

    values: Float32 | None
    faults: list[RowFault]
    hashes: dict[tuple[int, TokenKind], list[int]]
    """By place on the layer axis and kind: a hash a row."""


def blocks(reference: Reference, manifest: Manifest, rows: range) -> Iterator[tuple[Span, Block]]:
    """All blocks of a shard in order, read and hashed a few ahead."""
    threads = min(num_cores(), _MOST_THREADS)
    spans = reference.spans(rows)
    with ThreadPoolExecutor(threads, thread_name_prefix="import") as pool:
        ahead: deque[tuple[Span, Future[Block]]] = deque()
        while True:
            for span in islice(spans, threads - len(ahead)):
                ahead.append((span, pool.submit(_read_block, reference, manifest, span)))
            if not ahead:
                return
            span, block = ahead.popleft()
            yield span, block.result()


def _read_block(reference: Reference, manifest: Manifest, span: Span) -> Block:
    values, faults = reference.read(span)
    hashes: dict[tuple[int, TokenKind], list[int]] = {}
    for place, axis in enumerate(span.layers if values is not None else ()):
        assert values is not None
        for kind in manifest.kinds:
            tokens, found = values[:, place, manifest.layout.span(kind)], list[int]()
            for first in range(0, len(tokens), _ROWS_HASHED):
                part = slice(first, first + _ROWS_HASHED)
                stored = _as_stored(manifest, axis, kind, np.ascontiguousarray(tokens[part]))
                found += row_hashes(span.rows[part], stored)
            hashes[axis, kind] = found
    return Block(values, faults, hashes)


def _as_stored(manifest: Manifest, axis: int, kind: TokenKind, values: Float32) -> Float32:
    """What values of the source must read as: rounded to the dtype, as float32 again."""
    dtype = manifest.stored_dtype(kind)
    if dtype == "int8":
        assert manifest.quantisation is not None
        steps, codes = Steps.of(manifest.quantisation[axis]), np.empty(values.shape, np.int8)
        steps.quantise(values, codes)
        decoded = np.empty(values.shape, np.float32)
        steps.dequantise(codes, decoded)
        return decoded
    if dtype == "bfloat16":
        return to_float32(round_to_bfloat16(values))
    return to_float32(round_to_float16(values)) if dtype == "float16" else values


def calibrated(reference: Reference, layout: TokenLayout) -> tuple[Quantisation, ...]:
    """Every layer's steps, from good rows of seeded chunks of the source.

    Raises:
        ImageSourceError: none of them has activations.
        PrecisionError: no steps hold the values as precisely as the format promises.
    """
    patches, high = layout.span("patches"), reference.chunks[0]
    chunks = np.random.default_rng(0).permutation(len(reference.files.present))
    moments = [PatchMoments(reference.shape[3]) for _ in range(reference.shape[1])]
    whole = [chunk for chunk in chunks if reference.files.present[chunk].all()]
    for chunk in sorted(whole[:_CALIBRATION_CHUNKS]):
        first = int(chunk) * high
        rows = range(first, min(first + min(high, _CALIBRATION_ROWS), reference.num_rows))
        for span in reference.spans(rows):
            values, faults = reference.read(span)
            bad = {fault.row for fault in faults}
            good = [row - rows.start for row in rows if row not in bad]
            for place, layer in enumerate(span.layers if values is not None else ()):
                assert values is not None
                moments[layer].add(np.ascontiguousarray(values[good, place, patches]))
    if not all(map(len, moments)):
        raise ImageSourceError(
            f"int8 is calibrated on rows of the source, and {reference.path} has none that are good in its "
            f"{len(whole)} complete chunks; choose another dtype"
        )
    return tuple(layer.quantisation(reference.num_rows) for layer in moments)
