"""From the results of several rooms to what one report shows."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from activault.analyze import LossCurve, ProbeRow, R2Row, ReportInputs, StoreAnalysis, store_facts
from activault.store import Store

if TYPE_CHECKING:
    from activault.train import RolloutMetrics, Run

    from .phases import FoundPhases

__all__ = ["report_inputs"]


def report_inputs(
    store: Store,
    analysis: StoreAnalysis,
    found: FoundPhases,
    *,
    run: Run | None = None,
    rollout: RolloutMetrics | None = None,
    probe: dict[str, Any] | None = None,
) -> ReportInputs:
    """Join the pass over the store, the phases, and a run's results.

    The figures are drawn with the run's phases; without a run, with the middle one of those that were found.
    """
    cuts = run.cuts if run else found.phases[len(found.phases) // 2].cuts if found.phases else ()
    return ReportInputs(
        store=store_facts(store),
        analysis=dataclasses.replace(
            analysis, phases=found.phases, curve=found.curve, num_resamples=found.num_resamples
        ),
        phase_similarity=found.similarity,
        cuts=cuts,
        r2=R2Row.from_metrics(rollout.to_dict()) if rollout else (),
        probes=ProbeRow.from_report(probe) if probe else (),
        losses=tuple(_losses(run.path)) if run else (),
        notes=_notes(found, run, rollout, probe),
    )


def _losses(run: Path) -> Iterator[LossCurve]:
    """Every stage's logged losses, in the order they were trained."""
    for path in [*sorted(run.glob("phase_*/metrics.jsonl")), run / "closed_loop" / "metrics.jsonl"]:
        lines = list(_logged(path))
        if lines:
            phase = path.parent.name.startswith("phase_")
            yield LossCurve(
                stage="each phase alone" if phase else "closed loop",
                name=path.parent.name.replace("_", " "),
                steps=[step for step, _ in lines],
                values=[loss for _, loss in lines],
            )


def _logged(path: Path) -> Iterator[tuple[int, float]]:
    """Whole lines of a stage's log; one that a killed or a running writer left half-way is no line yet."""
    if not path.exists():
        return
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line = json.loads(text)
            yield int(line["step"]), float(line["loss"])
        except (ValueError, KeyError, TypeError):
            continue


def _notes(
    found: FoundPhases, run: Run | None, rollout: RolloutMetrics | None, probe: dict[str, Any] | None
) -> dict[str, str]:
    notes = {"images behind the phases": f"{found.num_rows:,}, of the training split"}
    if run:
        recipe = run.recipe
        notes["surrogate"] = f"{len(run.model.phases)} blocks, {run.model.num_parameters:,} parameters"
        notes["start of the blocks"] = recipe.init
        notes["steps"] = (
            f"{recipe.stage1.steps:,} a phase alone, {recipe.stage2.steps:,} in closed loop, "
            f"{recipe.stage1.batch_size} and {recipe.stage2.batch_size} rows each"
        )
        if recipe.split == "all":
            notes["held out"] = "nothing: the run was trained on every row, test rows too"
    if rollout:
        notes["images behind R2 and the curves"] = f"{rollout.num_rows:,}, of the test split"
    if probe:
        notes["probes"] = (
            f"{len(probe['classes'])} classes, {probe['num_train']:,} training, {probe['num_test']:,} test "
            f"rows; chance {probe['chance']:.1%}"
        )
    return notes
