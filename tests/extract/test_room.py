"""What a disk has room for, and what is said where nobody can tell."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from activault.extract.room import Room, room_at

DISK = {"f_bavail": 1_000, "f_frsize": 4096, "f_favail": 50, "f_files": 100}


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Path]]:
    """`disk(f_bavail=...)` sets what every disk tells, and gives the folders that were asked."""

    def tell(**told: int) -> list[Path]:
        asked: list[Path] = []

        def statvfs(path: Path) -> SimpleNamespace:
            asked.append(Path(path))
            return SimpleNamespace(**DISK | told)

        monkeypatch.setattr(os, "statvfs", statvfs)
        return asked

    return tell


def test_the_nearest_folder_that_is_there_is_asked(tmp_path: Path, disk: Callable[..., list[Path]]) -> None:
    asked = disk()
    room = room_at(tmp_path / "a" / "b" / "s.zarr")
    assert asked == [tmp_path]
    assert (room.free_bytes, room.free_files, room.writable) == (4_096_000, 50, True)
    assert room_at(tmp_path).place == str(tmp_path)


@pytest.mark.parametrize(
    ("num_bytes", "num_files", "message"),
    [
        (4_096_000, 50, None),
        (
            4_096_001,
            50,
            r"has 4,096\.0 kB free, and 4,096\.0 kB are to come, 0\.0 kB too many; free them",
        ),
        (1, 51, "has room for 50 more files, and 51 are to come"),
    ],
    ids=["just", "bytes", "files"],
)
def test_what_lacks_is_said(
    tmp_path: Path, disk: Callable[..., list[Path]], num_bytes: int, num_files: int, message: str | None
) -> None:
    disk()
    lacking = room_at(tmp_path / "s.zarr").shortfall(num_bytes, num_files)
    if message is None:
        assert lacking is None
    else:
        assert lacking is not None
        assert re.search(message, lacking)


def test_a_file_system_that_counts_no_files_is_not_full_of_them(
    tmp_path: Path, disk: Callable[..., list[Path]]
) -> None:
    disk(f_files=0, f_favail=0)
    room = room_at(tmp_path / "s.zarr")
    assert room.free_files is None
    assert room.shortfall(1, 10**9) is None


def test_a_mount_that_does_not_answer_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(path: Path) -> None:
        raise OSError(116, "Stale file handle", str(path))

    monkeypatch.setattr(os, "statvfs", stale)
    room = room_at(tmp_path / "s.zarr")
    assert room.free_bytes is None
    assert room.note == f"{tmp_path} does not tell its free space (Stale file handle)"
    assert room.shortfall(10**18, 10**9) is None


def test_a_place_that_may_not_be_written_to_lacks_the_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    lacking = room_at(tmp_path / "s.zarr").shortfall(1, 1)
    assert lacking == f"{tmp_path} may not be written to; grant the right, or choose another path"


def test_a_buckets_room_is_not_known() -> None:
    room = room_at("s3://bucket/in1k.zarr")
    assert room == Room(
        place="s3://bucket/in1k.zarr",
        free_bytes=None,
        free_files=None,
        writable=True,
        note="how much a bucket takes is not known",
    )
    assert room.shortfall(10**18, 10**9) is None
