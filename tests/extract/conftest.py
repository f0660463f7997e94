"""One thread, tiny random teachers, and folders of small images."""

from __future__ import annotations

import colorsys
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from activault.extract import architectures
from activault.extract.backbone import Backbone, load_backbone, save_teacher
from activault.extract.run import ExtractOptions


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session", autouse=True)
def _no_fsync() -> Iterator[None]:
    """No test cuts the power, and waiting for the disk took most of their time; killed writers do sync."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(scope="session")
def tiny() -> Backbone:
    """timm's smallest test ViT with random weights: 6 blocks, 64 wide, 2x2 patches of 16 pixels."""
    return load_backbone("test_vit", image_size=32, resize=32, random_seed=0)


@pytest.fixture(scope="session")
def tiny_weights(tiny: Backbone, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny teacher's weights as a file."""
    folder = tmp_path_factory.mktemp("tiny")
    save_teacher(tiny, folder)
    return folder / "model.safetensors"


@pytest.fixture
def small_models(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every model that timm is asked for is a small one: its classes, options and code, few narrow blocks.

    Heads are of 16 channels: rotary positions take a multiple of 4.
    """
    create: Callable[..., Any] = timm.create_model

    def small(name: str, **options: Any) -> Any:
        return create(name, **{"embed_dim": 32, "depth": 3, "num_heads": 2, **options})

    monkeypatch.setattr(timm, "create_model", small)
    architectures.outline.cache_clear()
    yield
    architectures.outline.cache_clear()


def colour(number: int) -> tuple[int, int, int]:
    """A colour of its own for each number below 1,000."""
    red, green, blue = colorsys.hsv_to_rgb((number * 0.618) % 1.0, 0.4 + 0.5 * (number % 7) / 7, 0.9)
    return int(red * 255), int(green * 255), int(blue * 255)


MakeFolder = Callable[..., Path]


@pytest.fixture
def make_folder(tmp_path: Path) -> MakeFolder:
    """`make_folder(count)`: PNGs of 32x32 pixels, number i in one colour, in the class folder `i % 3`."""

    def make(count: int, name: str = "photos") -> Path:
        for number in range(count):
            place = tmp_path / name / f"class{number % 3}"
            place.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (32, 32), colour(number)).save(place / f"{number:03d}.png")
        return tmp_path / name

    return make


@pytest.fixture(scope="session")
def noise() -> np.ndarray:
    """(40, 60, 3) uint8: an image that no two places of are alike."""
    return np.random.default_rng(3).integers(0, 256, (40, 60, 3), dtype=np.uint8)


@pytest.fixture
def options(tiny_weights: Path) -> ExtractOptions:
    return ExtractOptions(
        teacher="test_vit",
        weights=tiny_weights,
        image_size=32,
        resize=32,
        layers="0,6",
        shard_rows=8,
        batch_size=4,
        workers=2,
        device="cpu",
    )


def changed(options: ExtractOptions, **fields: Any) -> ExtractOptions:
    return ExtractOptions(**{**vars(options), **fields})


@pytest.fixture
def single(options: ExtractOptions) -> ExtractOptions:
    """One image a forward, so that a row does not depend on those that it is computed with."""
    return changed(options, batch_size=1, tokens="cls,patches", layers="2,6")
