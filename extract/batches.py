"""Rows that go through the teacher together, and how their layers get into a shard's buffer.

Pixels (H, W, 3) uint8, or None where an image was bad, row after row in; one array (images, H, W, 3) for the
teacher out. Layers (images, kept tokens, dim) in; the rows of the buffer that they belong to filled. Where a
row is in the forward is decided here, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import UInt8
from torch import Tensor

from activault.store import ShardBuffer, StoredDtype

__all__ = ["Batch", "Pixels", "host_values", "is_whole", "rounded"]

Pixels = UInt8[np.ndarray, "height width 3"]


@dataclass(frozen=True)
class Batch:
    """Rows of a buffer that go through the teacher together."""

    buffer: ShardBuffer
    offset: int
    pixels: Sequence[Pixels | None]
    first_place: int
    """Of the first row in a forward of a fixed shape."""
    num_images: int | None
    """The fixed number of images of a forward; None is as many as are good."""

    @property
    def good(self) -> list[int]:
        """Which of the rows have pixels."""
        return [number for number, image in enumerate(self.pixels) if image is not None]

    @property
    def places(self) -> list[int]:
        """Where in the forward the good rows are."""
        if self.num_images is None:
            return list(range(len(self.good)))
        return [self.first_place + number for number in self.good]

    def stack(self, images: npt.NDArray[np.uint8]) -> None:
        """Fill an array (images, H, W, 3); places without an image become black."""
        if len(self.good) < len(images):
            images[:] = 0
        found = [image for image in self.pixels if image is not None]
        for place, image in zip(self.places, found, strict=True):
            images[place] = image

    def store(self, layer: int, values: npt.NDArray[Any]) -> None:
        """Put a layer (images, kept tokens, dim) into the buffer's rows."""
        good, places = self.good, self.places
        for start, stop in _runs(good):
            place = places[start]
            self.buffer.write(layer, self.offset + good[start], values[place : place + stop - start])


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Spans of `numbers` that follow one another."""
    breaks = [i + 1 for i, (a, b) in enumerate(pairwise(numbers)) if b != a + 1]
    yield from pairwise([0, *breaks, len(numbers)])


def host_values(tokens: Tensor) -> npt.NDArray[Any]:
    """Host tokens as a buffer takes them: bfloat16 as its bits."""
    return tokens.view(torch.uint16).numpy() if tokens.dtype == torch.bfloat16 else tokens.numpy()


def rounded(tokens: Tensor, dtype: StoredDtype) -> Tensor:
    """The tokens as they are stored, on their device: half the copy. int8's are rounded by the buffer."""
    if dtype == "bfloat16":
        return tokens.to(torch.bfloat16)
    return tokens.to(torch.float16 if dtype == "float16" else torch.float32)


def is_whole(values: Tensor) -> bool:
    """Whether what was rounded to float16 is still finite."""
    return values.dtype != torch.float16 or bool(values.isfinite().all())
