"""What a sweep leaves as tables: one row a run, and one row a figure of a layer and token kind.

OUT/results.parquet     run, cell, seed, status, what it sets (`set.KEY`), hashes, phases, accuracies, ...
OUT/layers.parquet      run, cell, seed, metric (`METRICS`), layer, kind, value
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from .sweep_plan import PlannedRun
from .sweep_result import hash_of
from .training_macs import training_macs

__all__ = ["METRICS", "Outcome", "write_tables"]

METRICS = ("r2", "cosine", "norm_ratio", "eps", "relative_eps")
"""Figures of every layer and token kind."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended."""

    run: PlannedRun
    """What it was."""
    status: str
    """`finished`, `failed`, or `open` where it was not run to its end."""
    error: str | None = None
    """Why it failed, in one line."""
    result: Mapping[str, Any] | None = None
    """What `sweep_result.py` reads."""

    @property
    def rollout(self) -> Mapping[str, Any]:
        """Figures of the closed loop by layer and kind; empty before the run is finished."""
        return dict(self.result["rollout"]) if self.result else {}

    @property
    def phases(self) -> str:
        """Its phases in words, `1-7, 8-10, 11-12`; nothing where it has none."""
        from activault.train.phases import phases_of, spoken_phases

        if not self.result or (self.run.baseline is not None and self.run.baseline.name == "identity"):
            return ""
        num_layers = len(self.rollout["layers"])
        return spoken_phases(phases_of(self.result["cuts"], self.result.get("groups") or None, num_layers))

    def figures(self) -> dict[str, float | None]:
        """The numbers of a finished run; those that it has not are None."""
        return dict(_figures(self)) if self.result else {}


def _figures(outcome: Outcome) -> Iterator[tuple[str, float | None]]:
    result, rollout = outcome.result or {}, outcome.rollout
    yield "mean_r2", rollout["mean_r2"]
    for kind, values in rollout["r2"].items():
        told = [value for value in values if value != "constant"]
        yield f"r2_{kind}", statistics.fmean(told) if told else None
        yield f"r2_{kind}_last", values[-1] if values[-1] != "constant" else None
    for metric in METRICS[1:]:
        yield f"{metric}_last", rollout[metric]["all"][-1]
    yield "num_evaluated_rows", float(rollout["num_rows"])
    probe = result["probe"] or {}
    scores = probe.get("scores", {})
    yield "teacher_accuracy", scores.get("teacher", {}).get("frozen_accuracy")
    yield "chance", probe.get("chance")
    for split in ("train", "test"):
        yield f"num_probe_{split}_rows", probe.get(f"num_{split}")
    score = scores.get(result.get("scored", "surrogate"), {})
    for head in ("frozen", "refitted"):
        yield f"{head}_retention", score.get(f"{head}_retention")
        yield f"{head}_accuracy", score.get(f"{head}_accuracy")
    beats = None if outcome.run.baseline else probe.get("beats_baselines")
    yield "beats_baselines", None if beats is None else float(beats)
    yield "num_parameters", float(result["num_parameters"])
    yield "steps", float(outcome.run.num_steps)
    yield "updates", float(outcome.run.num_updates)
    macs = result.get("macs")
    yield "macs", None if macs is None else float(macs)
    yield "train_macs", None if macs is None else float(training_macs(outcome.run.recipe, macs))
    yield "train_seconds", result.get("seconds")
    stages = result.get("stages")
    yield "final_loss", stages[-1]["loss"] if stages else None


def write_tables(out: Path, outcomes: Sequence[Outcome]) -> None:
    """Write both tables.

    Raises:
        RunError: a file cannot be written.
    """
    from activault.train.checkpoint import write_atomically

    for name, table in (("results", _results(outcomes)), ("layers", _layers(outcomes))):
        write_atomically(out / f"{name}.parquet", _writer(table))


def _writer(table: pa.Table) -> Any:
    return lambda temporary: pq.write_table(table, temporary)


def _results(outcomes: Sequence[Outcome]) -> pa.Table:
    """Text for what runs set, numbers for what came out."""
    changed = list(dict.fromkeys(key for each in outcomes for key in each.run.changes if key != "seed"))
    measured = list(dict.fromkeys(name for each in outcomes for name in each.figures()))
    results = [each.result or {} for each in outcomes]
    baselines = [each.run.baseline for each in outcomes]
    columns: dict[str, pa.Array[Any]] = {
        **_names(outcomes),
        "status": pa.array([each.status for each in outcomes], pa.string()),
        "error": pa.array([each.error for each in outcomes], pa.string()),
        "baseline": pa.array([None if each is None else each.name for each in baselines], pa.string()),
        "weights": pa.array(
            [None if each.run.baseline else each.run.weights.name for each in outcomes], pa.string()
        ),
        "recipe_sha256": pa.array(
            [None if each.run.baseline else hash_of(each.run.recipe.identity()) for each in outcomes],
            pa.string(),
        ),
        "run_sha256": pa.array([each.get("run_sha256") for each in results], pa.string()),
        "store_digest": pa.array([each.get("store_digest") for each in results], pa.string()),
        "phases": pa.array([each.phases or None for each in outcomes], pa.string()),
        "cuts": pa.array([each.get("cuts") for each in results], pa.list_(pa.int64())),
        "groups": pa.array([each.get("groups") for each in results], pa.list_(pa.list_(pa.int64()))),
    }
    for key in changed:
        values = [each.run.changes.get(key) for each in outcomes]
        told = [None if value is None else str(value) for value in values]
        columns[f"set.{key}"] = pa.array(told, pa.string())
    for name in measured:
        columns[name] = pa.array([each.figures().get(name) for each in outcomes], pa.float64())
    return pa.table(columns)


def _names(outcomes: Sequence[Outcome]) -> dict[str, pa.Array[Any]]:
    return {
        "run": pa.array([each.run.name for each in outcomes], pa.string()),
        "cell": pa.array([each.run.cell for each in outcomes], pa.string()),
        "seed": pa.array([each.run.seed for each in outcomes], pa.int64()),
    }


def _layers(outcomes: Sequence[Outcome]) -> pa.Table:
    """Every figure of every layer; a constant kind's R2 is null."""
    rows = [
        (each, metric, layer, kind, None if value == "constant" else value)
        for each in outcomes
        for metric in METRICS
        for kind, values in each.rollout.get(metric, {}).items()
        for layer, value in zip(each.rollout["layers"], values, strict=True)
    ]
    runs, metrics, layers, kinds, values = zip(*rows, strict=True) if rows else ((),) * 5
    return pa.table(
        {
            **_names(runs),
            "metric": pa.array(metrics, pa.string()),
            "layer": pa.array(layers, pa.int64()),
            "kind": pa.array(kinds, pa.string()),
            "value": pa.array(values, pa.float64()),
        }
    )
