"""From a decoded image to the teacher's pixels: which rules, and what they do.

In: an RGB image of any size. Out: uint8 pixels (H, W, 3) at the teacher's input size; the teacher itself
scales and normalises them, on its device.

Modes of cropping, by timm's words:
- `center`: the image is scaled so that it just covers a box of the input's proportions whose shorter side is
  `resize`, and the input is cut from its centre. For a square input this is torchvision's `Resize(resize)`
  and `CenterCrop`, rounding included; 256 for 224 is the reference's preprocessing.
- `squash`: both sides are scaled to the input's; nothing is cut.
- `border`: the image is scaled so that it just fits into that box; what is missing is filled with the mean
  colour, what is too much is cut.

An image that has the scaled size already is not resampled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageOps

from activault.store.errors import ConfigError
from activault.store.provenance import Preprocessing

__all__ = [
    "CropMode",
    "Interpolation",
    "PreprocessingRequest",
    "RuleSet",
    "TeacherRules",
    "checked_size",
    "default_resize",
    "plan_preprocessing",
    "to_pixels",
]

RuleSet = Literal["reference", "teacher"]
CropMode = Literal["center", "squash", "border"]
Interpolation = Literal["bicubic", "bilinear", "lanczos", "hamming", "box", "nearest"]
_FILTERS: Final = {
    "bicubic": Image.Resampling.BICUBIC,
    "bilinear": Image.Resampling.BILINEAR,
    "lanczos": Image.Resampling.LANCZOS,
    "hamming": Image.Resampling.HAMMING,
    "box": Image.Resampling.BOX,
    "nearest": Image.Resampling.NEAREST,
}
_CROP_MODES: Final = ("center", "squash", "border")
_LEAST_STD: Final = 1e-3
"""A hundredth of what any teacher has; nearer to 0 pixels would be beyond what a teacher can take."""


@dataclass(frozen=True, kw_only=True)
class TeacherRules:
    """How a teacher's own images were prepared."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    interpolation: str = "bicubic"
    crop_pct: float = 1.0
    """Share of the scaled image that the input is."""
    crop_mode: str = "center"


@dataclass(frozen=True, kw_only=True)
class PreprocessingRequest:
    """What is asked for; whatever is None follows from `rules`."""

    rules: str = "reference"
    """`reference`: bicubic, 256 for 224, from the centre. `teacher`: as timm prepares images for it."""
    resize: int | None = None
    """Shorter side of the box that the image is scaled to."""
    interpolation: str | None = None
    crop_mode: str | None = None
    mean: tuple[float, float, float] | None = None
    """Subtracted from red, green and blue, which are from 0 to 1; None is the teacher's."""
    std: tuple[float, float, float] | None = None
    """What they are divided by then; None is the teacher's."""
    orientation: str = "stored"
    """Noted only: turning an image is the decoder's work."""

    def __post_init__(self) -> None:
        _check_colours("mean", self.mean, 0.0)
        _check_colours("std", self.std, _LEAST_STD)
        for name, value, known in (
            ("preprocessing", self.rules, ("reference", "teacher")),
            ("interpolation", self.interpolation, tuple(_FILTERS)),
            ("crop mode", self.crop_mode, _CROP_MODES),
        ):
            if value is not None and value not in known:
                raise ConfigError(f"the {name} is one of {', '.join(known)}; got {value!r}")
        if self.crop_mode == "squash" and self.resize is not None:
            raise ConfigError(
                f"crop mode squash scales both sides to the input's, so a resize of {self.resize} has no "
                "meaning; leave one of the two out"
            )


