"""From a file's bytes to an RGB image, or to the reason why not.

In: the bytes of one image file. Out: a Pillow image in mode RGB and the size it had, or `BadImage`.

What becomes RGB, and how:
- grey (1, L) is repeated over the channels; 16-bit values keep their high byte, in grey as in colour;
- alpha, of any mode and of palettes too, is laid over white: colours under full transparency are arbitrary;
- CMYK, YCbCr and the other colour modes are converted by Pillow; colour profiles are not applied;
- EXIF orientation is applied where it is asked for; otherwise rows and columns are as they are stored
  (but for TIFF, of which the tag is a part: Pillow always applies it);
- of an animation, or of several pages, it is the first;
- floating-point pixels and integers over 16 bits are refused: no range is agreed on for them.

A decoder cannot be interrupted in a thread, so that its work is bounded before it begins: by a cap on pixels
and, for a progressive JPEG, each scan of which costs as much as the image, by a cap on scans. The worst file
of 64 megapixels then takes 20 s; nothing waits for ever.
"""

from __future__ import annotations

import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Final, Literal

import numpy as np
from PIL import Image, UnidentifiedImageError

from activault.store.files import xxh3

from .fast_jpeg import fast_rgb
from .process_wide import ProcessWide

__all__ = [
    "EXTENSIONS",
    "MAX_PIXELS",
    "BadImage",
    "GoodImage",
    "Orientation",
    "decode_image",
    "quiet_decoders",
]

Orientation = Literal["stored", "exif"]
"""Pixels as they stand in the file, or turned as its EXIF block asks."""

