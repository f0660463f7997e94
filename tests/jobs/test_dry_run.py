"""`extract --dry-run`: what is told, as lines and as JSON, and exit status 1 where there is no room."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from activault.extract import estimates

from .conftest import Command


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial of a tenth of a second."""
    measure = estimates.measure
    monkeypatch.setattr(estimates, "measure", lambda *a, **fields: measure(*a, **fields | {"seconds": 0.1}))


def test_lines_for_people_and_json_for_programs(
    activault: Command, images: Path, teacher: tuple[str, ...], tmp_path: Path
) -> None:
    flags = (*teacher, "--shard-rows", "8", "--device", "cpu", "--dry-run")
    answer = activault("extract", images, tmp_path / "new" / "s.zarr", *flags)
    assert answer.status == 0
    lines = {line.split()[0]: line for line in answer.out.splitlines()[1:] if line.strip()}
    assert {"rows", "values", "shards", "files", "bytes", "left", "disk", "speed", "time", "memory"} <= set(
        lines
    )
    assert "to bring a worker's 77 files to disk, meanwhile, if the store's is as quick" in lines["waits"]
    assert "24 from photos (folder)" in lines["rows"]
    assert "7 layers (0-6) of 1 cls + 4 patches of width 64, bfloat16" in lines["values"]
    assert "3 of 8 rows, in chunks of 8" in lines["shards"]
    assert lines["disk"].endswith(f"free at {tmp_path}: enough")
    assert not (tmp_path / "new").exists()

    told = activault("extract", images, tmp_path / "new" / "s.zarr", *flags, "--json").json
    assert (told["dry_run"], told["enough_room"], told["lacking"]) == (True, True, None)
    assert told["size"]["num_files"] == told["left"]["files"] == 77
    assert told["memory"]["peak_host"] == sum(told["memory"]["host"].values())
    assert {"images_a_second", "low", "high"} <= told["speed"].keys()


def test_workers_of_one_machine_share_its_memory(
    activault: Command,
    images: Path,
    teacher: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"RANK": 0, "WORLD_SIZE": 4, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    answer = activault("extract", images, tmp_path / "s.zarr", *teacher, "--dry-run")
    assert " a worker, x 2 workers on this machine, of " in answer.out


def test_a_full_disk_is_a_finding(
    activault: Command,
    images: Path,
    teacher: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full = SimpleNamespace(f_bavail=2, f_frsize=4096, f_favail=10**6, f_files=10**6, f_blocks=9, f_bfree=2)
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    answer = activault("extract", images, tmp_path / "s.zarr", *teacher, "--dry-run")
    assert answer.status == 1
    assert "NOT enough" in answer.out
    assert " too many; free them, choose another path" in answer.error_line
    told = activault("extract", images, tmp_path / "s.zarr", *teacher, "--dry-run", "--json")
    assert (told.status, told.json["enough_room"]) == (1, False)


def test_of_a_finished_store_nothing_is_left(
    activault: Command, images: Path, teacher: tuple[str, ...], store: Path
) -> None:
    answer = activault("extract", images, store, *teacher, "--shard-rows", "8", "--dry-run")
    assert answer.status == 0
    assert "note: the store is there, and complete: nothing is left to do" in answer.out
    assert "speed" not in answer.out


@pytest.mark.parametrize(
    "flag", [("--append",), ("--extend",), ("--repair", "plan.json")], ids=lambda f: f[0]
)
def test_only_whole_extractions_are_estimated(
    activault: Command, images: Path, teacher: tuple[str, ...], store: Path, flag: tuple[str, ...]
) -> None:
    answer = activault("extract", images, store, *teacher, "--dry-run", *flag)
    assert answer.status == 2
    assert "a dry run is of a whole extraction" in answer.error_line
