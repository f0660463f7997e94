"""A sweep: many runs against one store, made, taken up again, and compared.

    sweep.toml  ->  OUT/jobs/RUN.json      what each run is made from
                    OUT/logs/RUN.log       what its process said
                    OUT/runs/RUN/          the run, and its result.json
                    OUT/results.parquet    a row a run
                    OUT/comparison.svg     the configurations side by side

Started again, it makes what is missing: finished runs are read, cut ones go on, failed ones are tried again.
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
from .sweep_local import Ended, LocalJob, run_locally, threads_for
from .sweep_plan import PlannedRun, SweepConfig, load_sweep, plan_runs
from .sweep_run import read_result
from .sweep_table import Outcome, configurations, spoken, write_comparison, write_results

__all__ = ["Budget", "SweepResult", "run_sweep"]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What is left to do, and about how long it takes."""

    num_runs: int
    """Runs in all."""
    num_finished: int
    """Those that are finished already."""
    steps: int
    """Steps of the others, from their starts."""
    seconds: float | None
    """Estimated time of these steps; None where nothing is left or nothing was measured."""
    source: str
    """Where the time of a step is from, or why it is not known."""

    def spoken(self) -> str:
        """In one line."""
        done = f", {self.num_finished} of them finished" if self.num_finished else ""
        line = f"sweep: {self.num_runs} runs{done}; at most {self.steps:,} steps left"
        if self.seconds is not None:
            return f"{line}, about {console.human_seconds(self.seconds)} ({self.source}), evaluation aside"
        return f"{line}; {self.source}" if self.source else line


