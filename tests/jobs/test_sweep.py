"""Sweeps: made, taken up again; failures told while the rest go on; processes side by side."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from activault.jobs import sweep as module
from activault.jobs import sweep_local
from activault.jobs.sweep_local import LocalJob, run_locally, threads_for

Command = Callable[..., Any]
SWEEP = """
recipe = "{recipe}"
[[cells]]
name = "good"
seeds = [0, 1]
[[cells]]
name = "bad"
set = {{ store = "absent.zarr" }}
"""


@pytest.fixture
def sweep(recipe: Path, tmp_path: Path) -> Path:
    path = tmp_path / "sweep.toml"
    path.write_text(SWEEP.format(recipe=recipe))
    return path


def rows_of(out: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(out / "results.parquet").to_pylist()
    return rows


def test_runs_are_made_compared_and_not_made_again(
    activault: Command, sweep: Path, tmp_path: Path, carried_out: list[str]
) -> None:
    flags = ("--out", tmp_path / "out", "--device", "cpu", "--seconds-per-step", "0.5")
    first = activault("sweep", sweep, *flags)
    assert first.status == 1, "one run failed"
    assert "sweep: 3 runs; at most 54 steps left, about 15.0 s (given: 0.5 s a step)" in first.out
    assert "evaluation aside" in first.out, "one of the stores is not there to count its rows"
    assert "run bad_seed=0 failed, the rest go on: exit status" in first.err
    assert "absent.zarr" in first.err
    rows = rows_of(tmp_path / "out")
    assert [(row["run"], row["status"]) for row in rows] == [
        ("good_seed=0", "finished"),
        ("good_seed=1", "finished"),
        ("bad_seed=0", "failed"),
    ]
    for row in rows[:2]:
        assert row["frozen_retention"] >= 0
        assert row["refitted_retention"] > 0
        assert row["mean_r2"] is not None
        assert {"r2_cls_last", "r2_patches", "final_loss", "num_parameters"} <= row.keys()
    assert rows[0]["mean_r2"] != rows[1]["mean_r2"]
    assert "absent.zarr" in rows[2]["error"]
    assert "good" in (tmp_path / "out" / "comparison.svg").read_text()
    again = activault("sweep", sweep, *flags)
    assert again.status == 1
    assert "3 runs, 2 finished; at most 18 steps left" in again.out
    assert carried_out == ["good_seed=0", "good_seed=1", "bad_seed=0", "bad_seed=0"]
    assert rows_of(tmp_path / "out")[:2] == rows[:2]


def test_a_cut_run_goes_on(
    activault: Command,
    sweep: Path,
    tmp_path: Path,
    carried_out: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Cut in its second phase: the first one is not trained again."""
    from activault.train import runs

    whole, begun = runs.run_stage, []

    def cut(stage: Any, *given: Any, **options: Any) -> Any:
        begun.append(stage.name)
        if stage.name == "phase_2" and begun.count("phase_2") == 1:
            raise KeyboardInterrupt
        return whole(stage, *given, **options)

    monkeypatch.setattr(runs, "run_stage", cut)
    sweep.write_text(sweep.read_text().replace("[0, 1]", "[0]"))
    flags = ("--out", tmp_path / "out", "--device", "cpu", "--seconds-per-step", "1", "--json")
    first = activault("sweep", sweep, *flags)
    assert [run["status"] for run in first.json["runs"]] == ["failed", "failed"]
    checkpoint = tmp_path / "out" / "runs" / "good_seed=0" / "phase_1" / "checkpoint.json"
    made = checkpoint.stat().st_mtime_ns
    second = activault("sweep", sweep, *flags)
    assert [run["status"] for run in second.json["runs"]] == ["finished", "failed"]
    assert checkpoint.stat().st_mtime_ns == made


