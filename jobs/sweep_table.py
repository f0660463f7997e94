"""What a sweep leaves: one table of its runs, and one figure of its configurations.

OUT/results.parquet     a row a run: name, cell, seed, status, error, what it sets, and its figures
OUT/comparison.svg      R2 and retentions of every configuration, the mean over its seeds
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

__all__ = ["Outcome", "configurations", "write_comparison", "write_results"]

FIGURES = {
    "mean_r2": "R2 of the closed loop on test rows, mean over layers",
    "frozen_retention": "retention under the teacher's head",
    "refitted_retention": "retention under a head of its own",
}
"""What configurations are compared by; each at most 1 or little more."""


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
    """What `sweep_run.py` wrote down."""

    def figures(self) -> dict[str, float | None]:
        """The numbers of a finished run; those that it has not are None."""
        return dict(_figures(self.result)) if self.result else {}


def _figures(result: Mapping[str, Any]) -> Iterator[tuple[str, float | None]]:
    rollout, score = result["rollout"], (result["probe"] or {}).get("scores", {}).get("surrogate", {})
    yield "mean_r2", rollout["mean_r2"]
    for kind, values in rollout["r2"].items():
        told = [value for value in values if value != "constant"]
        yield f"r2_{kind}", statistics.fmean(told) if told else None
        yield f"r2_{kind}_last", values[-1] if values[-1] != "constant" else None
    yield "eps_last", rollout["eps"]["all"][-1]
    for head in ("frozen", "refitted"):
        yield f"{head}_retention", score.get(f"{head}_retention")
        yield f"{head}_accuracy", score.get(f"{head}_accuracy")
    beats = (result["probe"] or {}).get("beats_baselines")
    yield "beats_baselines", None if beats is None else float(beats)
    yield "num_parameters", float(result["num_parameters"])
    yield "seconds", sum(stage["seconds"] for stage in result["stages"])
    yield "final_loss", result["stages"][-1]["loss"] if result["stages"] else None


def write_results(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Write the table: text columns for what runs set, numbers for what came out.

    Raises:
        RunError: the file cannot be written.
    """
    from activault.train.checkpoint import write_atomically

    changed = list(dict.fromkeys(key for each in outcomes for key in each.run.changes if key != "seed"))
    measured = list(dict.fromkeys(name for each in outcomes for name in each.figures()))
    columns: dict[str, pa.Array[Any]] = {
        "run": pa.array([each.run.name for each in outcomes], pa.string()),
        "cell": pa.array([each.run.cell for each in outcomes], pa.string()),
        "seed": pa.array([each.run.seed for each in outcomes], pa.int64()),
        "status": pa.array([each.status for each in outcomes], pa.string()),
        "error": pa.array([each.error for each in outcomes], pa.string()),
    }
    for key in changed:
        values = [each.run.changes.get(key) for each in outcomes]
        columns[key] = pa.array([None if value is None else str(value) for value in values], pa.string())
    for name in measured:
        columns[name] = pa.array([each.figures().get(name) for each in outcomes], pa.float64())
    table = pa.table(columns)
    write_atomically(path, lambda temporary: pq.write_table(table, temporary))


def configurations(outcomes: Sequence[Outcome]) -> dict[str, dict[str, list[float]]]:
    """By configuration and figure, the values of its finished seeds."""
    found: dict[str, dict[str, list[float]]] = {}
    for each in outcomes:
        for name, value in each.figures().items():
            if name in FIGURES and value is not None:
                found.setdefault(each.run.cell, {}).setdefault(name, []).append(value)
    return found


def write_comparison(path: Path, outcomes: Sequence[Outcome]) -> bool:
    """Draw every configuration's mean; says whether there was anything to draw.

    Raises:
        RunError: the file cannot be written.
    """
    from activault.analyze.figures import draw_bars
    from activault.analyze.marks import Bar
    from activault.train.checkpoint import write_atomically

    found = configurations(outcomes)
    bars = [
        Bar(
            group=title,
            name=cell,
            value=min(1.0, max(0.0, statistics.fmean(values[name]))),
            text=spoken(values[name]),
            role="green" if name == "mean_r2" else "blue",
        )
        for name, title in FIGURES.items()
        for cell, values in found.items()
        if name in values
    ]
    if not bars:
        return False
    label = "; ".join(f"{bar.group}, {bar.name}: {bar.text}" for bar in bars)
    svg = draw_bars(
        bars, slug="sweep", label=f"Comparison of a sweep's runs. {label}", x_title="1 is the teacher"
    )
    write_atomically(path, lambda temporary: temporary.write_text(svg, encoding="utf-8"))
    return True


def spoken(values: Sequence[float]) -> str:
    """`93.1 %`, or with several seeds `93.1 % ± 0.4 (3)`: their standard deviation and number."""
    mean = f"{100 * statistics.fmean(values):.1f} %"
    if len(values) == 1:
        return mean
    return f"{mean} \N{PLUS-MINUS SIGN} {100 * statistics.stdev(values):.1f} ({len(values)})"
