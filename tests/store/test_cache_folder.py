"""Entries of a cache folder: kept within its size, checked by ranges, shared by processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from activault.store.cache_folder import CacheFolder


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def entries(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*") if path.is_file()]


def test_the_cache_stays_within_its_size_and_drops_the_oldest(cache: Path) -> None:
    folder = CacheFolder(cache, 100_000)
    for number in range(200):
        folder.put(f"entry {number}", bytes([number]) * 2000)
        assert folder.get("entry 0") == b"\0" * 2000  # used all the time
        os.utime(folder._path(f"entry {number}"), (number, number))
        os.utime(folder._path("entry 0"))
        if number % 20 == 0:
            assert sum(path.stat().st_size for path in entries(cache)) <= 100_000
    kept = [number for number in range(200) if folder.get(f"entry {number}") is not None]
    assert kept == [0, *range(200 - len(kept) + 1, 200)]
    assert len(kept) > 40


def test_a_lower_limit_holds_from_the_first_entry_on(cache: Path) -> None:
    for number in range(40):
        CacheFolder(cache, 1 << 20).put(str(number), bytes(2000))
    CacheFolder(cache, 40_000).put("last", bytes(2000))
    assert sum(path.stat().st_size for path in entries(cache)) <= 40_000


def test_an_entry_that_would_fill_the_cache_is_not_kept(cache: Path) -> None:
    folder = CacheFolder(cache, 100_000)
    folder.put("large", bytes(90_000))
    assert folder.get("large") is None


def test_what_a_killed_process_left_is_removed(cache: Path) -> None:
    folder = CacheFolder(cache, 100_000)
    folder.put("a", bytes(1000))
    left = entries(cache)[0].with_name(".left.1.1")
    left.write_bytes(b"half")
    CacheFolder(cache, 100_000).put("b", b"")
    assert left.exists()
    os.utime(left, (0, 0))
    CacheFolder(cache, 100_000).put("c", b"")
    assert not left.exists()
    assert folder.get("c") == b""


def test_a_range_of_an_entry_is_checked_alone(cache: Path) -> None:
    folder = CacheFolder(cache, 64 << 20)
    data = np.random.default_rng(0).bytes(1_000_000)
    folder.put("a", data)
    for start, stop in ((0, 10), (262_140, 262_150), (524_288, 1_000_000), (7, 7)):
        assert folder.get("a", start, stop) == data[start:stop]
    assert folder.get("a", 5, 1_000_001) is None


FILL = """
import sys
from pathlib import Path
from activault.store.cache_folder import CacheFolder

cache, first = CacheFolder(Path(sys.argv[1]), 200_000), int(sys.argv[2])
for number in range(first, first + 150):
    cache.put(str(number), str(number).encode() * 500)
    found = cache.get(str(number - 3))
    assert found is None or found == str(number - 3).encode() * 500
"""


def test_processes_share_a_cache(cache: Path) -> None:
    commands = [[sys.executable, "-c", FILL, str(cache), str(50 * start)] for start in range(3)]
    workers = [subprocess.Popen(command) for command in commands]
    assert [worker.wait(60) for worker in workers] == [0, 0, 0]
    assert sum(path.stat().st_size for path in entries(cache)) <= 200_000 * (1 + 3 / 16)
