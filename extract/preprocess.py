"""From a decoded image to the teacher's pixels: resize, then centre crop.

In: an RGB image of any size. Out: uint8 pixels (H, W, 3) at the teacher's input size; the teacher itself
scales and normalises them, on its device.

The image is scaled, bicubic, so that it just covers a box of the input's proportions whose shorter side is
`resize`, and the input is cut from its centre; without a `resize` both sides are scaled to the input's. For a
square input the former is torchvision's `Resize(resize)` and `CenterCrop`, rounding included, which is the
reference's preprocessing.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from activault.store.errors import ConfigError
from activault.store.provenance import Preprocessing

__all__ = ["checked_size", "default_resize", "plan_preprocessing", "to_pixels"]

_FILTERS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}


def checked_size(image_size: int | tuple[int, int], patch: tuple[int, int]) -> tuple[int, int]:
    """Height and width of the input.

    Raises:
        ConfigError: a side is not a multiple of the patch.
    """
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    for side, step in zip(size, patch, strict=True):
        if side < step or side % step:
            low = max(side // step, 1) * step
            raise ConfigError(
                f"the image size has to be a multiple of the patch size {step}; got {side}: "
                f"the nearest are {low} and {low + step}"
            )
    return size


def default_resize(image_size: tuple[int, int]) -> int:
    """The shorter side before the crop, in the reference's proportion: 256 for 224."""
    return round(min(image_size) * 256 / 224)


def plan_preprocessing(
    image_size: tuple[int, int],
    resize: int | None,
    mean: tuple[float, float, float],
    std: tuple[float, float, float],
) -> Preprocessing:
    """The preprocessing of a teacher with this mean and standard deviation.

    Raises:
        ConfigError: `resize` is smaller than the crop.
    """
    resize = default_resize(image_size) if resize is None else resize
    if resize < min(image_size):
        raise ConfigError(
            f"the resize has to be at least the image size {min(image_size)}, to crop from it; got {resize}"
        )
    return Preprocessing(image_size=image_size, resize=resize, interpolation="bicubic", mean=mean, std=std)


def to_pixels(
    image: Image.Image, preprocessing: Preprocessing, max_pixels: int
) -> UInt8[np.ndarray, "height width 3"] | None:
    """The input's pixels out of an RGB image; one that has the scaled size already is not resampled.

    None for an image so long and thin that scaling its shorter side up would take over `max_pixels`.
    """
    height, width = preprocessing.image_size
    scaled = _scaled_size(image.size, preprocessing)
    if scaled[0] * scaled[1] > max_pixels:
        return None
    if scaled != image.size:
        image = image.resize(scaled, _FILTERS[preprocessing.interpolation])
    left, top = round((image.width - width) / 2), round((image.height - height) / 2)
    return np.asarray(image.crop((left, top, left + width, top + height)))


def _scaled_size(size: tuple[int, int], preprocessing: Preprocessing) -> tuple[int, int]:
    """Width and height after scaling; in whole numbers, so that it is exact."""
    height, width = preprocessing.image_size
    shorter, resize = min(height, width), preprocessing.resize
    if resize is None:
        return width, height
    # Sides of the box, times `shorter`: (width * resize, height * resize).
    if size[0] * height <= size[1] * width:
        scaled = max(round(width * resize / shorter), width)
        return scaled, max(scaled * size[1] // size[0], height)
    scaled = max(round(height * resize / shorter), height)
    return max(scaled * size[0] // size[1], width), scaled
