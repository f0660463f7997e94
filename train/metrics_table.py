"""RUN/metrics.parquet: everything that a run's stages wrote down, as one table.

    stage, step, metric, layer, kind, value

`layer` and `kind` are empty for what is no validation figure (loss, learning_rate, gradient_norm, seconds,
wait_seconds). It is made anew from the stages' `metrics.jsonl`, so that a killed process leaves the table
before it whole, and no step is in it twice.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from activault.store.errors import RunError

from .checkpoint import one_line, write_atomically
from .ledger import Line, lines_of
from .watching import Watcher, figures_of

__all__ = ["MetricsTable", "write_metrics_table"]

FIELDS = {
    "stage": pa.string(),
    "step": pa.int64(),
    "metric": pa.string(),
    "layer": pa.int32(),
    "kind": pa.string(),
    "value": pa.float64(),
}

Entry = tuple[str, int, str, int | None, str | None, float]


def write_metrics_table(run: Path, stages: Sequence[str]) -> None:
    """Write the table of these stages' lines, in their order.

    Raises:
        RunError: a file of the run cannot be read or has a line that is none of a run, or the table cannot be
            written.
    """
    entries = [
        entry
        for stage in stages
        for line in lines_of(run / stage / "metrics.jsonl")
        for entry in _whole_entries(run / stage / "metrics.jsonl", stage, line)
    ]
    columns = zip(*entries, strict=True) if entries else ([] for _ in FIELDS)
    table = pa.table(
        {
            name: pa.array(list(values), kind)
            for (name, kind), values in zip(FIELDS.items(), columns, strict=True)
        }
    )
    write_atomically(run / "metrics.parquet", lambda temporary: pq.write_table(table, temporary))


def _whole_entries(path: Path, stage: str, line: Line) -> list[Entry]:
    """A line's entries, or what is wrong with the line."""
    try:
        return [
            (stage, operator.index(step), metric, None if layer is None else int(layer), kind, float(value))
            for stage, step, metric, layer, kind, value in _entries(stage, line)
        ]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as exc:
        fault = f"{type(exc).__name__} {one_line(exc)}"
        raise RunError(
            f"a line has a step and numbers, or a validation's figures; {path} has one of step "
            f"{line['step']!r:.80} that has not ({fault}); remove that line"
        ) from exc


def _entries(stage: str, line: Line) -> Iterator[Entry]:
    for name, value in line.items():
        if name == "validation":
            yield stage, line["step"], "mean_r2", None, None, value["mean_r2"]
            for figure, layer, kind, number in figures_of(value):
                yield stage, line["step"], figure, layer, kind, number
        elif name != "step":
            yield stage, line["step"], name, None, None, value


class MetricsTable(Watcher):
    """Keeps the table of a run up to date: at a stage's start, at every validation, and at the end."""

    def __init__(self, run: Path, stages: Sequence[str]) -> None:
        self._run, self._stages = run, stages

    def begin(self, stage: str, lines: Sequence[Mapping[str, Any]]) -> None:  # noqa: ARG002
        """Leave out what was cut back."""
        write_metrics_table(self._run, self._stages)

    def write(self, stage: str, line: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Bring the table up to a validation."""
        if "validation" in line:
            write_metrics_table(self._run, self._stages)

    def close(self) -> None:
        """The last lines."""
        write_metrics_table(self._run, self._stages)
