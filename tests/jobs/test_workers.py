"""Workers as processes: started by torchrun, and killed, stopped, added and taken away for a whole run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from activault.extract.backbone import load_backbone, save_teacher
from activault.extract.run import ExtractOptions, extract
from activault.store import open_store, verify_store

WORKERS = Path(__file__).parents[2] / "benchmarks" / "workers.py"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 small images of noise, one of them cut short."""
    folder, noise = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for number in range(200):
        pixels = noise.integers(0, 256, (20 + number % 3, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:03d}.png")
    (folder / "100.png").write_bytes((folder / "100.png").read_bytes()[:200])
    return folder


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Flags of a tiny teacher with random weights."""
    folder = tmp_path_factory.mktemp("teacher")
    save_teacher(load_backbone("test_vit", image_size=32, resize=32, random_seed=0), folder)
    weights = str(folder / "model.safetensors")
    return ["--teacher", "test_vit", "--weights", weights, "--image-size", "32", "--resize", "32"]


def test_workers_that_are_killed_all_the_time_make_the_same_store(images: Path, teacher: list[str]) -> None:
    """The benchmark's own programme, which does it with a real teacher for minutes."""
    command = [sys.executable, str(WORKERS), str(images), *teacher, "--shard-rows", "20"]
    command += ["--every", "0.8", "--lease", "2", "--layers", "0,3,6"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    assert "200 rows of test_vit in 10 shards" in done.stdout
    assert "the same digest and arrays_digest, verified deep and by values, nothing left over" in done.stdout


def test_torchrun_starts_two(images: Path, teacher: list[str], tmp_path: Path) -> None:
    store = tmp_path / "s.zarr"
    extracting = ["-m", "activault.jobs", "extract", str(images), str(store), *teacher]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    done = subprocess.run(
        [*command, *extracting, "--shard-rows", "20", "--limit", "100"],
        capture_output=True,
        text=True,
        timeout=900,
        env=ENVIRONMENT,
    )
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        assert f"worker {rank} of 2 (by torchrun)" in done.stderr
    options = ExtractOptions(
        teacher="test_vit", weights=Path(teacher[3]), image_size=32, resize=32, shard_rows=20, limit=100
    )
    alone = extract(images, tmp_path / "alone.zarr", options)
    assert done.stdout.count(alone.digest) == 2
    assert verify_store(store, values=True).faults == ()
    assert open_store(store).complete
