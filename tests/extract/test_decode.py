"""Every kind of file that a collection holds: decoded by the written rules, or a reason; never a warning."""

from __future__ import annotations

import struct
import threading
import warnings
import zlib
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, PngImagePlugin

from activault.extract.decode import MAX_PIXELS, BadImage, GoodImage, decode_image, quiet_decoders

GRADIENT = np.add.outer(np.arange(24), np.arange(16) * 4).astype(np.uint8)
COLOURS = np.stack([GRADIENT, 255 - GRADIENT, GRADIENT // 2], axis=-1)


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def decoded(data: bytes) -> np.ndarray:
    result = decode_image(data)
    assert isinstance(result, GoodImage), result
    assert result.image.mode == "RGB"
    assert result.image.size == (result.width, result.height)
    return np.asarray(result.image)


def png_header(width: int, height: int) -> bytes:
    """A PNG that says how large it is and ends soon after."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + b"IHDR" + header + struct.pack(">I", zlib.crc32(b"IHDR" + header))
    return b"\x89PNG\r\n\x1a\n" + chunk + struct.pack(">I", 1000) + b"IDAT" + bytes(8)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM"])
def test_rgb_is_kept_as_it_is(kind: str) -> None:
    assert np.array_equal(decoded(encoded(Image.fromarray(COLOURS), kind)), COLOURS)


@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
def test_lossy_formats_are_close(kind: str) -> None:
    pixels = decoded(encoded(Image.fromarray(COLOURS), kind, quality=95))
    assert np.abs(pixels.astype(int) - COLOURS).mean() < 4


def test_grey_is_repeated() -> None:
    assert np.array_equal(
        decoded(encoded(Image.fromarray(GRADIENT), "PNG")), np.stack([GRADIENT] * 3, axis=-1)
    )


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bits_keep_their_high_byte(kind: str) -> None:
    deep = (GRADIENT.astype(np.uint16) << 8) + 77
    assert np.array_equal(decoded(encoded(Image.fromarray(deep), kind))[..., 1], GRADIENT)


def test_cmyk_is_converted() -> None:
    image = Image.new("CMYK", (8, 8), (255, 0, 0, 0))
    assert np.abs(decoded(encoded(image, "TIFF")) - np.array([0, 255, 255])).max() == 0
    assert np.abs(decoded(encoded(image, "JPEG", quality=95)).astype(int) - [0, 255, 255]).max() < 6


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_alpha_is_laid_over_white(mode: str) -> None:
    image = Image.new(mode, (4, 4), (0, 0, 0, 0) if mode == "RGBA" else (0, 0))
    assert (decoded(encoded(image, "PNG")) == 255).all()
    image.putalpha(128)
    assert (np.abs(decoded(encoded(image, "PNG")).astype(int) - 127) <= 1).all()


def test_a_palette_with_alpha_is_laid_over_white() -> None:
    image = Image.new("P", (4, 4))
    image.putpalette([200, 0, 0, 0, 0, 200])
    image.putpixel((0, 0), 1)
    pixels = decoded(encoded(image, "PNG", transparency=bytes([0, 255])))
    assert pixels[0, 0].tolist() == [0, 0, 200]
    assert pixels[1, 1].tolist() == [255, 255, 255]


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_of_an_animation_it_is_the_first_frame(kind: str) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue", "lime")]
    options: dict[str, Any] = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    assert (decoded(data) == [255, 0, 0]).all()


def test_exif_orientation_is_not_applied() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    pixels = decoded(encoded(Image.fromarray(COLOURS), "JPEG", quality=95, exif=exif))
    assert pixels.shape == COLOURS.shape
    assert np.abs(pixels.astype(int) - COLOURS).mean() < 4


def test_a_broken_exif_or_xmp_block_does_not_matter() -> None:
    broken = encoded(Image.fromarray(COLOURS), "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff broken")
    assert decoded(broken).shape == COLOURS.shape
    text = PngImagePlugin.PngInfo()
    text.add_itxt("XML:com.adobe.xmp", "<x:xmpmeta <<< not xml")
    assert np.array_equal(decoded(encoded(Image.fromarray(COLOURS), "PNG", pnginfo=text)), COLOURS)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "TIFF", "BMP", "PPM", "WEBP"])
def test_truncated_files_are_bad_rows(kind: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    data = encoded(Image.fromarray(noise), kind)
    result = decode_image(data[: len(data) // 2])
    assert isinstance(result, BadImage)
    # libwebp and libtiff report it as a failure of theirs, without saying why.
    assert result.status in (("unreadable", "truncated") if kind in ("WEBP", "TIFF") else ("truncated",))


@pytest.mark.parametrize(
    ("data", "status", "reason"),
    [
        (b"", "empty", "the file has no bytes"),
        (b"<html>404</html>", "not-an-image", "no decoder knows these bytes"),
        (b"\xff\xd8", "not-an-image", "no decoder knows these bytes"),
        (
            b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
            "not-an-image",
            "no decoder knows these bytes",
        ),
        (png_header(10_000, 10_000), "too-large", f"100000000 pixels, more than the cap of {MAX_PIXELS}"),
        (png_header(2**31 - 1, 2**31 - 1), "too-large", f"more pixels than the cap of {MAX_PIXELS}"),
        (png_header(8, 8)[:40], "unreadable", "the file's header is damaged or cut off"),
    ],
    ids=["empty", "html", "two-bytes", "eps", "100-megapixels", "2^62-pixels", "header-only"],
)
def test_reasons(data: bytes, status: str, reason: str) -> None:
    result = decode_image(data)
    assert isinstance(result, BadImage)
    assert (result.status, result.reason) == (status, reason)


def test_the_cap_is_given_with_the_size() -> None:
    result = decode_image(encoded(Image.fromarray(COLOURS), "PNG"), max_pixels=16 * 24 - 1)
    assert isinstance(result, BadImage)
    assert (result.status, result.width, result.height) == ("too-large", 16, 24)
    assert isinstance(decode_image(encoded(Image.fromarray(COLOURS), "PNG"), max_pixels=16 * 24), GoodImage)


@pytest.mark.parametrize(
    ("pixels", "reason"),
    [
        (np.ones((4, 4), np.float32), "floating-point pixels have no agreed range"),
        (np.full((4, 4), 1 << 20, np.int32), "integer pixels over 16 bits have no agreed range"),
    ],
    ids=["float", "int32"],
)
def test_pixels_without_an_agreed_range_are_refused(pixels: np.ndarray, reason: str) -> None:
    result = decode_image(encoded(Image.fromarray(pixels), "TIFF"))
    assert isinstance(result, BadImage)
    assert (result.status, result.reason) == ("unreadable", reason)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    kind=st.sampled_from(["JPEG", "PNG", "GIF", "BMP", "PPM"]),
    cut=st.integers(0, 2000),
    changes=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), max_size=4),
)
def test_no_bytes_raise(kind: str, cut: int, changes: list[tuple[int, int]]) -> None:
    data = bytearray(encoded(Image.fromarray(COLOURS), kind)[: cut or None])
    for place, value in changes:
        if place < len(data):
            data[place] = value
    assert isinstance(decode_image(bytes(data)), GoodImage | BadImage)


def warning_image() -> bytes:
    """An image of a size that Pillow warns about."""
    return png_header(9_500, 9_500)


@pytest.mark.parametrize("action", ["error", "default"])
def test_no_warning_of_pillows_gets_out_and_the_filters_come_back(action: str) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter(action)  # type: ignore[arg-type]
        before = list(warnings.filters)
        result = decode_image(warning_image())
        assert warnings.filters == before
    assert isinstance(result, BadImage)
    assert result.status == "too-large"
    assert not seen


def test_quiet_holds_until_the_last_thread_leaves() -> None:
    before = list(warnings.filters)
    inside, leave = threading.Barrier(5), threading.Event()

    def decode() -> None:
        with quiet_decoders():
            inside.wait(10)
            leave.wait(10)

    threads: list[threading.Thread] = [threading.Thread(target=decode) for _ in range(4)]
    for thread in threads:
        thread.start()
    inside.wait(10)
    decode_image(warning_image())
    assert warnings.filters != before
    leave.set()
    for thread in threads:
        thread.join()
    assert warnings.filters == before
