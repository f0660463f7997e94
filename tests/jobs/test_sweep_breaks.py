"""What befalls a sweep: kills, a second sweep, a file that was edited, results that are damaged."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from activault.jobs import sweep as sweep_module
from activault.jobs.sweep_budget import StepSeconds, budget_of
from activault.jobs.sweep_config import load_sweep
from activault.jobs.sweep_folder import StoreFacts, alone_with_sweep, check_runs_there
from activault.jobs.sweep_local import Ended, LocalJob, run_locally
from activault.jobs.sweep_plan import PlannedRun, plan_runs
from activault.jobs.sweep_result import job_hash, read_result
from activault.store import RunError, open_store

Command = Callable[..., Any]
SWEEP = """
recipe = "{recipe}"
[[cells]]
name = "a"
[[cells]]
name = "b"
set = {{ stage2.noise = 0.5 }}
"""


@pytest.fixture
def sweep(recipe: Path, tmp_path: Path) -> Path:
    path = tmp_path / "sweep.toml"
    path.write_text(SWEEP.format(recipe=recipe))
    return path


def planned(sweep: Path) -> list[PlannedRun]:
    return plan_runs(load_sweep(sweep), sweep.parent)


def begun(out: Path, run: PlannedRun, **changes: Any) -> Path:
    """The folder of a run that was begun."""
    folder = out / "runs" / run.name
    folder.mkdir(parents=True)
    digest = open_store(run.recipe.store).digest
    record = {"version": 1, "recipe": run.recipe.model_dump(mode="json"), "store_digest": digest, **changes}
    (folder / "run.json").write_text(json.dumps(record))
    return folder


def test_an_edited_cell_is_refused_before_anything_runs(
    activault: Command, sweep: Path, tmp_path: Path, carried_out: list[str]
) -> None:
    out = tmp_path / "out"
    for run in planned(sweep):
        begun(out, run)
    check_runs_there(out, planned(sweep), StoreFacts())
    sweep.write_text(sweep.read_text().replace("0.5", "0.25"))
    for flags in ((), ("--dry-run",)):
        told = activault("sweep", sweep, "--out", out, "--device", "cpu", "--seconds-per-step", "1", *flags)
        assert told.status == 1
        assert "b_seed=0 has stage2.noise = 0.5 and the sweep's file now says 0.25: " in told.error_line
        assert "give changed cells new names, or choose another --out" in told.error_line
    sweep.write_text(sweep.read_text().replace("[[cells]]", "[set]\nstage1.clip = 2.0\n[[cells]]", 1))
    with pytest.raises(RunError, match=r"a_seed=0 has stage1\.clip = 1\.0 .* 2\.0 \(1 more run differs\)"):
        check_runs_there(out, planned(sweep), StoreFacts())
    assert carried_out == []


def test_runs_of_another_store_are_not_mixed_with_new_ones(sweep: Path, tmp_path: Path) -> None:
    begun(tmp_path, planned(sweep)[0], store_digest="another")
    with pytest.raises(
        RunError, match=r"a_seed=0 has store_digest = 'another' and the sweep's file now says"
    ):
        check_runs_there(tmp_path, planned(sweep), StoreFacts())


def test_a_recipe_that_was_edited_while_its_sweep_ran_makes_no_run(
    activault: Command, recipe: Path, tmp_path: Path, carried_out: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its runs would stand in the tables under names that are not theirs."""
    own, sweep, out = tmp_path / "own.toml", tmp_path / "sweep.toml", tmp_path / "out"
    own.write_text(recipe.read_text())
    sweep.write_text('recipe = "own.toml"\nprobe = false\n')
    planned_then = sweep_module.plan_runs

    def plan_and_edit(*given: Any) -> list[PlannedRun]:
        runs = planned_then(*given)
        own.write_text(own.read_text().replace("steps = 6", "steps = 7"))
        return runs

    monkeypatch.setattr(sweep_module, "plan_runs", plan_and_edit)
    told = activault("sweep", sweep, "--out", out, "--device", "cpu", "--seconds-per-step", "1")
    assert told.status == 1
    assert carried_out == ["run_seed=0"]
    assert re.search(r"own\.toml had stage2\.steps = 6 then and has 7 now: put it back", told.error_line)
    assert not (out / "runs" / "run_seed=0").exists()


def test_two_sweeps_in_one_folder_are_one_too_many(
    activault: Command, sweep: Path, tmp_path: Path, carried_out: list[str]
) -> None:
    with alone_with_sweep(tmp_path / "out"):
        told = activault("sweep", sweep, "--out", tmp_path / "out", "--seconds-per-step", "1")
        dry = activault("sweep", sweep, "--out", tmp_path / "out", "--dry-run")
    assert told.status == 1
    assert "one sweep is at work in a folder, and another one" in told.error_line
    assert "choose another --out" in told.error_line
    assert dry.status == 0, "the budget can be told at any time"
    assert carried_out == []


