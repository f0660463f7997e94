"""Baseline and progressive JPEGs through simplejpeg, where it is installed and gives the very bits of Pillow.

A JPEG's bytes in, pixels (H, W, 3) uint8 out, or None: then Pillow decodes it. Both stand on libjpeg-turbo,
but on copies of their own, whose versions may round or interpolate differently: once a process a few small
images of every kind are decoded by both, and one bit of difference puts simplejpeg out of use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from io import BytesIO
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image

__all__ = ["fast_rgb"]

Pixels = npt.NDArray[np.uint8]

_SIZES: Final = ((33, 47), (16, 16), (8, 65), (1, 1))
_SUBSAMPLINGS: Final = ("4:4:4", "4:2:2", "4:2:0")


def fast_rgb(data: bytes) -> Pixels | None:
    """The pixels of a grey or coloured JPEG; None where Pillow has to decode it, or to say what is wrong."""
    decode = _decoder()
    if decode is None:
        return None
    try:
        return decode(data)
    except (ValueError, TypeError, MemoryError):  # a warning of libjpeg's is an error here, to be looked into
        return None


@cache
def _decoder() -> Callable[[bytes], Pixels] | None:
    try:
        import simplejpeg
    except ImportError:
        return None

    def decode(data: bytes) -> Pixels:
        pixels: Pixels = simplejpeg.decode_jpeg(data, colorspace="RGB", fastdct=False, fastupsample=False)
        return pixels

    return decode if all(_alike(decode, data) for data in _samples()) else None


def _alike(decode: Callable[[bytes], Pixels], data: bytes) -> bool:
    try:
        found = decode(data)
    except ValueError:
        return False
    return np.array_equal(found, np.asarray(Image.open(BytesIO(data)).convert("RGB")))


def _samples() -> Iterator[bytes]:
    """Grey and coloured noise, of even and odd sizes, in every subsampling, baseline and progressive."""
    rng = np.random.default_rng(0)
    for size in _SIZES:
        noise = rng.integers(0, 256, (*size, 3), dtype=np.uint8)
        for progressive in (False, True):
            yield _encoded(Image.fromarray(noise[..., 0]), quality=80, progressive=progressive)
            for subsampling in _SUBSAMPLINGS:
                image = Image.fromarray(noise)
                yield _encoded(image, quality=80, progressive=progressive, subsampling=subsampling)


def _encoded(image: Image.Image, **options: Any) -> bytes:
    buffer = BytesIO()
    image.save(buffer, "JPEG", **options)
    return buffer.getvalue()
