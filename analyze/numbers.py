"""A report's numbers for programs: `numbers.json`, everything; `layers.parquet`, one row a layer and kind.

`layers.parquet`: model string (teacher, surrogate), measure string, kind string, layer int32, value float64,
stderr float64 (null where there is none), unit string, num_rows int64 (null where unknown). R2 is in it too,
under measure `r2` of the surrogate, its value null where the kind is constant.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from .inputs import ReportInputs
from .phases import Phases
from .study import ModelAnalysis

__all__ = ["layer_table", "numbers", "write_numbers"]

COLUMNS: dict[str, pa.DataType] = {
    "model": pa.string(),
    "measure": pa.string(),
    "kind": pa.string(),
    "layer": pa.int32(),
    "value": pa.float64(),
    "stderr": pa.float64(),
    "unit": pa.string(),
    "num_rows": pa.int64(),
}


def write_numbers(folder: Path, inputs: ReportInputs) -> None:
    """Write `numbers.json` and `layers.parquet` into an existing folder."""
    text = json.dumps(numbers(inputs), indent=1, allow_nan=False)
    (folder / "numbers.json").write_text(text + "\n", encoding="utf-8")
    pq.write_table(layer_table(inputs), folder / "layers.parquet")


def layer_table(inputs: ReportInputs) -> pa.Table:
    """One row for each model, measure, token kind and layer (see the head of this file)."""
    rows = list(_layer_rows(inputs))
    return pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in COLUMNS.items()})


def _layer_rows(inputs: ReportInputs) -> Iterator[dict[str, Any]]:
    for name, model in _models(inputs):
        for curve in model.dynamics.curves:
            for layer, value, error in zip(curve.layers, curve.mean, curve.stderr, strict=True):
                yield {
                    "model": name,
                    "measure": curve.measure,
                    "kind": curve.kind,
                    "layer": layer,
                    "value": value,
                    "stderr": error if math.isfinite(error) else None,
                    "unit": curve.unit,
                    "num_rows": curve.num_rows,
                }
    for row in inputs.r2:
        plain = {"kind": row.kind, "layer": row.layer, "value": row.value}
        yield {"model": "surrogate", "measure": "r2", "stderr": None, "unit": "1", "num_rows": None, **plain}


def numbers(inputs: ReportInputs) -> dict[str, Any]:
    """Everything that the report shows, as JSON takes it; angles in radians."""
    analysis = inputs.analysis
    return {
        "store": asdict(inputs.store),
        "num_rows": analysis.num_rows,
        "layers": list(analysis.layers),
        "kinds": list(analysis.kinds),
        "cuts": list(inputs.cuts),
        "similarity": {name: model.similarity.matrix.tolist() for name, model in _models(inputs)},
        "phases": [_phases(phases) for phases in analysis.phases],
        "cost_curve": [_phases(phases) for phases in analysis.curve],
        "num_resamples": analysis.num_resamples,
        "dynamics": {
            name: [
                {**asdict(curve), "unit": curve.unit, "stderr": [_finite(value) for value in curve.stderr]}
                for curve in model.dynamics.curves
            ]
            for name, model in _models(inputs)
        },
        "r2": [asdict(row) for row in inputs.r2],
        "probes": [asdict(row) for row in inputs.probes],
        "losses": [
            {
                "stage": curve.stage,
                "name": curve.name,
                "steps": list(curve.steps),
                "values": list(curve.values),
            }
            for curve in inputs.losses
        ],
        "notes": dict(inputs.notes),
    }


def _models(inputs: ReportInputs) -> list[tuple[str, ModelAnalysis]]:
    analysis = inputs.analysis
    surrogate = [("surrogate", analysis.surrogate)] if analysis.surrogate else []
    return [("teacher", analysis.teacher), *surrogate]


def _phases(phases: Phases) -> dict[str, Any]:
    return {"k": phases.k, "spans": [list(span) for span in phases.spans], **asdict(phases)}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
