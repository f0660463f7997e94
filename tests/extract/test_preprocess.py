"""Pixels are torchvision's Resize and CenterCrop for square inputs, and fill inputs of every shape."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision import transforms

from activault.extract.preprocess import (
    PreprocessingRequest,
    TeacherRules,
    default_resize,
    plan_preprocessing,
    to_pixels,
)
from activault.store.provenance import Preprocessing

CAP = 1 << 26
HALF = TeacherRules(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))


def plan(size: tuple[int, int], resize: int | None = None) -> Preprocessing:
    return plan_preprocessing(size, HALF, PreprocessingRequest(resize=resize))


@pytest.mark.parametrize(("size", "resize"), [((224, 224), 256), ((98, 98), 112), ((28, 42), 32)])
def test_the_default_margin_is_the_references(size: tuple[int, int], resize: int) -> None:
    assert default_resize(size) == resize


@settings(max_examples=40, deadline=None)
@given(
    width=st.integers(1, 90), height=st.integers(1, 90), side=st.integers(4, 40), margin=st.integers(0, 12)
)
def test_square_inputs_are_torchvisions(width: int, height: int, side: int, margin: int) -> None:
    pixels = np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    bicubic = transforms.InterpolationMode.BICUBIC
    theirs = transforms.CenterCrop(side)(transforms.Resize(side + margin, bicubic)(image))
    assert np.array_equal(to_pixels(image, plan((side, side), side + margin), CAP), np.asarray(theirs))


@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 200), st.integers(1, 200)),
    size=st.tuples(st.integers(1, 60), st.integers(1, 60)),
    margin=st.integers(0, 9),
)
def test_every_image_fills_the_input(shape: tuple[int, int], size: tuple[int, int], margin: int) -> None:
    image = Image.new("RGB", (shape[1], shape[0]), (250, 250, 250))
    pixels = to_pixels(image, plan(size, min(size) + margin), CAP)
    assert pixels is not None
    assert pixels.shape == (*size, 3)
    # A crop that left the image would be padded with black.
    assert pixels.min() == 250


@pytest.mark.parametrize(
    ("size", "resize"), [((40, 60), 40), ((20, 30), 40), ((40, 40), 40), ((10, 60), 10)], ids=str
)
def test_an_image_of_the_scaled_size_is_cut_and_not_resampled(
    size: tuple[int, int], resize: int, noise: np.ndarray
) -> None:
    pixels = to_pixels(Image.fromarray(noise), plan(size, resize), CAP)
    top, left = (40 - size[0]) // 2, (60 - size[1]) // 2
    assert np.array_equal(pixels, noise[top : top + size[0], left : left + size[1]])


def test_a_size_match_without_margin_changes_no_pixel(noise: np.ndarray) -> None:
    square = noise[:40, :40]
    assert np.array_equal(to_pixels(Image.fromarray(square), plan((40, 40), 40), CAP), square)


def test_an_image_too_long_and_thin_to_scale_is_refused() -> None:
    assert to_pixels(Image.new("RGB", (30_000, 1)), plan((224, 224)), CAP) is None
