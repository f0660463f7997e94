"""Workers as processes: started by torchrun, and killed, stopped, added and taken away for a whole run."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch.distributed.run
from fork_server import forked
from PIL import Image

from activault.extract.backbone import load_backbone, save_teacher
from activault.extract.run import ExtractOptions, extract
from activault.store import open_store, verify_store

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
WORKER = """
import sys
from activault.jobs.cli import main
if status := main(sys.argv[1:]):
    sys.exit(status)
"""


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 small images of noise, one of them cut short."""
    folder, noise = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for number in range(100):
        pixels = noise.integers(0, 256, (20 + number % 3, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:03d}.png")
    (folder / "050.png").write_bytes((folder / "050.png").read_bytes()[:200])
    return folder


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Flags of a tiny teacher with random weights."""
    folder = tmp_path_factory.mktemp("teacher")
    save_teacher(load_backbone("test_vit", image_size=32, resize=32, random_seed=0), folder)
    weights = str(folder / "model.safetensors")
    return ["--teacher", "test_vit", "--weights", weights, "--image-size", "32", "--resize", "32"]


@pytest.fixture
def _handlers() -> Iterator[None]:
    """Torchrun's agent leaves its own for signals behind."""
    kept = {
        each: signal.getsignal(each)
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    }
    yield
    for each, handler in kept.items():
        signal.signal(each, handler)


def test_workers_that_are_killed_all_the_time_make_the_same_store(
    images: Path, teacher: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The benchmark's own programme, which does it with a real teacher for minutes."""
    forked()
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    import workers  # type: ignore[import-not-found]

    flags = [*teacher, "--shard-rows", "10", "--device", "cpu", "--layers", "0,3,6"]
    monkeypatch.setattr(sys, "argv", ["workers.py", str(images), *flags, "--every", "0.15", "--lease", "2"])
    status = workers.main()
    said = capsys.readouterr()
    assert status == 0, said.err
    assert "100 rows of test_vit in 10 shards" in said.out
    events = re.search(r"with (\d+) events", said.out)
    assert events is not None
    assert int(events[1]) >= 1
    assert "the same digest and arrays_digest, verified deep and by values, nothing left over" in said.out


@pytest.mark.usefixtures("_handlers")
def test_torchrun_starts_two(images: Path, teacher: list[str], tmp_path: Path) -> None:
    """Its command in this process, and its workers from the server of forks."""
    forked()
    store, script = tmp_path / "s.zarr", tmp_path / "worker.py"
    script.write_text(WORKER)
    launching = ["--standalone", "--nproc-per-node", "2", "--start-method", "forkserver", "--run-path"]
    launching += ["--redirects", "3", "--log-dir", str(tmp_path / "logs"), str(script)]
    flags = [*teacher, "--device", "cpu", "--shard-rows", "10", "--limit", "60"]
    torch.distributed.run.main([*launching, "extract", str(images), str(store), *flags])
    said = "".join(file.read_text() for file in sorted((tmp_path / "logs").rglob("std*.log")))
    for rank in range(2):
        assert f"worker {rank} of 2 (by torchrun)" in said
    options = ExtractOptions(
        teacher="test_vit",
        weights=Path(teacher[3]),
        image_size=32,
        resize=32,
        device="cpu",
        shard_rows=10,
        limit=60,
    )
    alone = extract(images, tmp_path / "alone.zarr", options)
    assert said.count(alone.digest) == 2
    assert verify_store(store, values=True).faults == ()
    assert open_store(store).complete
