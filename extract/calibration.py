"""Steps of an int8 store, from the teacher's patches of seeded rows.

In: a teacher and a function that gives a row's pixels. Out: one `Quantisation` a kept layer. Nothing but sums
is held of a row when the next comes, and nothing depends on the batch size of the extraction: rows go through
the teacher in batches of a fixed size, so that whoever plans first on a machine plans the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from activault.store import ImageSourceError, NonFiniteError
from activault.store.errors import PrecisionError
from activault.store.layout import TokenLayout
from activault.store.manifest import Quantisation
from activault.store.quantise import PatchMoments

from .arithmetic import Arithmetic, Forward, exact_arithmetic
from .backbone import Backbone
from .decode import quiet_decoders
from .decoders import Decode
from .options import ExtractOptions
from .tokens import kept_tokens

__all__ = ["CALIBRATION_ROWS", "Calibrate", "calibrate", "calibration_for"]

Rows = npt.NDArray[np.int64]
Pixels = npt.NDArray[Any]
Calibrate = Callable[[Collection[int], TokenLayout], tuple[Quantisation, ...]]
"""Steps of some layers, ascending, of whose tokens a layout is kept."""

CALIBRATION_ROWS: Final = 256
"""With fewer, the variance of the first layers is so unsure that smaller steps cost more than the rows."""
_BATCH: Final = 16
_STREAM: Final = 0xCA11
"""Sets the choice of these rows apart from the order of all, which has the same seed."""


def calibrate(
    backbone: Backbone,
    decode: Decode,
    *,
    num_rows: int,
    layers: Collection[int],
    layout: TokenLayout,
    seed: int,
    workers: int,
    arithmetic: Arithmetic | None = None,
    most_rows: int = CALIBRATION_ROWS,
) -> tuple[Quantisation, ...]:
    """One quantisation a layer, ascending; rows whose image is bad are passed over for others.

    Args:
        backbone: the teacher, on its device.
        decode: a row's pixels; called in `workers` threads.
        num_rows: rows of the store.
        layers: layers that are kept.
        layout: tokens that are kept.
        seed: of the choice of rows.
        workers: decoding threads.
        arithmetic: what the store's layers are computed in; None is exact float32. Nothing is compiled here.
        most_rows: to calibrate from; fewer than a store's own are for estimates.

    Raises:
        ImageSourceError: none of the images can be decoded.
        NonFiniteError: the teacher gave NaN or an infinity.
        PrecisionError: a layer's patches cannot be held in int8.
    """
    moments = {layer: PatchMoments(backbone.dim) for layer in sorted(layers)}
    forward = Forward(backbone, replace(arithmetic or Arithmetic(), compile=False), moments.keys())
    rows = np.random.default_rng([_STREAM, seed]).permutation(num_rows)
    images = islice(_good(decode, rows, workers), most_rows)
    with quiet_decoders(), exact_arithmetic(), torch.inference_mode():
        while batch := list(islice(images, _BATCH)):
            _add(forward, np.stack(batch), layout, moments)
    if not all(map(len, moments.values())):
        raise ImageSourceError(f"none of the {num_rows} images could be decoded; look at what they are")
    return tuple(_quantisation(layer, gathered, num_rows) for layer, gathered in moments.items())


def calibration_for(
    backbone: Backbone,
    decode: Decode,
    num_rows: int,
    options: ExtractOptions,
    most_rows: int = CALIBRATION_ROWS,
) -> Calibrate:
    """`calibrate` as a request has it, of which layers and tokens are not known yet."""

    def steps(layers: Collection[int], layout: TokenLayout) -> tuple[Quantisation, ...]:
        return calibrate(
            backbone,
            decode,
            num_rows=num_rows,
            layers=layers,
            layout=layout,
            seed=options.seed,
            workers=options.num_workers,
            arithmetic=options.arithmetic,
            most_rows=most_rows,
        )

    return steps


def _good(decode: Decode, rows: Rows, workers: int) -> Iterator[Pixels]:
    """Pixels of the rows whose image is good, in the order of `rows`."""
    with ThreadPoolExecutor(workers, "calibrate") as threads:
        for start in range(0, len(rows), _BATCH):
            for decoded in threads.map(decode, rows[start : start + _BATCH].tolist()):
                if decoded.pixels is not None:
                    yield decoded.pixels


def _add(forward: Forward, pixels: Pixels, layout: TokenLayout, moments: Mapping[int, PatchMoments]) -> None:
    span = layout.span("patches")
    for layer, tokens in forward(torch.from_numpy(pixels)):
        try:
            moments[layer].add(kept_tokens(tokens, layout)[:, span].float().cpu().numpy())
        except NonFiniteError as exc:
            raise NonFiniteError(
                f"layer {layer}, patches: {exc}; check the teacher's weights and its precision"
            ) from exc


def _quantisation(layer: int, gathered: PatchMoments, num_rows: int) -> Quantisation:
    try:
        return gathered.quantisation(num_rows)
    except PrecisionError as exc:
        raise PrecisionError(f"layer {layer}: {exc}") from exc
