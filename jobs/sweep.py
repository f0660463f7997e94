"""A sweep: many runs against one store, made, taken up again, and compared.

    sweep.toml  ->  OUT/jobs/RUN.json      what each run is made from
                    OUT/logs/RUN.log       what its process said
                    OUT/runs/RUN/          the run, and its result.json
                    OUT/results.parquet    a row a run; layers.parquet: R2 and others by layer and token kind
                    OUT/results.md         the configurations side by side; comparison.svg: the same drawn

Started again, it makes what is missing: finished runs are read, cut ones go on, failed ones are tried again.
Tables are written whenever a run ends.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from . import console
from .sweep_baseline import baseline_identity
from .sweep_budget import Budget, StepSeconds, budget_of
from .sweep_config import SweepConfig, load_sweep
from .sweep_folder import StoreFacts, alone_with_sweep, check_runs_there
from .sweep_local import Ended, LocalJob, run_locally, threads_for
from .sweep_pages import FIGURES, configurations, spoken, write_pages
from .sweep_plan import PlannedRun, plan_runs
from .sweep_result import read_result
from .sweep_run import WHILE_READ
from .sweep_table import Outcome, write_tables

__all__ = ["SweepResult", "run_sweep"]


@dataclass(frozen=True, kw_only=True)
class SweepResult:
    """What a sweep leaves."""

    out: Path
    """Its folder."""
    budget: Budget
    """What there was to do."""
    outcomes: tuple[Outcome, ...]
    """Every run, in the order of the file, then the baselines."""

    @property
    def failed(self) -> list[Outcome]:
        """Runs that failed."""
        return [each for each in self.outcomes if each.status == "failed"]

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON takes it."""
        runs = [
            {"run": each.run.name, "status": each.status, "error": each.error, **each.figures()}
            for each in self.outcomes
        ]
        return {"out": str(self.out), "budget": asdict(self.budget), "runs": runs}

    def show(self) -> None:
        """The configurations, each with the mean of its seeds."""
        rows = [
            (cell, *(spoken(name, values[name]) if name in values else "-" for name in FIGURES))
            for cell, values in configurations(self.outcomes).items()
        ]
        columns = ("configuration", "R2", "frozen\nretention", "refitted\nretention")
        counts = Counter(each.status for each in self.outcomes)
        title = ", ".join(f"{count} {status}" for status, count in counts.items())
        console.out.print(console.table(f"{self.out}: {title}", columns, rows))
        console.say(f"results: {self.out / 'results.md'}")


def run_sweep(
    path: Path,
    out: Path,
    *,
    parallel: int = 1,
    seconds_per_step: float | None = None,
    device: str = "auto",
    dry_run: bool = False,
    quiet: bool = False,
) -> SweepResult:
    """Make every run of a sweep that is not finished; failed ones are told, and the rest go on.

    `seconds_per_step`, of a closed-loop step of one of the `parallel` runs, stands in for a short
    measurement; `dry_run` tells the budget and runs nothing.

    Raises:
        ConfigError: the sweep, or a run's recipe, does not fit.
        RunError: the folder has runs of another recipe or store, or another sweep is at work there.
        KeyboardInterrupt: Ctrl-C, when the runs under way have saved where they are.
    """
    sweep = load_sweep(path)
    runs, stores = plan_runs(sweep, path.parent), StoreFacts()
    jobs = {run.name: _job(sweep, run, path.parent, out, device) for run in runs}
    check_runs_there(out, runs, stores)
    if dry_run:
        return _begun(out, runs, jobs, stores, sweep, parallel, seconds_per_step, measure=False, quiet=quiet)
    with alone_with_sweep(out) as lock:
        begun = _begun(out, runs, jobs, stores, sweep, parallel, seconds_per_step, measure=True, quiet=quiet)
        outcomes = {each.run.name: each for each in begun.outcomes}
        write_all(out, path.stem, begun.outcomes)
        left = [each.run for each in begun.outcomes if each.result is None]
        for ended in _ran(left, jobs, out, parallel, lock, quiet):
            name = ended.job.name
            outcomes[name] = _outcome(outcomes[name], ended, jobs[name], out)
            write_all(out, path.stem, tuple(outcomes.values()))
            _tell(outcomes[name], ended.job.log, quiet)
    return replace(begun, outcomes=tuple(outcomes.values()))


def write_all(out: Path, title: str, outcomes: Sequence[Outcome]) -> None:
    """Write tables, page and figure.

    Raises:
        RunError: a file cannot be written.
    """
    write_tables(out, outcomes)
    write_pages(out, title, outcomes)


