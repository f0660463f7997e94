"""Pixels are torchvision's for the reference's rules and timm's for a teacher's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision import transforms

from activault.extract.architectures import teacher_rules
from activault.extract.demo_crops import photograph
from activault.extract.preprocess import (
    PreprocessingRequest,
    TeacherRules,
    default_resize,
    plan_preprocessing,
    to_pixels,
)
from activault.store import ConfigError
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


PHOTOGRAPHS_OF = ("chelsea", "coffee", "rocket")


def timms_pixels(image: Image.Image, size: tuple[int, int], rules: TeacherRules) -> np.ndarray:
    """What timm's own evaluation transform gives, before it normalises."""
    from timm.data import create_transform

    transform = create_transform(
        (3, *size),
        is_training=False,
        normalize=False,
        interpolation=rules.interpolation,
        crop_pct=rules.crop_pct,
        crop_mode=rules.crop_mode,
        mean=rules.mean,
        std=rules.std,
    )
    return transform(image).permute(1, 2, 0).numpy()


@pytest.mark.parametrize("name", PHOTOGRAPHS_OF)
@pytest.mark.parametrize(
    ("crop_mode", "crop_pct", "interpolation", "size"),
    [
        ("center", 1.0, "bicubic", (224, 224)),
        ("center", 0.9, "bicubic", (224, 224)),
        ("center", 0.875, "bilinear", (196, 196)),
        ("center", 0.95, "lanczos", (112, 112)),
        ("squash", 1.0, "bicubic", (224, 224)),
        ("squash", 1.0, "bilinear", (112, 196)),
        ("border", 1.0, "bicubic", (224, 224)),
        ("border", 0.9, "bicubic", (224, 224)),
        ("border", 1.0, "bicubic", (112, 224)),
    ],
)
def test_a_teachers_own_rules_are_timms(
    name: str, crop_mode: str, crop_pct: float, interpolation: str, size: tuple[int, int]
) -> None:
    """On real photographs, upright, wide and square, pixel by pixel."""
    rules = TeacherRules(
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        interpolation=interpolation,
        crop_pct=crop_pct,
        crop_mode=crop_mode,
    )
    planned = plan_preprocessing(size, rules, PreprocessingRequest(rules="teacher"))
    wide = photograph(name)
    shapes = (wide, wide.transpose(Image.Transpose.ROTATE_90), wide.crop((10, 10, 210, 210)))
    for image in shapes:
        assert np.array_equal(to_pixels(image, planned, CAP), timms_pixels(image, size, rules))


@pytest.mark.parametrize("name", PHOTOGRAPHS_OF)
@pytest.mark.parametrize("crop_pct", [0.9, 1.0])
def test_inputs_that_are_not_square_are_timms_but_for_rounding(name: str, crop_pct: float) -> None:
    """timm rounds the scaled size, ours is rounded so that it covers the input: a pixel at most."""
    rules = TeacherRules(mean=(0.5,) * 3, std=(0.5,) * 3, crop_pct=crop_pct)
    planned = plan_preprocessing((112, 196), rules, PreprocessingRequest(rules="teacher"))
    image = photograph(name)
    ours, theirs = to_pixels(image, planned, CAP), timms_pixels(image, (112, 196), rules)
    assert ours is not None
    assert ours.shape == theirs.shape
    assert np.abs(ours.astype(int) - theirs).mean() < 6


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vit_base_patch14_dinov2.lvd142m", (224, "bicubic", "center")),
        ("vit_base_patch16_dinov3.lvd1689m", (224, "bicubic", "center")),
        ("vit_base_patch16_clip_224.openai", (248, "bicubic", "center")),
        ("vit_base_patch16_224.mae", (248, "bicubic", "center")),
        ("eva02_base_patch14_448.mim_in22k_ft_in22k_in1k", (None, "bicubic", "squash")),
    ],
)
def test_rules_of_real_teachers(name: str, expected: tuple[int | None, str, str]) -> None:
    rules = teacher_rules(name)
    planned = plan_preprocessing((224, 224), rules, PreprocessingRequest(rules="teacher"))
    assert (planned.resize, planned.interpolation, planned.crop_mode) == expected
    reference = plan_preprocessing((224, 224), rules)
    assert (reference.resize, reference.interpolation, reference.crop_mode) == (256, "bicubic", "center")
    assert planned.mean == reference.mean == rules.mean


def test_what_is_said_beside_the_rules_wins() -> None:
    request = PreprocessingRequest(rules="teacher", resize=250, interpolation="box", crop_mode="border")
    planned = plan_preprocessing((224, 224), HALF, request)
    assert (planned.resize, planned.interpolation, planned.crop_mode) == (250, "box", "border")
    squashed = plan_preprocessing((224, 224), HALF, PreprocessingRequest(crop_mode="squash"))
    assert (squashed.resize, squashed.crop_mode) == (None, "squash")
    fitted = plan_preprocessing((224, 224), HALF, PreprocessingRequest(crop_mode="border"))
    assert (fitted.resize, fitted.crop_mode) == (224, "border")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"interpolation": "random"}, "own interpolation is 'random'.*choose one with --interpolation"),
        ({"crop_mode": "ragged"}, "own crop mode is 'ragged'.*choose one with --crop-mode"),
        ({"crop_mode": "squash", "crop_pct": 0.95}, "squashes an image and then cuts 0.95 out of it"),
    ],
)
def test_rules_that_cannot_be_followed_are_refused(fields: dict[str, Any], message: str) -> None:
    rules = TeacherRules(mean=(0.5,) * 3, std=(0.5,) * 3, **fields)
    with pytest.raises(ConfigError, match=message):
        plan_preprocessing((224, 224), rules, PreprocessingRequest(rules="teacher"))
    said = PreprocessingRequest(rules="teacher", interpolation="bicubic", crop_mode="center")
    assert plan_preprocessing((224, 224), rules, said).crop_mode == "center"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rules": "mine"}, "the preprocessing is one of reference, teacher; got 'mine'"),
        ({"interpolation": "cubic"}, "the interpolation is one of bicubic, .* got 'cubic'"),
        ({"crop_mode": "middle"}, "the crop mode is one of center, squash, border; got 'middle'"),
        ({"crop_mode": "squash", "resize": 256}, "so a resize of 256 has no meaning"),
        (
            {"mean": (123.7, 116.3, 103.5)},
            "the mean is three numbers from 0 to 1, .* got 123.7, 116.3",
        ),
        ({"mean": (0.5, 0.5, float("nan"))}, "the mean is three numbers .* got 0.5, 0.5, nan"),
        ({"std": (0.2, 0.0, 0.2)}, "the std is three numbers from 0.001 to 1, .* take each / 255"),
    ],
)
def test_requests_that_mean_nothing(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PreprocessingRequest(**fields)


@pytest.mark.parametrize("rules", ["reference", "teacher"])
def test_mean_and_deviation_that_are_said_take_the_teachers_place(rules: str) -> None:
    said = PreprocessingRequest(rules=rules, mean=(0.48, 0.0, 0.4), std=(0.27, 0.26, 1.0))
    planned = plan_preprocessing((32, 32), HALF, said)
    assert (planned.mean, planned.std) == ((0.48, 0.0, 0.4), (0.27, 0.26, 1.0))
    alone = plan_preprocessing((32, 32), HALF, PreprocessingRequest(rules=rules, std=(0.2, 0.2, 0.2)))
    assert (alone.mean, alone.std) == ((0.5, 0.5, 0.5), (0.2, 0.2, 0.2))
