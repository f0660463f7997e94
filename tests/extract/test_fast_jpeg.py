"""simplejpeg gives Pillow's bits and Pillow's verdicts, or is not used."""

from __future__ import annotations

import sys
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from activault.extract import decode, fast_jpeg
from activault.extract.decode import BadImage, GoodImage, decode_image

NOISE = np.random.default_rng(1).integers(0, 256, (45, 61, 3), dtype=np.uint8)


def jpeg(image: Image.Image, **options: Any) -> bytes:
    buffer = BytesIO()
    image.save(buffer, "JPEG", **options)
    return buffer.getvalue()


KINDS = {
    "444": jpeg(Image.fromarray(NOISE), subsampling="4:4:4"),
    "422": jpeg(Image.fromarray(NOISE), subsampling="4:2:2"),
    "420": jpeg(Image.fromarray(NOISE), subsampling="4:2:0", quality=20),
    "progressive": jpeg(Image.fromarray(NOISE), progressive=True),
    "grey": jpeg(Image.fromarray(NOISE[..., 0])),
    "cmyk": jpeg(Image.fromarray(NOISE).convert("CMYK")),
    "rgb": jpeg(Image.fromarray(NOISE), keep_rgb=True),
    "restarts": jpeg(Image.fromarray(NOISE), restart_marker_rows=1),
}


def told(result: GoodImage | BadImage) -> tuple[Any, ...]:
    if isinstance(result, BadImage):
        return result.status, result.reason, result.width, result.height
    return result.width, result.height, np.asarray(result.image).tobytes()


def both(data: bytes) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    with_it = told(decode_image(data))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "fast_rgb", lambda data: None)
        return with_it, told(decode_image(data))


def test_it_is_in_use_here() -> None:
    assert fast_jpeg._decoder() is not None
    assert fast_jpeg.fast_rgb(KINDS["420"]) is not None


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_the_same_bits(kind: str) -> None:
    ours, pillows = both(KINDS[kind])
    assert ours == pillows
    assert ours[:2] == (61, 45)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    cut=st.integers(0, 4000),
    changes=st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), max_size=3),
)
def test_damaged_files_have_the_same_verdict_and_bits(
    kind: str, cut: int, changes: list[tuple[int, int]]
) -> None:
    data = bytearray(KINDS[kind][: cut or None])
    for place, value in changes:
        if place < len(data):
            data[place] = value
    ours, pillows = both(bytes(data))
    assert ours == pillows


def test_one_bit_of_difference_puts_it_out_of_use(monkeypatch: pytest.MonkeyPatch) -> None:
    import simplejpeg

    real = simplejpeg.decode_jpeg

    def other(data: bytes, **options: Any) -> np.ndarray:
        pixels: np.ndarray = real(data, **options)
        pixels[-1, -1, -1] ^= 1
        return pixels

    monkeypatch.setattr(simplejpeg, "decode_jpeg", other)
    fast_jpeg._decoder.cache_clear()
    try:
        assert fast_jpeg.fast_rgb(KINDS["420"]) is None
    finally:
        fast_jpeg._decoder.cache_clear()


def test_without_it_pillow_decodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    fast_jpeg._decoder.cache_clear()
    try:
        assert fast_jpeg.fast_rgb(KINDS["420"]) is None
        assert isinstance(decode_image(KINDS["420"]), GoodImage)
    finally:
        fast_jpeg._decoder.cache_clear()