def _check_colours(name: str, values: tuple[float, float, float] | None, least: float) -> None:
    if values is not None and (len(values) != 3 or not all(least <= value <= 1 for value in values)):
        raise ConfigError(
            f"the {name} is three numbers from {least:g} to 1, for red, green and blue from 0 to 1; got "
            f"{', '.join(f'{value:g}' for value in values)}; of values up to 255 take each / 255"
        )


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
    image_size: tuple[int, int], teacher: TeacherRules, request: PreprocessingRequest | None = None
) -> Preprocessing:
    """What becomes of an image, by the rules asked for and by whatever is said beside them.

    Args:
        image_size: height and width of the input.
        teacher: the teacher's own rules; mean and standard deviation are its by both rules.
        request: None is the reference's.

    Raises:
        ConfigError: `resize` is smaller than the crop, or the teacher's rules are not among ours.
    """
    request = request or PreprocessingRequest()
    own = request.rules == "teacher"
    interpolation = request.interpolation or (teacher.interpolation if own else "bicubic")
    crop_mode = request.crop_mode or (teacher.crop_mode if own else "center")
    _refuse_unknown(interpolation, crop_mode)
    resize = request.resize
    if resize is None:
        resize = _resize_of(image_size, teacher, crop_mode, own, explicit=request.crop_mode is not None)
    if resize is not None and resize < min(image_size):
        raise ConfigError(
            f"the resize has to be at least the image size {min(image_size)}, to crop from it; got {resize}"
        )
    return Preprocessing(
        image_size=image_size,
        resize=resize if crop_mode != "squash" else None,
        interpolation=interpolation,
        mean=request.mean or teacher.mean,
        std=request.std or teacher.std,
        crop_mode=crop_mode,
        orientation=request.orientation,
    )


def _refuse_unknown(interpolation: str, crop_mode: str) -> None:
    """What timm may record of a teacher and we do not do, such as an interpolation drawn by lot."""
    if interpolation not in _FILTERS:
        raise ConfigError(
            f"the teacher's own interpolation is {interpolation!r}, and here are {', '.join(_FILTERS)}; "
            "choose one with --interpolation"
        )
    if crop_mode not in _CROP_MODES:
        raise ConfigError(
            f"the teacher's own crop mode is {crop_mode!r}, and here are {', '.join(_CROP_MODES)}; choose "
            "one with --crop-mode"
        )


def _resize_of(
    image_size: tuple[int, int], teacher: TeacherRules, crop_mode: str, own: bool, explicit: bool
) -> int | None:
    """The shorter side of the box where none was asked for."""
    if crop_mode == "squash":
        if own and not explicit and teacher.crop_pct != 1:
            raise ConfigError(
                f"the teacher's own rule squashes an image and then cuts {teacher.crop_pct} out of it, which "
                "is not done here; choose --crop-mode squash, to cut nothing, or --crop-mode center"
            )
        return None
    if own:
        return math.floor(min(image_size) / teacher.crop_pct)
    return default_resize(image_size) if crop_mode == "center" else min(image_size)


def to_pixels(
    image: Image.Image, preprocessing: Preprocessing, max_pixels: int
) -> UInt8[np.ndarray, "height width 3"] | None:
    """The input's pixels out of an RGB image.

    None for an image so long and thin that scaling its shorter side up would take over `max_pixels`.
    """
    height, width = preprocessing.image_size
    scaled = _scaled_size(image.size, preprocessing)
    if scaled[0] * scaled[1] > max_pixels:
        return None
    if scaled != image.size:
        image = image.resize(scaled, _FILTERS[preprocessing.interpolation])
    if preprocessing.crop_mode == "border":
        image = _padded(image, preprocessing)
    left, top = round((image.width - width) / 2), round((image.height - height) / 2)
    return np.asarray(image.crop((left, top, left + width, top + height)))


def _scaled_size(size: tuple[int, int], preprocessing: Preprocessing) -> tuple[int, int]:
    """Width and height after scaling."""
    height, width = preprocessing.image_size
    shorter, resize = min(height, width), preprocessing.resize
    if resize is None:
        return width, height
    if preprocessing.crop_mode == "border":
        # As timm rounds it.
        ratio = max(size[0] / (width * resize // shorter), size[1] / (height * resize // shorter))
        return max(round(size[0] / ratio), 1), max(round(size[1] / ratio), 1)
    # In whole numbers, so that it is exact. Sides of the box, times `shorter`: (width, height) * resize.
    if size[0] * height <= size[1] * width:
        scaled = max(round(width * resize / shorter), width)
        return scaled, max(scaled * size[1] // size[0], height)
    scaled = max(round(height * resize / shorter), height)
    return max(scaled * size[0] // size[1], width), scaled


def _padded(image: Image.Image, preprocessing: Preprocessing) -> Image.Image:
    """At least the input's size, the image in the middle; an odd pixel goes to the right and the bottom."""
    height, width = preprocessing.image_size
    across, down = max(width - image.width, 0), max(height - image.height, 0)
    colour = tuple(round(255 * value) for value in preprocessing.mean)
    borders = (across // 2, down // 2, (across + 1) // 2, (down + 1) // 2)
    return ImageOps.expand(image, borders, colour)
