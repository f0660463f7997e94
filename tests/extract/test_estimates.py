"""A dry run writes nothing, and what it says of a store, of what is left of it and of memory comes true."""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from activault.extract import estimates, trial
from activault.extract.estimates import Estimate, estimate
from activault.extract.file_times import seconds_a_file
from activault.extract.memory import PeakMemory, resident_bytes
from activault.extract.run import ExtractOptions, extract
from activault.extract.workers import Worker
from activault.store import (
    ConfigError,
    ImageSourceError,
    NotAStoreError,
    StoreError,
    StoreMismatchError,
    WeightsError,
    open_store,
)

from .conftest import MakeFolder, changed

SECONDS = 0.3


def quick(images: object, store: Path | str, options: ExtractOptions) -> Estimate:
    return estimate(images, store, options, seconds=SECONDS)  # type: ignore[arg-type]


def noise_images(folder: Path, count: int, size: int = 40) -> Path:
    rng = np.random.default_rng(0)
    folder.mkdir()
    for number in range(count):
        pixels = rng.integers(0, 256, (size, size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:03d}.png")
    return folder


@pytest.mark.parametrize(
    "fields",
    [
        {"dtype": "bfloat16"},
        {"dtype": "int8"},
        {"dtype": "float16", "compression": "none"},
        {"dtype": "float32", "tokens": "cls", "teacher_weights": False},
    ],
    ids=["bfloat16", "int8", "float16-plain", "cls"],
)
def test_what_is_told_is_what_the_store_becomes(
    tmp_path: Path, options: ExtractOptions, fields: dict[str, Any]
) -> None:
    images, path = noise_images(tmp_path / "photos", 60), tmp_path / "new" / "s.zarr"
    asked = changed(options, **{"shard_rows": 16, **fields})
    found = quick(images, path, asked)
    assert not path.parent.exists()
    assert (found.left.rows, found.left.shards) == (60, 4)

    summary, size = extract(images, path, asked), found.size
    store = open_store(path)
    manifest = store.manifest
    grid = (manifest.num_rows, manifest.shard_rows, manifest.chunk_rows, manifest.num_shards)
    assert (size.num_rows, size.shard_rows, size.chunk_rows, size.num_shards) == grid
    assert (size.layers, tuple(size.tokens)) == (manifest.layers, manifest.kinds)
    files = [file for file in path.rglob("*") if file.is_file()]
    assert found.left.files == size.num_files == len(files)
    assert size.float32_bytes == summary.float32_bytes
    on_disk = sum(file.stat().st_size for file in files)
    assert size.expected_bytes == pytest.approx(on_disk, rel=0.15)
    # Of values alone: the teacher is most of so small a store.
    beside = size.expected_bytes - on_disk
    assert abs(beside) < 0.15 * summary.num_bytes + 40_000


def test_bytes_are_scaled_from_real_rows(tmp_path: Path, options: ExtractOptions) -> None:
    """Without compression there is nothing to measure, so that every byte is known."""
    images = noise_images(tmp_path / "photos", 24)
    asked = changed(options, dtype="float16", compression="none", shard_rows=8, layers="0-6")
    found = quick(images, tmp_path / "s.zarr", asked)
    extract(images, tmp_path / "s.zarr", asked)
    on_disk = sum(file.stat().st_size for file in (tmp_path / "s.zarr").rglob("*") if file.is_file())
    assert found.size.lowest_bytes == found.size.expected_bytes == found.size.highest_bytes
    assert abs(found.size.expected_bytes - on_disk) < 80_000, "zarr.json files, headers, tables"


def test_of_a_store_that_was_begun_what_is_left(tmp_path: Path, options: ExtractOptions) -> None:
    images, path = noise_images(tmp_path / "photos", 30), tmp_path / "s.zarr"
    extract(images, path, options)
    (path / "index.parquet").unlink()
    (path / "shards" / "00001.json").unlink()
    next((path / "layer_06" / "patches" / "c" / "3").rglob("0")).joinpath("0").unlink(missing_ok=True)
    shutil.rmtree(path / "layer_06" / "patches" / "c" / "3")
    before = {file: (file.stat().st_mtime_ns, file.stat().st_size) for file in path.rglob("*")}
    found = quick(images, path, options)
    assert (found.left.rows, found.left.shards) == (8 + 6, 2)
    assert found.left.files == 2 * (4 + 2) + 2
    assert found.left.bytes < found.size.expected_bytes / 2
    assert {file: (file.stat().st_mtime_ns, file.stat().st_size) for file in path.rglob("*")} == before
    assert extract(images, path, options).num_new == found.left.rows


@pytest.mark.parametrize("given", [True, False], ids=["weights-given", "hub"])
def test_of_a_finished_store_nothing_is_left(
    tmp_path: Path, options: ExtractOptions, given: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, path = noise_images(tmp_path / "photos", 10), tmp_path / "s.zarr"
    extract(images, path, options)
    if not given:
        monkeypatch.setattr("activault.extract.matching.hub_source", lambda name: "file")
    found = quick(images, path, options if given else changed(options, weights=None))
    assert (found.left.rows, found.left.files, found.speed, found.memory) == (0, 0, None, None)
    assert found.size.expected_bytes == open_store(path).num_bytes
    assert found.notes == ("the store is there, and complete: nothing is left to do",)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"seed": 1}, StoreMismatchError, "seed is 0 there and 1 here"),
        ({"layers": "0"}, StoreMismatchError, "layers is"),
        ({"layers": "0-7"}, ConfigError, "layer 7 in '0-7' is out of range"),
        ({"weights": Path("/absent.pth")}, WeightsError, "there is no weights file at"),
    ],
    ids=["seed", "layers", "no-layer", "weights"],
)
def test_what_extract_refuses_is_refused(
    tmp_path: Path,
    options: ExtractOptions,
    fields: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    images, path = noise_images(tmp_path / "photos", 10), tmp_path / "s.zarr"
    extract(images, path, options)
    (path / "index.parquet").unlink()
    with pytest.raises(error, match=message):
        quick(images, path, changed(options, **fields))


def test_a_place_that_is_something_else_is_refused(tmp_path: Path, options: ExtractOptions) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("mine")
    with pytest.raises(NotAStoreError):
        quick(noise_images(tmp_path / "photos", 3), tmp_path / "notes", options)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ImageSourceError):
        quick(tmp_path / "empty", tmp_path / "s.zarr", options)


