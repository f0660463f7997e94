from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from activault.store import Store
from activault.store.cores import memory_bytes, num_cores

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
