"""Flags of `extract` on the teacher's side: patches, preprocessing, weights that stay at home."""

from __future__ import annotations

from pathlib import Path

import pytest

from activault.store import open_store

from .conftest import RECIPE, Command


def test_patches_preprocessing_and_weights(
    activault: Command, images: Path, teacher: tuple[str, ...], tmp_path: Path
) -> None:
    flags = ("--patches", "every:3", "--interpolation", "bilinear", "--crop-mode", "border")
    path = tmp_path / "s.zarr"
    answer = activault(
        "extract", images, path, *teacher, *flags, "--preprocessing", "teacher", "--no-teacher-weights"
    )
    assert answer.status == 0
    store = open_store(path)
    assert store.layout.kept_patches == (0, 3)
    planned = store.manifest.preprocessing
    assert planned is not None
    assert (planned.resize, planned.interpolation, planned.crop_mode) == (32, "bilinear", "border")
    assert [file.name for file in store.teacher_dir.iterdir()] == ["config.json"]


def test_mean_and_deviation(
    activault: Command, images: Path, teacher: tuple[str, ...], tmp_path: Path
) -> None:
    """What a weights file under a plain name was trained with is recorded, compared, and kept by growth."""
    path, first = tmp_path / "s.zarr", (*teacher, "--layers", "0", "--no-teacher-weights")
    flags = ("--mean", "0.48", "0.46", "0.41", "--std", "0.27", "0.26", "0.28")
    assert activault("extract", images, path, *first, *flags).status == 0
    planned = open_store(path).manifest.preprocessing
    assert planned is not None
    assert (planned.mean, planned.std) == ((0.48, 0.46, 0.41), (0.27, 0.26, 0.28))
    assert activault("extract", images, path, *first, *flags).status == 0
    answer = activault("extract", images, path, *first, *flags[:4])
    assert answer.status == 1
    assert "std is [0.27, 0.26, 0.28] there and [0.5" in answer.error_line
    assert answer.error_line.endswith("ask for what is there with --std 0.27 0.26 0.28")
    assert activault("extract", images, tmp_path / "t.zarr", *first).status == 0
    assert open_store(tmp_path / "t.zarr").arrays_digest != open_store(path).arrays_digest
    weights = teacher[teacher.index("--weights") + 1]
    grown = activault("extract", images, path, "--extend", "--layers", "1", "--weights", weights, *flags[:4])
    assert grown.status == 0
    assert open_store(path).layers == (0, 1)
    answer = activault("extract", images, path, "--extend", "--layers", "2", *flags[:3], "0.4")
    assert answer.status == 1
    assert "mean is (0.48, 0.46, 0.41) in " in answer.error_line


def test_training_needs_all_patches(
    activault: Command, images: Path, teacher: tuple[str, ...], tmp_path: Path
) -> None:
    store, recipe = tmp_path / "s.zarr", tmp_path / "r.toml"
    assert activault("extract", images, store, *teacher, "--patches", "mean").status == 0
    recipe.write_text(RECIPE.format(store=store))
    answer = activault("train", recipe, "--out", tmp_path / "run")
    assert answer.status == 2
    assert "made without most patches" in answer.error_line


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--patches", "some"), "patches are all, mean, every:N or random:N"),
        (("--patches", "random:5"), "a grid of 2 x 2 has 4 patches; got 'random:5'"),
        (("--crop-mode", "squash"), "so a resize of 32 has no meaning"),
        (("--mean", "124", "116", "104"), "the mean is three numbers from 0 to 1"),
        (("--patches", "mean", "--tokens", "cls"), "without patches; keep them too"),
        (("--rank", "1"), "rank and world go together; got rank 1 and world None"),
        (("--rank", "2", "--world", "2"), "a rank is among 0 to world - 1; got rank 2 of world 2"),
        (("--lease", "0"), "a lease is from 1 to 86,400 seconds; got 0"),
    ],
)
def test_flags_that_cannot_be_used_are_one_line(
    activault: Command,
    images: Path,
    teacher: tuple[str, ...],
    tmp_path: Path,
    flags: tuple[str, ...],
    message: str,
) -> None:
    answer = activault("extract", images, tmp_path / "s.zarr", *teacher, *flags)
    assert answer.status == 2
    assert message in answer.error_line
    assert not (tmp_path / "s.zarr").exists()