def test_a_dry_run_tells_the_budget_and_runs_nothing(
    activault: Command, sweep: Path, tmp_path: Path, carried_out: list[str]
) -> None:
    told = activault("sweep", sweep, "--out", tmp_path / "out", "--dry-run")
    line = "sweep: 3 runs; at most 54 steps left; give --seconds-per-step for their time\n"
    assert (told.status, told.out) == (0, line)
    assert not (tmp_path / "out").exists()
    assert carried_out == []


def test_steps_are_measured_in_a_process_of_their_own(
    activault: Command, sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the cores that one of the parallel runs has."""
    environments = []
    whole = subprocess.run

    def seen(*given: Any, **options: Any) -> Any:
        environments.append(options["env"])
        return whole(*given, **options)

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(sweep_local, "num_cores", lambda: 2)
    monkeypatch.setattr(module.subprocess, "run", seen)
    monkeypatch.setattr(module, "run_locally", lambda _jobs, **_: iter(()))
    sweep.write_text(sweep.read_text().split("[[cells]]")[0])
    told = activault("sweep", sweep, "--out", tmp_path / "out", "--device", "cpu", "--parallel", 2)
    assert told.status == 0
    assert [each["OMP_NUM_THREADS"] for each in environments] == ["1"]
    assert re.search(r" s a closed-loop step\), and \d.* of evaluation", told.out)


def test_a_failed_process_does_not_keep_the_others(tmp_path: Path) -> None:
    jobs = [
        LocalJob(
            name=name,
            command=[sys.executable, "-c", f"import sys; print('{name}'); sys.exit({status})"],
            log=tmp_path / f"{name}.log",
        )
        for name, status in (("a", 0), ("b", 3), ("c", 0))
    ]
    ended = {each.job.name: each.status for each in run_locally(jobs, parallel=2, environment=os.environ)}
    assert ended == {"a": 0, "b": 3, "c": 0}
    assert [job.log.read_text() for job in jobs] == ["a\n", "b\n", "c\n"]


def test_an_interrupt_is_handed_on_once_and_waited_for(tmp_path: Path) -> None:
    waits = """
import signal, sys, time
def stop(*_):
    print("asked"); time.sleep(0.3); print("saved"); sys.stdout.flush(); sys.exit(130)
signal.signal(signal.SIGINT, stop)
print("ready", flush=True)
time.sleep(60)
"""
    jobs = [
        LocalJob(name=name, command=[sys.executable, "-c", waits], log=tmp_path / f"{name}.log")
        for name in ("a", "b", "never")
    ]

    def press() -> None:
        while not all((tmp_path / f"{name}.log").exists() for name in "ab") or not all(
            "ready" in (tmp_path / f"{name}.log").read_text() for name in "ab"
        ):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    presser = threading.Thread(target=press)
    presser.start()
    with pytest.raises(KeyboardInterrupt):
        list(run_locally(jobs, parallel=2, environment=os.environ))
    presser.join()
    for name in "ab":
        assert (tmp_path / f"{name}.log").read_text().split() == ["ready", "asked", "saved"]
    assert not (tmp_path / "never.log").exists()


def test_runs_side_by_side_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_local, "num_cores", lambda: 7)
    assert threads_for(1, {}) == {}
    assert threads_for(2, {"OMP_NUM_THREADS": "7"}) == {"OMP_NUM_THREADS": "7"}
    assert threads_for(2, {}) == {"OMP_NUM_THREADS": "3"}
    assert threads_for(8, {}) == {"OMP_NUM_THREADS": "1"}


def test_there_is_a_run_at_a_time_at_least(activault: Command, sweep: Path) -> None:
    refused = activault("sweep", sweep, "--parallel", "0")
    assert refused.status == 2
    assert "at least one run runs at a time; got --parallel 0" in refused.error_line


@pytest.mark.parametrize("seconds", ["-1", "0", "nan", "inf"])
def test_a_step_takes_some_time(activault: Command, sweep: Path, seconds: str) -> None:
    refused = activault("sweep", sweep, "--dry-run", f"--seconds-per-step={seconds}")
    assert refused.status == 2
    assert f"a step takes some time; got --seconds-per-step {seconds}: give" in refused.error_line