EXTENSIONS = frozenset(
    (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
)
"""What counts as an image file, in any case."""
MAX_PIXELS = 1 << 26
"""Pixels above which an image is refused before it is decoded: 67 million take 200 MB a thread in RGB."""
MAX_SCANS: Final = 100
"""Scans of a JPEG, counting its thumbnail's; encoders write 10 or so."""
# Pillow would also try formats that start other programs (EPS) or are none that photographs come in.
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
_ORIENTATION_TAG: Final = 0x0112
_TURNS: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What an EXIF orientation asks for; 1 is as it stands."""
_SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"RIFF", b"II*\0", b"MM\0*")
# All plugins at once, here: Pillow would do it in the first thread that meets a rarer format.
Image.init()
# What Pillow's decoders raise on damaged files. 200,000 damaged files of these formats gave the first three
# and OverflowError; the rest is what Pillow's own code guards against elsewhere.
_DECODER_ERRORS = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    IndexError,
    KeyError,
    ArithmeticError,
    EOFError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
    Image.DecompressionBombWarning,
)


@dataclass(frozen=True, kw_only=True)
class BadImage:
    """Why there is no image."""

    status: str
    """`empty`, `not-an-image`, `truncated`, `too-large` or `unreadable`."""
    reason: str
    """One line for people; without paths, the same on every machine."""
    width: int | None = None
    height: int | None = None
    content: str | None = None
    """xxh3 of the file's bytes; None where they could not be read."""


@dataclass(frozen=True, kw_only=True)
class GoodImage:
    """A decoded image in mode RGB."""

    image: Image.Image
    width: int
    """In pixels, as decoded: of a turned image after turning."""
    height: int
    content: str
    """xxh3 of the file's bytes."""


def decode_image(
    data: bytes, max_pixels: int = MAX_PIXELS, orientation: Orientation = "stored"
) -> GoodImage | BadImage:
    """Decode one image file. Never raises on what the bytes are; see the module for the rules."""
    content = xxh3(data)
    found = _decoded(data, max_pixels, orientation, content)
    return replace(found, content=content) if isinstance(found, BadImage) else found


def _decoded(data: bytes, max_pixels: int, orientation: Orientation, content: str) -> GoodImage | BadImage:
    if not data:
        return BadImage(status="empty", reason="the file has no bytes")
    with quiet_decoders():
        try:
            image = Image.open(BytesIO(data), formats=_FORMATS)
        except UnidentifiedImageError:
            if data.startswith(_SIGNATURES):
                return BadImage(status="unreadable", reason="the file's header is damaged or cut off")
            return BadImage(status="not-an-image", reason="no decoder knows these bytes")
        except (Image.DecompressionBombError, Image.DecompressionBombWarning):
            return BadImage(status="too-large", reason=f"more pixels than the cap of {max_pixels}")
        except _DECODER_ERRORS as exc:
            return _undecodable(exc)
        width, height = image.size
        if width * height > max_pixels:
            reason = f"{width * height} pixels, more than the cap of {max_pixels}"
            return BadImage(status="too-large", reason=reason, width=width, height=height)
        # FF DA starts a scan; within one, FF is followed by 00 or a restart marker.
        if image.format == "JPEG" and (num_scans := data.count(b"\xff\xda")) > MAX_SCANS:
            reason = f"{num_scans} scans, more than the cap of {MAX_SCANS}"
            return BadImage(status="too-large", reason=reason, width=width, height=height)
        try:
            pixels = _pixels(image, data)
            if orientation == "exif":
                pixels = _turned(pixels, image)
            return GoodImage(image=pixels, width=pixels.width, height=pixels.height, content=content)
        except _DECODER_ERRORS as exc:
            return _undecodable(exc, width, height)


def _undecodable(exc: Exception, width: int | None = None, height: int | None = None) -> BadImage:
    # Pillow has no class of its own for data that ends early; its texts differ by format.
    if isinstance(exc, EOFError) or "truncated" in str(exc).lower():
        return BadImage(status="truncated", reason="the data ends early", width=width, height=height)
    reason = str(exc) if isinstance(exc, _UnclearRangeError) else f"the decoder failed ({type(exc).__name__})"
    return BadImage(status="unreadable", reason=reason, width=width, height=height)


class _UnclearRangeError(ValueError):
    """Pixels whose black and white are not known."""


def _turned(pixels: Image.Image, image: Image.Image) -> Image.Image:
    """The pixels as the EXIF block of `image` asks; as they stand where it is absent or damaged."""
    try:
        turn = image.getexif().get(_ORIENTATION_TAG)
    except _DECODER_ERRORS:
        return pixels
    # Not `exif_transpose`, which fails on damage elsewhere in the block.
    method = _TURNS.get(turn) if isinstance(turn, int) else None
    return pixels if method is None else pixels.transpose(method)


def _pixels(image: Image.Image, data: bytes) -> Image.Image:
    """The image in RGB; a JPEG in half the time where that gives the same bits."""
    if image.format == "JPEG" and image.mode in ("L", "RGB"):
        fast = fast_rgb(data)
        if fast is not None and fast.shape[:2] == (image.height, image.width):
            return Image.fromarray(fast)
    return _to_rgb(image)


def _to_rgb(image: Image.Image) -> Image.Image:
    image.load()
    if image.mode == "F":
        raise _UnclearRangeError("floating-point pixels have no agreed range")
    if image.mode.startswith("I"):
        image = _high_byte(image)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        ground = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(ground, image).convert("RGB")
    return image.convert("RGB")


def _high_byte(image: Image.Image) -> Image.Image:
    """16-bit grey (modes `I;16`, its byte orders, and `I`) as 8-bit grey."""
    values = np.asarray(image)
    if values.min() < 0 or values.max() > 0xFFFF:
        raise _UnclearRangeError("integer pixels over 16 bits have no agreed range")
    return Image.fromarray((values >> 8).astype(np.uint8))


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\.")
        warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
        yield


_shared_quiet: Final = ProcessWide(_quiet)


def quiet_decoders() -> AbstractContextManager[None]:
    """Hold Pillow's warnings back; held over a whole extraction, the filters are set once.

    A warning about one image among millions (a huge one, a bad EXIF block) helps nobody, and where warnings
    are errors it would turn a good image into a bad one.
    """
    return _shared_quiet()
