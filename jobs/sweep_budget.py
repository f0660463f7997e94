"""What a sweep has left to do, and about how long it takes.

    runs, those that are open, seconds of a step  ->  Budget

Steps cost what a step of the first open run costs, by the size of the batch. Evaluation is forward passes
from layer 0: every run rolls out once on the test rows for R2, and the probe rolls out the surrogate and
untrained blocks on all labelled rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from . import console
from .sweep_folder import StoreFacts
from .sweep_plan import PlannedRun

__all__ = ["Budget", "StepSeconds", "budget_of"]

FORWARD_SHARE = 1 / 3
"""Part of a step that its forward pass takes; the way back computes about twice as much."""
FITTED = ("linear", "power")


@dataclass(frozen=True, kw_only=True)
class StepSeconds:
    """What a step takes, and who says so."""

    phases: float
    """Seconds of a step of all phases together; they apply as many blocks as the closed loop."""
    closed_loop: float
    """Seconds of a closed-loop step."""
    source: str
    """Where this is from, in words."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What is left to do, and about how long it takes."""

    num_runs: int
    """Trained runs in all."""
    num_baselines: int
    """Baselines beside them."""
    num_finished: int
    """Those of both that are finished already."""
    steps: int
    """Steps of the others, from their starts."""
    seconds: float | None
    """Estimated time of these steps; None where nothing is left or nothing was measured."""
    evaluation_seconds: float | None
    """Estimated time of the evaluations that are left; None also where the store is not there yet."""
    num_fits: int
    """Linear maps that are left to fit, whose time is not estimated."""
    source: str
    """Where the time of a step is from, or why it is not known."""

    def spoken(self) -> str:
        """In one line."""
        beside = f" and {self.num_baselines} baselines" if self.num_baselines else ""
        done = f", {self.num_finished} finished" if self.num_finished else ""
        line = f"sweep: {self.num_runs} runs{beside}{done}; at most {self.steps:,} steps left"
        if self.seconds is None:
            return f"{line}; {self.source}" if self.source else line
        line = f"{line}, about {console.human_seconds(self.seconds)} ({self.source})"
        if self.evaluation_seconds is None:
            return f"{line}, evaluation aside"
        line = f"{line}, and {console.human_seconds(self.evaluation_seconds)} of evaluation"
        fits = f"{self.num_fits} fit{'s' * (self.num_fits != 1)} of linear maps"
        return f"{line}; {fits} aside" if self.num_fits else line


def budget_of(
    runs: Sequence[PlannedRun],
    open_runs: Sequence[PlannedRun],
    step: StepSeconds | str | None,
    stores: StoreFacts,
    *,
    parallel: int,
    probe: bool,
) -> Budget:
    """The budget of the open runs; `step` may be a reason why no time is known, or nothing."""
    known = Budget(
        num_runs=sum(run.baseline is None for run in runs),
        num_baselines=sum(run.baseline is not None for run in runs),
        num_finished=len(runs) - len(open_runs),
        steps=sum(run.num_steps for run in open_runs),
        seconds=None,
        evaluation_seconds=None,
        num_fits=sum(run.baseline is not None and run.baseline.name in FITTED for run in open_runs),
        source="" if isinstance(step, StepSeconds) else step or "",
    )
    if not open_runs or not isinstance(step, StepSeconds):
        return known
    first, side_by_side = open_runs[0].recipe, min(parallel, len(open_runs))
    trained = [run.recipe for run in open_runs if run.baseline is None]
    seconds = sum(
        recipe.stage1.steps * step.phases * recipe.stage1.batch_size / first.stage1.batch_size
        + recipe.stage2.steps * step.closed_loop * recipe.stage2.batch_size / first.stage2.batch_size
        for recipe in trained
    )
    rows = [_evaluated_rows(run, stores, probe=probe) for run in open_runs]
    a_row = FORWARD_SHARE * step.closed_loop / first.stage2.batch_size
    return replace(
        known,
        seconds=seconds / side_by_side,
        evaluation_seconds=None if None in rows else sum(filter(None, rows)) * a_row / side_by_side,
        source=step.source,
    )


def _evaluated_rows(run: PlannedRun, stores: StoreFacts, *, probe: bool) -> int | None:
    """Rows that all blocks are applied to; identity and linear maps cost little beside these."""
    counts = stores.counts(run.recipe.store)
    if not counts:
        return None
    if run.baseline is not None and run.baseline.name != "repeated":
        return 0
    models = (2 if run.baseline is None else 1) if probe else 0
    return counts["test"] + models * sum(counts.values())