def test_a_killed_run_is_told_by_its_signal_and_its_own_words(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("activault: what went wrong an earlier time\n")
    command = [sys.executable, "-c", "import os; print('step 7', flush=True); os.kill(os.getpid(), 9)"]
    job = LocalJob(name="a", command=command, log=log)
    (ended,) = run_locally([job], parallel=1, environment=os.environ)
    assert ended.why == ("killed by SIGKILL, as a system does that is out of memory; its last words: step 7")
    assert log.read_text().splitlines()[0].endswith("an earlier time"), "the log is kept"
    assert Ended(job=job, status=1, said="").why == "exit status 1: it said nothing"
    assert Ended(job=job, status=-15, said=" \n").why == "killed by SIGTERM; it said nothing"


CHILD = """
import pathlib, sys, time
from activault.jobs.sweep_local import end_with_sweep
end_with_sweep()
try:
    pathlib.Path(sys.argv[1], "begun").touch()
    time.sleep(250)
except KeyboardInterrupt:
    time.sleep(0.5)
    pathlib.Path(sys.argv[1], "saved").touch()
"""
PARENT = """
import os, pathlib, sys
from activault.jobs.sweep_folder import alone_with_sweep
from activault.jobs.sweep_local import LocalJob, run_locally
out = pathlib.Path(sys.argv[1])
with alone_with_sweep(out) as lock:
    jobs = [
        LocalJob(name=name, command=[sys.executable, "-c", sys.argv[2], str(out)], log=out / f"{name}.log")
        for name in ("a", "never")
    ]
    list(run_locally(jobs, parallel=1, environment=os.environ, keep_open=[lock]))
"""


def test_runs_of_a_killed_sweep_save_and_end(tmp_path: Path) -> None:
    """The folder stays locked until they have, so that the next sweep does not meet them."""
    shot = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path), CHILD])
    try:
        waited_for(lambda: (tmp_path / "begun").exists())
        assert not free(tmp_path)
    finally:
        shot.send_signal(signal.SIGKILL)
        shot.wait()
    waited_for(lambda: free(tmp_path))
    assert (tmp_path / "saved").exists()
    assert (tmp_path / "a.log").read_text() == ""
    assert not (tmp_path / "never.log").exists()


def free(out: Path) -> bool:
    with (out / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def waited_for(what: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.05)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"job": "of another one"}'])
def test_a_result_that_is_damaged_or_of_another_job_is_none(
    sweep: Path, tmp_path: Path, run: Path, text: str
) -> None:
    first = planned(sweep)[0]
    job = {"recipe_identity": first.recipe.identity(), "store": first.recipe.store, "probe": True}
    folder = begun(tmp_path, first, **json.loads((run / "run.json").read_text()))
    (folder / "result.json").write_text(json.dumps({"job": job_hash(job), "rollout": {}}))
    whole = read_result(folder, job)
    assert whole is not None
    assert (whole["cuts"], whole["groups"]) == ([2, 4], None)
    assert read_result(folder, {**job, "probe": False}) is None
    (folder / "result.json").write_text(text)
    assert read_result(folder, job) is None


class Rows(StoreFacts):
    """Stores of so many rows."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        super().__init__()
        self.told = dict(counts)

    def counts(self, path: str) -> dict[str, int]:
        return self.told


def test_the_budget_is_steps_and_evaluation(sweep: Path) -> None:
    """4 rows a batch and 12 s a step: a forward pass takes a second a row."""
    sweep.write_text(
        f'{sweep.read_text()}\n[baselines]\nnames = ["identity", "repeated", "power"]\nnum_phases = [2]\n'
    )
    runs, step = planned(sweep), StepSeconds(phases=24, closed_loop=12, source="given")
    rows = Rows({"train": 50, "test": 10})
    budget = budget_of(runs, runs[1:], step, rows, parallel=1, probe=True)
    assert (budget.num_runs, budget.num_baselines, budget.num_finished, budget.steps) == (2, 3, 1, 18)
    assert budget.seconds == 4 * 24 + 6 * 12
    assert budget.evaluation_seconds == pytest.approx((10 + 2 * 60) + 0 + (10 + 60))
    assert budget.spoken() == (
        "sweep: 2 runs and 3 baselines, 1 finished; at most 18 steps left, about 2 min 48 s (given), and "
        "3 min 20 s of evaluation; 1 fit of linear maps aside"
    )
    aside = budget_of(runs, runs, step, rows, parallel=2, probe=False)
    assert aside.seconds == (4 * 24 + 6 * 12)
    assert aside.evaluation_seconds == pytest.approx(15)
    assert budget_of(runs, runs, step, Rows({}), parallel=1, probe=True).evaluation_seconds is None
    assert budget_of(runs, (), step, rows, parallel=1, probe=True).seconds is None
