"""The demo's crops: the same for the same seed, from disjoint halves, there as a whole or not at all."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from activault.extract import demo_crops as module
from activault.extract.demo_crops import PHOTOGRAPHS, DemoImages, demo_images, photograph
from activault.extract.images import ImageFolder
from activault.store import ConfigError, ImageSourceError, MissingExtraError, split_of

FEW = DemoImages(num_train=3, num_test=2, side=20)


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.png")}


def test_the_defaults_are_the_demos() -> None:
    assert len(PHOTOGRAPHS) == 10
    assert DemoImages() == DemoImages(seed=0, num_train=70, num_test=36, side=84, smallest=0.5)


def test_crops_are_labelled_by_photograph_and_split_by_folder(tmp_path: Path) -> None:
    source = ImageFolder(demo_images(tmp_path / "images", FEW))
    assert set(source.labels) == set(PHOTOGRAPHS)
    splits = [split_of(key) for key in source.keys]
    assert (splits.count("train"), splits.count("test")) == (30, 20)
    with Image.open(source.path / source.keys[0]) as image:
        assert (image.size, image.mode) == ((20, 20), "RGB")


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(tmp_path: Path) -> None:
    first = content(demo_images(tmp_path / "a", FEW))
    again = content(demo_images(tmp_path / "b", FEW))
    other = content(demo_images(tmp_path / "c", DemoImages(num_train=3, num_test=2, side=20, seed=1)))
    assert first == again
    assert len(set(first.values())) == len(first)
    assert all(first[name] != other[name] for name in first)


@pytest.mark.parametrize("size", [(60, 40), (40, 60)], ids=["wide", "tall"])
def test_training_and_test_crops_share_no_pixel(
    size: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = Image.new("RGB", size, "red")
    middle, centre = size[0] // 2, size[1] // 2
    image.paste("blue", (middle, 0, size[0], centre))
    image.paste("blue", (0, centre, middle, size[1]))
    monkeypatch.setattr(module, "photograph", lambda _: image)
    folder = demo_images(tmp_path / "images", DemoImages(num_train=20, num_test=20, side=16))
    for split, colour in (("train", (255, 0, 0)), ("test", (0, 0, 255))):
        for path in (folder / split).rglob("*.png"):
            with Image.open(path) as crop:
                assert (np.asarray(crop) == colour).all()


def test_crops_differ_in_size_and_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ramp = np.zeros((100, 400, 3), np.uint8)
    ramp[..., 0] = np.linspace(0, 255, 400).astype(np.uint8)
    monkeypatch.setattr(module, "photograph", lambda _: Image.fromarray(ramp))
    folder = demo_images(tmp_path / "images", DemoImages(num_train=60, num_test=1, side=16))
    spans = []
    for path in (folder / "train" / "coffee").iterdir():
        with Image.open(path) as crop:
            row = np.asarray(crop)[0, :, 0].astype(int)
        spans.append((row[-1] - row[0]) / 255 * 400)
    assert 23 < min(spans) < 32
    assert 42 < max(spans) <= 51


def test_every_photograph_comes_from_an_installed_wheel() -> None:
    for name in PHOTOGRAPHS:
        image = photograph(name)
        assert image.mode == "RGB"
        assert min(image.size) >= 256


def test_a_finished_folder_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = demo_images(tmp_path / "images", FEW)
    monkeypatch.setattr(module, "photograph", lambda _: pytest.fail("nothing is to be made"))
    assert demo_images(tmp_path / "images", FEW) == folder


def test_crops_of_other_options_and_folders_with_holes_are_made_anew(tmp_path: Path) -> None:
    folder = demo_images(tmp_path / "images", FEW)
    before = content(folder)
    next((folder / "train" / "coffee").iterdir()).unlink()
    assert content(demo_images(folder, FEW)) == before
    demo_images(folder, DemoImages(num_train=1, num_test=1, side=20))
    assert len(content(folder)) == 20
    assert [path.name for path in tmp_path.iterdir()] == ["images"]


def test_a_half_made_folder_is_never_taken_for_a_finished_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".images.half-killed" / "train").mkdir(parents=True)
    made = module._write_crops

    def stop(name: str, folder: Path, options: DemoImages) -> None:
        if name == "retina":
            raise KeyboardInterrupt
        made(name, folder, options)

    with monkeypatch.context() as patch:
        patch.setattr(module, "_write_crops", stop)
        with pytest.raises(KeyboardInterrupt):
            demo_images(tmp_path / "images", FEW)
    assert list(tmp_path.iterdir()) == []
    assert len(content(demo_images(tmp_path / "images", FEW))) == 50


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.png").write_bytes(b"precious")
    with pytest.raises(ImageSourceError, match="exists and is not a folder of demo images"):
        demo_images(tmp_path, FEW)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.png"]


def test_a_file_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "images").write_bytes(b"precious")
    with pytest.raises(ImageSourceError, match="images exists and is not a folder of demo images"):
        demo_images(tmp_path / "images", FEW)
    with pytest.raises(ImageSourceError, match=r"could not be made at .*inside \(.*\); choose a folder"):
        demo_images(tmp_path / "images" / "inside", FEW)
    assert (tmp_path / "images").read_bytes() == b"precious"


def test_missing_wheels_name_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"are in skimage; pip install 'activault\[demo\]'"):
        demo_images(tmp_path / "images", FEW)
    assert list(tmp_path.iterdir()) == []


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="counts and side are at least 1"):
        DemoImages(num_train=0)
