from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from activault.store import Store
from activault.store.cores import available_bytes, memory_bytes, num_cores

from .conftest import Plan


def test_cores_are_those_of_the_process_not_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 5, 7}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert num_cores() == 3


def test_a_machine_that_does_not_tell_reads_all_the_same(
    store: Store, written: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert num_cores() == 3
    assert np.array_equal(store.read(slice(None), [0, 2, 4]), written.stored, equal_nan=True)


@pytest.mark.parametrize(
    ("groups", "files", "environment", "limit"),
    [
        ("0::/", {}, {}, None),
        ("0::/", {"memory.max": "max"}, {}, None),
        ("0::/", {"memory.max": "4096"}, {}, 4096),
        (
            "0::/job/step",
            {"memory.max": "max", "job/memory.max": "8192", "job/step/memory.max": "max"},
            {},
            8192,
        ),
        ("0::/outside/the/container", {"memory.max": "4096"}, {}, 4096),
        ("3:cpu:/a\n2:memory:/a", {"memory/a/memory.limit_in_bytes": "5000"}, {}, 5000),
        ("3:cpu:/a", {"memory/a/memory.limit_in_bytes": "5000"}, {}, None),
        ("0::/", {}, {"SLURM_MEM_PER_NODE": "1"}, 1 << 20),
        ("0::/", {"memory.max": "4096"}, {"SLURM_MEM_PER_NODE": "1"}, 4096),
        ("0::/", {}, {"SLURM_MEM_PER_NODE": "0"}, None),
        (None, {}, {}, None),
    ],
)
def test_memory_is_what_a_container_or_a_job_may_take(
    tmp_path: Path,
    groups: str | None,
    files: dict[str, str],
    environment: dict[str, str],
    limit: int | None,
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    if groups is not None:
        (tmp_path / "own").write_text(f"{groups}\n")
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert memory_bytes(environment, tmp_path / "own", tmp_path) == (limit or physical)


@pytest.mark.parametrize(
    ("groups", "files", "environment", "available"),
    [
        ("0::/", {}, {}, 3 << 20),
        (None, {}, {}, 3 << 20),
        ("0::/", {"memory.max": "max", "memory.current": "2000000"}, {}, 3 << 20),
        ("0::/", {"memory.max": "1000000"}, {}, 1_000_000),
        ("0::/", {"memory.max": "1000000", "memory.current": "600000"}, {}, 400_000),
        (
            "0::/job",
            {
                "memory.max": "2000000",
                "memory.current": "1900000",
                "job/memory.max": "1000000",
                "job/memory.current": "600000",
                "job/memory.stat": "anon 1\nfile 9\ninactive_file 50000\nactive_file 40000\nshmem 7",
                "memory.stat": "inactive_file 1800000",
            },
            {},
            490_000,
        ),
        ("0::/", {"memory.max": "1000", "memory.current": "5000"}, {}, 0),
        (
            "2:memory:/a",
            {
                "memory/a/memory.limit_in_bytes": "1000000",
                "memory/a/memory.usage_in_bytes": "300000",
                "memory/a/memory.stat": "inactive_file 1000\ntotal_inactive_file 2000",
            },
            {},
            701_000,
        ),
        ("0::/", {}, {"SLURM_MEM_PER_NODE": "2"}, 2 << 20),
    ],
)
def test_available_memory_is_what_is_left_of_the_smallest_bound(
    tmp_path: Path,
    groups: str | None,
    files: dict[str, str],
    environment: dict[str, str],
    available: int,
) -> None:
    """Files that are kept in memory are given up for it."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    if groups is not None:
        (tmp_path / "own").write_text(f"{groups}\n")
    (tmp_path / "meminfo").write_text("MemTotal:  9999 kB\nMemFree:  1 kB\nMemAvailable:    3072 kB\n")
    found = available_bytes(environment, tmp_path / "own", tmp_path, tmp_path / "meminfo")
    assert found == available


def test_a_machine_without_an_account_of_its_memory_has_half_of_it(tmp_path: Path) -> None:
    own, nothing = tmp_path / "own", tmp_path / "none"
    assert available_bytes({}, own, tmp_path, nothing) == memory_bytes({}, own, tmp_path) // 2
    assert 0 < available_bytes() <= memory_bytes()
