"""A writer killed with SIGKILL and started again until done: no lie on the way, the same store at the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from activault.store import NotAStoreError, open_store, verify_store

from .conftest import MakePlan, Plan

SCRIPT = Path(__file__).parent / "write_store.py"
KILLS = Path(__file__).parents[2] / "benchmarks" / "kills.py"

# Files that get their names: 15 in planning, 11 a shard (9 arrays, statistics, record), 2 at completion.
STEPS = {
    "the marker of planning": (1, 0),
    "in the midst of planning": (9, 0),
    "planned, nothing else": (15, 0),
    "in the midst of a shard": (5, 0),
    "before the record": (10, 0),
    "after the record": (11, 1),
    "in the midst of the third shard": (14, 2),
    "between samples and index": (23, 4),
}


@pytest.fixture
def target(make_plan: MakePlan) -> Plan:
    return make_plan("killed.zarr", bad_rows=(7, 20))


def start(plan: Plan, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(SCRIPT), str(plan.path), *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )


def finished_without_lies(plan: Plan) -> int:
    """Whatever is there verifies, and what reads is right; returns how many shards are finished."""
    try:
        report = verify_store(plan.path, deep=True)
    except NotAStoreError:
        return 0
    assert report.faults == ()
    store = open_store(plan.path)
    rows = store.finished_rows
    assert np.array_equal(store.read(rows, store.layers), plan.stored[rows], equal_nan=True)
    return report.finished_shards


def finish(plan: Plan, written: Plan) -> None:
    """Go on undisturbed: the digest is that of a store never disturbed, and nothing is left over."""
    store = plan.write()
    assert store.complete
    assert store.digest == open_store(written.path).digest
    assert finished_without_lies(plan) == 4
    names = [file.name for file in plan.path.rglob("*")]
    assert not [name for name in names if name.endswith((".tmp", ".partial")) or name == ".planning"]


def test_killed_at_chosen_steps(target: Plan, written: Plan) -> None:
    for moment, (step, finished) in STEPS.items():
        with start(target, str(step)) as process:
            assert process.wait() == -signal.SIGKILL, moment
        assert finished_without_lies(target) == finished, moment
    finish(target, written)


def test_two_processes_killed_at_random_moments() -> None:
    """The benchmark's own programme, which does it 200 times."""
    command = [sys.executable, str(KILLS), "--kills", "8"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=200, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    assert "8 kills of a writer of 2 processes" in done.stdout
    assert "no lie" in done.stdout
