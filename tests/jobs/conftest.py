"""The command line on a tiny random teacher: a folder of images, a store, a recipe, a run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from activault.extract.backbone import load_backbone, save_teacher
from activault.jobs import sweep as sweep_module
from activault.jobs import sweep_run
from activault.jobs.cli import main
from activault.jobs.sweep_local import Ended, LocalJob

RECIPE = """
store = "{store}"
cuts = [2, 4]
init = "teacher-middle"
[model]
depth = "normalised"
[stage1]
steps = 4
batch_size = 4
warmup_steps = 1
[stage2]
steps = 6
batch_size = 4
warmup_steps = 1
"""


@dataclass(frozen=True)
class Answer:
    """What a command said."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, which is JSON and nothing else."""
        return json.loads(self.out)

    @property
    def error_line(self) -> str:
        """The one line that an error is told in."""
        lines = [line for line in self.err.splitlines() if line.startswith("activault: ")]
        assert len(lines) == 1, self.err
        assert "Traceback" not in self.err
        return lines[0]


Command = Callable[..., Answer]


@pytest.fixture
def activault(capfd: pytest.CaptureFixture[str]) -> Command:
    """`activault("info", store)`: one command in this process."""

    def command(*arguments: object) -> Answer:
        capfd.readouterr()
        status = main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return Answer(status, out, err)

    return command


def write_images(folder: Path, count: int, split: str) -> None:
    """Noise of one colour a class: two classes that a probe can tell apart."""
    rng = np.random.default_rng(len(split))
    for number in range(count):
        name = ("blue", "red")[number % 2]
        place = folder / split / name
        place.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 80, (32, 32, 3), dtype=np.uint8)
        pixels[..., 0 if name == "red" else 2] += 150
        Image.fromarray(pixels).save(place / f"{number:02d}.png")


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """16 training and 8 test images in two classes."""
    folder = tmp_path_factory.mktemp("images") / "photos"
    write_images(folder, 16, "train")
    write_images(folder, 8, "test")
    return folder


@pytest.fixture(scope="session")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Flags of the tiny teacher."""
    folder = tmp_path_factory.mktemp("teacher")
    save_teacher(load_backbone("test_vit", image_size=32, resize=32, random_seed=0), folder)
    weights = str(folder / "model.safetensors")
    return ("--teacher", "test_vit", "--weights", weights, "--image-size", "32", "--resize", "32")


@pytest.fixture(scope="session")
def store(images: Path, teacher: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished store of three shards."""
    path = tmp_path_factory.mktemp("store") / "photos.zarr"
    assert main(["extract", str(images), str(path), *teacher, "--shard-rows", "8", "--json"]) == 0
    return path


@pytest.fixture(scope="session")
def recipe(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe of a few steps."""
    path = tmp_path_factory.mktemp("recipe") / "tiny.toml"
    path.write_text(RECIPE.format(store=store))
    return path


@pytest.fixture(scope="session")
def run(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    path = tmp_path_factory.mktemp("run") / "k3"
    assert main(["train", str(recipe), "--out", str(path), "--device", "cpu", "--json"]) == 0
    return path


@pytest.fixture(scope="session")
def in_this_process() -> Callable[[list[str]], Callable[..., Iterator[Ended]]]:
    """A stand-in for `run_locally`, where torch is there already; it notes the jobs that it carries out."""

    def stand_in(names: list[str]) -> Callable[..., Iterator[Ended]]:
        def here(jobs: Sequence[LocalJob], **_: Any) -> Iterator[Ended]:
            for job in jobs:
                names.append(job.name)
                job.log.parent.mkdir(parents=True, exist_ok=True)
                whole, sys.stderr = sys.stderr, job.log.open("w")
                try:
                    status = sweep_run.main(job.command[-2])
                finally:
                    sys.stderr.close()
                    sys.stderr = whole
                yield Ended(job=job, status=status, said=job.log.read_text())

        return here

    return stand_in


@pytest.fixture
def carried_out(in_this_process: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of a sweep's jobs, as they are carried out in this process."""
    names: list[str] = []
    monkeypatch.setattr(sweep_module, "run_locally", in_this_process(names))
    return names
