"""What a run of a sweep leaves, read again: its result, and what its own files say beside it.

RUN/result.json      written last, of one job: figures of the evaluation
RUN/run.json         phases, store's digest      RUN/*/stage.json      hash of the run
RUN/metrics.parquet  time of the steps             RUN/cost.json         multiply-accumulates of a row
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from .training import COST

__all__ = ["RESULT", "hash_of", "job_hash", "read_result"]

RESULT = "result.json"


def hash_of(table: Mapping[str, Any]) -> str:
    """sha256 of a table as JSON with its keys in order."""
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()


def job_hash(job: Mapping[str, Any]) -> str:
    """Hash of what a run is made from, and of which weights are measured where these are not the last."""
    return hash_of({key: job[key] for key in ("recipe_identity", "store", "probe", "weights") if key in job})


def read_result(run: Path, job: Mapping[str, Any]) -> dict[str, Any] | None:
    """The result of a finished run of this job, with its phases, its store's digest, its hash, time and cost.

    None where there is none that can be read, or one of another job.
    """
    try:
        result = json.loads((run / RESULT).read_text(encoding="utf-8"))
        if not isinstance(result, dict) or result.get("job") != job_hash(job):
            return None
        if "baseline" in job["recipe_identity"]:
            return result
        record = json.loads((run / "run.json").read_text(encoding="utf-8"))
        return {
            **result,
            "cuts": record["model"]["cuts"],
            "groups": record["model"].get("groups"),
            "store_digest": record["store_digest"],
            "run_sha256": _run_hash(run),
            "seconds": _train_seconds(run / "metrics.parquet"),
            "macs": _macs(run / COST),
        }
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _macs(path: Path) -> int | None:
    """MACs of one row from layer 0 to L; None where the file of a run's cost is not there or damaged."""
    try:
        return int(json.loads(path.read_text(encoding="utf-8"))["surrogate"]["macs"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _run_hash(run: Path) -> str | None:
    """The hash that the run's checkpoints carry."""
    for path in sorted(run.glob("*/stage.json")):
        return str(json.loads(path.read_text(encoding="utf-8"))["run"])
    return None


def _train_seconds(path: Path) -> float | None:
    """Time of the run's steps over all of its starts; None where nothing was written down."""
    try:
        table = pq.read_table(path, columns=["stage", "metric", "step", "value"])
    except (FileNotFoundError, pa.ArrowInvalid):
        return None
    table = table.filter(pc.field("metric") == "seconds")
    clocks: dict[str, list[tuple[int, float]]] = {}
    for row in table.to_pylist():
        clocks.setdefault(row["stage"], []).append((row["step"], row["value"]))
    return sum(_over_starts([value for _, value in sorted(clock)]) for clock in clocks.values())


def _over_starts(clock: Sequence[float]) -> float:
    """Sum of a clock that every start sets to 0: its last value, and those before each fall."""
    return sum(value for value, after in zip(clock, [*clock[1:], -1.0], strict=False) if after < value)