def test_bad_images_are_counted_and_told(
    make_folder: MakeFolder, tmp_path: Path, options: ExtractOptions
) -> None:
    images = make_folder(12)
    (images / "class0" / "bad.png").write_bytes(b"")
    found = quick(images, tmp_path / "s.zarr", options)
    assert found.speed is not None
    assert 0 < found.speed.num_bad < found.speed.num_images
    assert any(
        f"{found.speed.num_bad} of the {found.speed.num_images} images" in note for note in found.notes
    )


def test_waiting_for_the_disk_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file and the folder's entry of it; in a folder that is gone after."""
    synced: list[int] = []
    sync = os.fsync

    def slow(handle: int) -> None:
        synced.append(handle)
        time.sleep(0.002)
        sync(handle)

    monkeypatch.setattr(os, "fsync", slow)
    assert seconds_a_file(3) > 0.004
    assert len(synced) == 6


def test_the_rate_has_a_spread_and_gives_the_time(
    tmp_path: Path, options: ExtractOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = noise_images(tmp_path / "photos", 20)
    found = quick(images, tmp_path / "s.zarr", options)
    assert found.speed is not None
    assert 0 < found.speed.low <= found.speed.high
    assert found.left.seconds == pytest.approx(20 / found.speed.images_a_second)
    monkeypatch.setattr(estimates, "seconds_a_file", lambda: 0.5)
    two = quick(images, tmp_path / "s.zarr", changed(options, world=2))
    assert two.left.disk_seconds == two.left.files / 2 * 0.5
    assert two.speed is not None
    assert two.left.seconds == pytest.approx(10 / two.speed.images_a_second)


def test_peak_memory_is_within_half_of_the_real_runs(tmp_path: Path, options: ExtractOptions) -> None:
    """Of what comes on top of the process: two shards of 46 MB of values at the most, and the batches."""
    images = noise_images(tmp_path / "photos", 136, size=64)
    asked = changed(options, image_size=320, resize=None, layers="all", dtype="float32", shard_rows=64)
    found = quick(images, tmp_path / "s.zarr", asked)
    assert found.memory is not None
    on_top = found.memory.peak_host - found.memory.host["process"]
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what earlier work gave back would be used again, and not be counted
    base = resident_bytes()
    with PeakMemory() as memory:
        extract(images, tmp_path / "s.zarr", asked)
    really = memory.host_bytes - base
    assert found.memory.host["buffers"] == 2 * 64 * 7 * 401 * 64 * 4
    assert really > 60e6, "more than one buffer"
    assert really / 1.5 < on_top < really * 1.5


@pytest.fixture
def in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in memory of 64 MB, on a machine of 16 GB; and another one for temporary files."""
    for name in ("memory", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(trial, "_IN_MEMORY", tmp_path / "memory")
    monkeypatch.setattr(trial, "memory_bytes", lambda: 16 << 30)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=64 << 20))
    return tmp_path / "memory"


def test_a_trial_writes_into_memory_only_where_that_has_room(
    in_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert trial._quick_folder(64 << 20) == in_memory
    assert trial._quick_folder((64 << 20) + 1) is None
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=8 << 30))
    assert trial._quick_folder(1 << 30) == in_memory
    assert trial._quick_folder((1 << 30) + 1) is None, "it counts as the job's memory"


@pytest.mark.parametrize(
    ("free", "place", "remedy"),
    [
        (64 << 20, "memory", "free space there$"),
        (1000, "temporary", "free space there, or set TMPDIR to another folder$"),
    ],
    ids=["in memory", "in TMPDIR"],
)
def test_a_trial_fails_as_the_run_would(
    make_folder: MakeFolder,
    in_memory: Path,
    options: ExtractOptions,
    monkeypatch: pytest.MonkeyPatch,
    free: int,
    place: str,
    remedy: str,
) -> None:
    """The engine's own errors come out, and nothing of the trial is left behind."""
    folder = in_memory.parent
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(trial, "encode_shard", full)
    with pytest.raises(StoreError, match=rf"writes into .*/{place}/.*No space left on device\); {remedy}"):
        quick(make_folder(6), folder / "s.zarr", options)
    assert not list((folder / place).iterdir())


def test_memory_is_for_as_many_workers_as_share_the_machine(
    make_folder: MakeFolder, tmp_path: Path, options: ExtractOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, needy = make_folder(6), "has not the memory"
    one = quick(images, tmp_path / "s.zarr", options)
    assert one.memory is not None
    assert one.memory.workers == 1
    assert not any(needy in note for note in one.notes)
    monkeypatch.setattr("activault.extract.sizing.memory_bytes", lambda: 2 * one.memory.peak_host)
    three = quick(images, tmp_path / "s.zarr", Worker(world=3, local_world=3).applied(options))
    assert three.memory is not None
    assert three.memory.workers == 3
    assert any(needy in note for note in three.notes)