@dataclass(frozen=True, kw_only=True)
class SweepResult:
    """What a sweep leaves."""

    out: Path
    """Its folder."""
    budget: Budget
    """What there was to do."""
    outcomes: tuple[Outcome, ...]
    """Every run, in the order of the file."""

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
        names = ("mean_r2", "frozen_retention", "refitted_retention")
        rows = [
            (cell, *(spoken(values[name]) if name in values else "-" for name in names))
            for cell, values in configurations(self.outcomes).items()
        ]
        columns = ("configuration", "R2", "frozen\nretention", "refitted\nretention")
        counts = Counter(each.status for each in self.outcomes)
        title = ", ".join(f"{count} {status}" for status, count in counts.items())
        console.out.print(console.table(f"{self.out}: {title}", columns, rows))
        console.say(f"results: {self.out / 'results.parquet'}")


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

    `seconds_per_step` of a closed-loop step stands in for a short measurement; `dry_run` tells the budget and
    runs nothing.

    Raises:
        ConfigError: the sweep, or a run's recipe, does not fit.
        KeyboardInterrupt: Ctrl-C, when the runs under way have saved where they are.
    """
    sweep = load_sweep(path)
    runs = plan_runs(sweep, path.parent)
    jobs = {run.name: _job(sweep, run, path.parent, out, device) for run in runs}
    results = {run.name: read_result(out / "runs" / run.name, jobs[run.name]) for run in runs}
    open_runs = [run for run in runs if results[run.name] is None]
    budget = _budget(runs, open_runs, jobs, parallel, seconds_per_step, measure=not dry_run)
    if not quiet:
        console.say(budget.spoken())
    outcomes = {
        run.name: Outcome(
            run=run, status="open" if results[run.name] is None else "finished", result=results[run.name]
        )
        for run in runs
    }
    try:
        if not dry_run:
            for ended in _ran(open_runs, jobs, out, parallel, quiet):
                name = ended.job.name
                outcomes[name] = _outcome(outcomes[name], ended, jobs[name], out)
                _tell(outcomes[name], ended.job.log, quiet)
    finally:
        made = tuple(outcomes.values())
        if not dry_run:
            out.mkdir(parents=True, exist_ok=True)
            write_results(out / "results.parquet", made)
            write_comparison(out / "comparison.svg", made)
    return SweepResult(out=out, budget=budget, outcomes=made)


def _job(sweep: SweepConfig, run: PlannedRun, folder: Path, out: Path, device: str) -> dict[str, Any]:
    return {
        "recipe": str(folder / sweep.recipe),
        "overrides": list(run.overrides),
        "recipe_identity": run.recipe.identity(),
        "store": run.recipe.store,
        "out": str(out / "runs" / run.name),
        "probe": sweep.probe,
        "device": device,
    }


def _budget(
    runs: Sequence[PlannedRun],
    open_runs: Sequence[PlannedRun],
    jobs: Mapping[str, Mapping[str, Any]],
    parallel: int,
    seconds_per_step: float | None,
    *,
    measure: bool,
) -> Budget:
    """Steps by stage and batch, at what a step of the first run that is left takes."""
    steps = sum(_num_steps(run) for run in open_runs)
    known = Budget(
        num_runs=len(runs), num_finished=len(runs) - len(open_runs), steps=steps, seconds=None, source=""
    )
    if not open_runs or (seconds_per_step is None and not measure):
        return known
    first = open_runs[0].recipe
    if seconds_per_step is None:
        measured = _measured(jobs[open_runs[0].name])
        if isinstance(measured, str):
            return replace(
                known, source=f"a few steps of the first run, to see what one takes, failed: {measured}"
            )
        each = measured
        source = f"measured: {each['closed_loop']:.2g} s a closed-loop step"
    else:
        # All phases together apply as many blocks as the closed loop.
        each = {"phases": seconds_per_step, "closed_loop": seconds_per_step}
        source = f"given: {seconds_per_step:g} s a step"
    seconds = sum(
        run.recipe.stage1.steps * each["phases"] * run.recipe.stage1.batch_size / first.stage1.batch_size
        + run.recipe.stage2.steps
        * each["closed_loop"]
        * run.recipe.stage2.batch_size
        / first.stage2.batch_size
        for run in open_runs
    )
    return replace(known, seconds=seconds / min(parallel, len(open_runs)), source=source)


def _num_steps(run: PlannedRun) -> int:
    recipe = run.recipe
    phases = recipe.num_phases or (
        len(recipe.groups) if recipe.groups is not None else len(recipe.cuts or ()) + 1
    )
    return recipe.stage1.steps * phases + recipe.stage2.steps


def _measured(job: Mapping[str, Any]) -> dict[str, float] | str:
    """Seconds of a few steps of a run, in a process of their own; or why there are none to tell."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.json"
        path.write_text(json.dumps({**job, "measure": True}), encoding="utf-8")
        made = subprocess.run(  # noqa: S603 - this very Python, with arguments of ours
            _command(path), capture_output=True, text=True, check=False
        )
    if made.returncode:
        return _last_line(made.stderr)
    return {name: float(value) for name, value in json.loads(made.stdout.splitlines()[-1]).items()}


def _command(job: Path) -> list[str]:
    return [sys.executable, "-m", "activault.jobs.sweep_run", str(job)]


def _ran(
    runs: Sequence[PlannedRun],
    jobs: Mapping[str, Mapping[str, Any]],
    out: Path,
    parallel: int,
    quiet: bool,
) -> Iterator[Ended]:
    from activault.train.checkpoint import write_json

    local = []
    (out / "jobs").mkdir(parents=True, exist_ok=True)
    for run in runs:
        path = out / "jobs" / f"{run.name}.json"
        write_json(path, jobs[run.name])
        local.append(LocalJob(name=run.name, command=_command(path), log=out / "logs" / f"{run.name}.log"))
    with console.progress_bar("sweep", "runs", quiet=quiet) as advance:
        advance(0, max(1, len(local)))
        for number, ended in enumerate(
            run_locally(local, parallel=parallel, environment=threads_for(parallel)), start=1
        ):
            advance(number, len(local), ended.job.name)
            yield ended


def _outcome(before: Outcome, ended: Ended, job: Mapping[str, Any], out: Path) -> Outcome:
    result = read_result(out / "runs" / before.run.name, job)
    if ended.status == 0 and result is not None:
        return replace(before, status="finished", result=result)
    said = _last_line(ended.job.log.read_text(encoding="utf-8", errors="replace"))
    return replace(before, status="failed", error=f"exit status {ended.status}: {said}")


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("activault: ") if lines else "it said nothing"


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
