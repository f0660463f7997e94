"""One run of a sweep in a process of its own: train, roll out on test rows, probe, and write down the result.

    python -m activault.jobs.sweep_run JOB.json      {"recipe": path, "overrides": [...], "out": RUN, ...}

    RUN/result.json     R2 and other figures, retentions, losses; written last: a run that has it is finished

A process a run keeps a failure to itself, and gives its memory back. With "measure": true nothing is kept: it
prints what a step takes.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from activault.store import ActivaultError, ConfigError, open_store

from .run_training import train_run

__all__ = ["job_hash", "main", "read_result"]

MEASURED_STEPS = 4
RESULT = "result.json"


def job_hash(job: Mapping[str, Any]) -> str:
    """Hash of what a run is made from."""
    told = {key: job[key] for key in ("recipe_identity", "store", "probe")}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def read_result(run: Path, job: Mapping[str, Any]) -> dict[str, Any] | None:
    """The result of a finished run of this job; None where there is none, or one of another job."""
    try:
        result = json.loads((run / RESULT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return result if isinstance(result, dict) and result.get("job") == job_hash(job) else None


def main(job_path: str) -> int:
    """Carry out one job; its exit status."""
    job = json.loads(Path(job_path).read_text(encoding="utf-8"))
    try:
        if job.get("measure"):
            sys.stdout.write(json.dumps(_measured(job)) + "\n")
        else:
            _carry_out(job)
    except KeyboardInterrupt:
        return 130
    except ActivaultError as exc:
        sys.stderr.write(f"activault: {exc}\n")
        return 2 if isinstance(exc, ConfigError) else 1
    return 0


def _carry_out(job: Mapping[str, Any]) -> None:
    from activault.extract.machine import choose_device
    from activault.train import evaluate_rollout, load_run
    from activault.train.checkpoint import write_json

    from .phases import rows_of

    out = Path(job["out"])
    summary = train_run(
        Path(job["recipe"]), out, overrides=job["overrides"], device=job["device"], quiet=True
    )
    device, run = choose_device(job["device"]), load_run(out)
    store = open_store(run.recipe.store)
    rollout = evaluate_rollout(run.model.to(device), store, rows_of(store, "test"), device=device)
    probe, why_not = _probe(run.recipe.store, out, job) if job["probe"] else (None, "not asked for")
    result = {
        "job": job_hash(job),
        "cuts": list(run.cuts),
        "num_parameters": summary.num_parameters,
        "stages": [asdict(stage) for stage in summary.stages],
        "rollout": {"mean_r2": rollout.mean_r2, **rollout.to_dict()},
        "probe": probe,
        "no_probe": why_not,
    }
    write_json(out / RESULT, result)


def _probe(store: str, out: Path, job: Mapping[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """The probe's scores, or why there can be none: a store without labels still has R2."""
    from .probing import probe_run

    try:
        return probe_run(store, out, device=job["device"], quiet=True).to_dict(), ""
    except ConfigError as exc:
        return None, str(exc)


def _measured(job: Mapping[str, Any]) -> dict[str, float]:
    """Seconds of a step of all phases together, and of a closed-loop step, over a few of them."""
    short = ["steps=4", "warmup_steps=0", "log_every=4", "validate_every=0", "checkpoint_every=4"]
    overrides = [*job["overrides"], *(f"{stage}.{key}" for stage in ("stage1", "stage2") for key in short)]
    with tempfile.TemporaryDirectory() as folder:
        summary = train_run(
            Path(job["recipe"]),
            Path(folder) / "measured",
            overrides=overrides,
            device=job["device"],
            tensorboard=False,
            quiet=True,
        )
    phases = sum(stage.seconds for stage in summary.stages if stage.name != "closed_loop")
    closed = sum(stage.seconds for stage in summary.stages if stage.name == "closed_loop")
    return {"phases": phases / MEASURED_STEPS, "closed_loop": closed / MEASURED_STEPS}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
