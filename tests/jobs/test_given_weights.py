"""A store that was made without its teacher's weights: `--weights` gives them to train, probe and analyze."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from activault.jobs.cli import main

from .conftest import RECIPE, Command


@pytest.fixture(scope="module")
def without(images: Path, teacher: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished store whose teacher folder has no weights, and a recipe beside it."""
    path = tmp_path_factory.mktemp("without") / "photos.zarr"
    assert main(["extract", str(images), str(path), *teacher, "--no-teacher-weights", "--json"]) == 0
    path.with_name("recipe.toml").write_text(RECIPE.format(store=path))
    return path


def test_every_command_that_needs_the_teacher_takes_its_weights(
    activault: Command, without: Path, teacher: tuple[str, ...], tmp_path: Path
) -> None:
    weights, run = teacher[teacher.index("--weights") + 1], tmp_path / "run"
    recipe = without.with_name("recipe.toml")
    answer = activault("train", recipe, "--out", run, "--device", "cpu")
    assert answer.status == 2
    assert "was made without them; give those of test_vit (file; hash " in answer.error_line
    assert 'with --weights, or start the blocks at random (init = "random")' in answer.error_line
    assert activault("train", recipe, "--out", run, "--device", "cpu", "--weights", weights).status == 0

    answer = activault("probe", without, "--run", run)
    assert answer.status == 2
    assert "with --weights, or probe from a store" in answer.error_line
    answer = activault("analyze", without, "--run", run, "--out", tmp_path / "bare")
    assert answer.status == 0, answer.err
    numbers = json.loads((tmp_path / "bare" / "numbers.json").read_text())
    assert "left out: this needs the teacher's weights" in numbers["notes"]["probes"]
    answer = activault("analyze", without, "--run", run, "--out", tmp_path / "full", "--weights", weights)
    assert answer.status == 0, answer.err
    assert json.loads((tmp_path / "full" / "numbers.json").read_text())["probes"]
    assert activault("probe", without, "--run", run, "--weights", weights, "--json").json["scores"]


def test_other_weights_are_refused(
    activault: Command, without: Path, teacher: tuple[str, ...], tmp_path: Path
) -> None:
    tensors = load_file(teacher[teacher.index("--weights") + 1])
    tensors["norm.bias"] += 1
    save_file(tensors, tmp_path / "other.safetensors")
    answer = activault(
        "train",
        without.with_name("recipe.toml"),
        "--out",
        tmp_path / "run",
        "--weights",
        tmp_path / "other.safetensors",
    )
    assert answer.status == 1
    assert "holds other weights" in answer.error_line
