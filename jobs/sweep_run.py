"""One run of a sweep in a process of its own: train, roll out on test rows, probe, and write down the result.

    python -m activault.jobs.sweep_run JOB.json      {"recipe": path, "overrides": [...], "out": RUN, ...}

    RUN/result.json     R2 and other figures, retentions, losses; written last: a run that has it is finished

A process a run keeps a failure to itself, and gives its memory back. With "measure": true nothing is kept: it
prints what a step takes. With --while-read it ends, after a checkpoint, when whoever holds the other end of
its standard input is gone: a sweep that was killed leaves no run at work behind.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from activault.store import ActivaultError, ConfigError, open_store
from activault.store.differences import first_differing

from .chosen_weights import ChosenWeights
from .run_training import train_run
from .sweep_baseline import baseline_result
from .sweep_local import end_with_sweep
from .sweep_result import RESULT, job_hash

__all__ = ["WHILE_READ", "main"]

MEASURED_STEPS = 4
WHILE_READ = "--while-read"


def main(job_path: str) -> int:
    """Carry out one job; its exit status."""
    job = json.loads(Path(job_path).read_text(encoding="utf-8"))
    try:
        if job.get("measure"):
            sys.stdout.write(json.dumps(_measured(job)) + "\n")
        elif "baseline" in job["recipe_identity"]:
            _keep(job, baseline_result(job))
        else:
            _keep(job, _run_result(job))
    except KeyboardInterrupt:
        return 130
    except ActivaultError as exc:
        sys.stderr.write(f"activault: {exc}\n")
        return 2 if isinstance(exc, ConfigError) else 1
    return 0


def _keep(job: Mapping[str, Any], result: Mapping[str, Any]) -> None:
    from activault.train.checkpoint import write_json

    Path(job["out"]).mkdir(parents=True, exist_ok=True)
    write_json(Path(job["out"]) / RESULT, {"job": job_hash(job), **result})


def _run_result(job: Mapping[str, Any]) -> dict[str, Any]:
    from activault.extract.machine import choose_device
    from activault.train import evaluate_rollout, load_run

    from .phases import rows_of

    out = Path(job["out"])
    _check_recipe(job)
    summary = train_run(
        Path(job["recipe"]), out, overrides=job["overrides"], device=job["device"], quiet=True
    )
    weights = ChosenWeights(**job.get("weights", {}))
    device, run = choose_device(job["device"]), load_run(out, weights.which, ema=weights.ema)
    store = open_store(job["store"])  # which may have moved since the run was begun
    rollout = evaluate_rollout(run.model.to(device), store, rows_of(store, "test"), device=device)
    probe, why_not = (
        _probe(job["store"], out, weights, job["device"]) if job["probe"] else (None, "not asked for")
    )
    return {
        "num_parameters": summary.num_parameters,
        "stages": [asdict(stage) for stage in summary.stages],
        "rollout": {"mean_r2": rollout.mean_r2, **rollout.to_dict()},
        "probe": probe,
        "no_probe": why_not,
    }


def _check_recipe(job: Mapping[str, Any]) -> None:
    """Its file is read again here: one that was edited since would give another run under this one's name.

    Raises:
        ConfigError: it was.
    """
    from activault.train import load_recipe

    now = load_recipe(Path(job["recipe"]), job["overrides"]).identity()
    if found := first_differing(job["recipe_identity"], now):
        key, there, here = found
        raise ConfigError(
            f"a sweep makes its runs from the recipe that it began with; {job['recipe']} had {key} = "
            f"{there!r} then and has {here!r} now: put it back, or choose another --out, and start the sweep "
            "again"
        )


def _probe(store: str, out: Path, weights: ChosenWeights, device: str) -> tuple[dict[str, Any] | None, str]:
    """The probe's scores, or why there can be none: a store without labels still has R2."""
    from .probing import probe_run

    try:
        found = probe_run(store, out, which=weights.which, ema=weights.ema, device=device, quiet=True)
        return found.to_dict(), ""
    except ConfigError as exc:
        return None, str(exc)


def _measured(job: Mapping[str, Any]) -> dict[str, float]:
    """Seconds of a step of all phases together, and of a closed-loop step, over a few of them."""
    counted = [f"{key}={MEASURED_STEPS}" for key in ("steps", "log_every", "checkpoint_every")]
    short = [*counted, "warmup_steps=0", "validate_every=0"]
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
    # The sweep ends its runs by SIGINT, which they inherit as ignored from a shell's `sweep ... &`.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if WHILE_READ in sys.argv[2:]:
        end_with_sweep()
    sys.exit(main(sys.argv[1]))