def _begun(
    out: Path,
    runs: Sequence[PlannedRun],
    jobs: Mapping[str, Mapping[str, Any]],
    stores: StoreFacts,
    sweep: SweepConfig,
    parallel: int,
    seconds_per_step: float | None,
    *,
    measure: bool,
    quiet: bool,
) -> SweepResult:
    """What is there and what is left, with its budget told."""
    results = {run.name: _result_there(out, run, jobs[run.name], stores) for run in runs}
    open_runs = [run for run in runs if results[run.name] is None]
    trained = [run for run in open_runs if run.baseline is None]
    step: StepSeconds | str | None = None
    if seconds_per_step is not None:
        given = f"given: {seconds_per_step:g} s a step"
        step = StepSeconds(phases=seconds_per_step, closed_loop=seconds_per_step, source=given)
    elif measure and trained:
        step = _measured(jobs[trained[0].name], parallel)
    elif open_runs:
        step = "give --seconds-per-step for their time"
    budget = budget_of(runs, open_runs, step, stores, parallel=parallel, probe=sweep.probe)
    if not quiet:
        console.say(budget.spoken())
    outcomes = (
        Outcome(run=run, status="finished" if results[run.name] else "open", result=results[run.name])
        for run in runs
    )
    return SweepResult(out=out, budget=budget, outcomes=tuple(outcomes))


def _result_there(
    out: Path, run: PlannedRun, job: Mapping[str, Any], stores: StoreFacts
) -> dict[str, Any] | None:
    """The result of a finished run; a baseline of another store is made anew."""
    result = read_result(out / "runs" / run.name, job)
    digest = stores.digest(run.recipe.store) if run.baseline is not None else None
    return None if result and digest is not None and result.get("store_digest") != digest else result


def _job(sweep: SweepConfig, run: PlannedRun, folder: Path, out: Path, device: str) -> dict[str, Any]:
    identity = run.recipe.identity() if run.baseline is None else baseline_identity(run.baseline)
    return {
        "recipe": str(folder / sweep.recipe),
        "overrides": list(run.overrides),
        "recipe_identity": identity,
        "store": run.recipe.store,
        "out": str(out / "runs" / run.name),
        "probe": sweep.probe,
        **run.weights.to_job(),
        "device": device,
    }


def _measured(job: Mapping[str, Any], parallel: int) -> StepSeconds | str:
    """Seconds of a few steps, in a process with one run's share of the cores; or why there are none."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.json"
        path.write_text(json.dumps({**job, "measure": True}), encoding="utf-8")
        made = subprocess.run(  # noqa: S603 - this very Python, with arguments of ours
            _command(path),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            env=threads_for(parallel),
        )
    if made.returncode:
        lines = [line for line in made.stderr.splitlines() if line.strip()] or ["it said nothing"]
        why = lines[-1].removeprefix("activault: ")
        return f"a few steps of the first run, to see what one takes, failed: {why}"
    told = json.loads(made.stdout.splitlines()[-1])
    source = f"measured: {told['closed_loop']:.2g} s a closed-loop step"
    return StepSeconds(phases=told["phases"], closed_loop=told["closed_loop"], source=source)


def _command(job: Path) -> list[str]:
    return [sys.executable, "-m", "activault.jobs.sweep_run", str(job)]


def _ran(
    runs: Sequence[PlannedRun],
    jobs: Mapping[str, Mapping[str, Any]],
    out: Path,
    parallel: int,
    lock: int | None,
    quiet: bool,
) -> Iterator[Ended]:
    from activault.train.checkpoint import write_json

    local = []
    (out / "jobs").mkdir(parents=True, exist_ok=True)
    for run in runs:
        path = out / "jobs" / f"{run.name}.json"
        write_json(path, jobs[run.name])
        log = out / "logs" / f"{run.name}.log"
        local.append(LocalJob(name=run.name, command=[*_command(path), WHILE_READ], log=log))
    with console.progress_bar("sweep", "runs", quiet=quiet) as advance:
        advance(0, max(1, len(local)))
        ends = run_locally(
            local,
            parallel=parallel,
            environment=threads_for(parallel),
            keep_open=() if lock is None else (lock,),
        )
        for number, ended in enumerate(ends, start=1):
            advance(number, len(local), ended.job.name)
            yield ended


def _outcome(before: Outcome, ended: Ended, job: Mapping[str, Any], out: Path) -> Outcome:
    result = read_result(out / "runs" / before.run.name, job)
    if ended.status == 0 and result is not None:
        return replace(before, status="finished", result=result)
    return replace(before, status="failed", error=ended.why)


def _tell(outcome: Outcome, log: Path, quiet: bool) -> None:
    """A line on a run that ended; a failed one is told whatever `quiet` says."""
    name = outcome.run.name
    if outcome.status == "failed":
        console.warn(f"run {name} failed, the rest go on: {outcome.error} (all of it in {log})")
    elif not quiet:
        figures = outcome.figures()
        parts = [f"R2 {figures['mean_r2']:.4f}"]
        parts += [
            f"{head} retention {figures[f'{head}_retention']:.1%}"
            for head in ("frozen", "refitted")
            if figures.get(f"{head}_retention") is not None
        ]
        console.say(f"run {name}: {', '.join(parts)}")
