"""Probes: teacher, surrogate and baselines from the store, under linear heads and in closed loop.

store, run or k, names of baselines  ->  ProbeResult; beside a run also its `probe.json`
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from activault.store import ConfigError, RunError, Store, open_store
from activault.store.files import file_sha256

from . import console
from .baselines import BaselineName, baseline_models, measured
from .chosen_weights import LAST, ChosenWeights
from .phases import rows_of
from .teachers import teacher_of
from .training import config_of_phases, fit_grid

if TYPE_CHECKING:
    from activault.extract.rotary import RotaryTables
    from activault.train import ProbeReport, RolloutMetrics, Run

__all__ = ["ProbeResult", "check_fit", "probe_identity", "probe_run"]


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """What `activault probe` finds."""

    report: ProbeReport
    """Every model under both heads."""
    rollouts: dict[str, RolloutMetrics]
    """R2 and cosine of every model's roll-out on the test rows, if baselines were asked for."""

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON takes it."""
        rollouts = {name: metrics.to_dict() for name, metrics in self.rollouts.items()}
        return {**self.report.to_dict(), **({"rollouts": rollouts} if rollouts else {})}


def probe_run(
    path: Path | str,
    run_path: Path | None,
    *,
    baselines: Sequence[BaselineName] = (),
    k: int = 3,
    which: Literal["last", "best"] = "last",
    ema: bool = False,
    task: Literal["classification"] = "classification",
    weights: Path | None = None,
    device: str = "auto",
    quiet: bool = False,
) -> ProbeResult:
    """Teacher, surrogate and baselines under linear heads; also written to the run's `probe.json`.

    Untrained teacher blocks and identity are always beside a run. Without one, `baselines` have `k` phases,
    found from the training rows. `which` and `ema` choose the run's weights as `load_run` takes them; others
    than the last ones have files of their own, `probe_best_ema.json` say.

    Raises:
        ConfigError: the store does not fit the run or has nothing to probe, or weights are chosen of no run.
        RunError: the run is not finished, or has no such weights.
    """
    from activault.extract.machine import choose_device
    from activault.train import load_run, probe
    from activault.train.checkpoint import write_json
    from activault.train.probes import checked_task

    of_run = ChosenWeights(which=which, ema=ema)
    if run_path is None and of_run != LAST:
        raise ConfigError(
            f"--which and --ema choose among the weights of a run; got {of_run.name} and no run: give --run"
        )
    store, chosen = open_store(path), choose_device(device)
    train_rows, test_rows = rows_of(store, "train"), rows_of(store, "test")
    teacher = teacher_of(store, weights, "probe from a store that `activault extract` made").to(chosen)
    checked_task(store, train_rows, test_rows)  # before baselines are fitted, which takes minutes
    run = None if run_path is None else load_run(run_path, which, ema=ema)
    if run is None:
        config, model = config_of_phases(store, k, quiet=quiet), None
    else:
        check_fit(store, run, teacher.rotary)
        config, model = run.model.config, run.model.to(chosen)
    names = [*baselines, "repeated"] if run else list(baselines)
    models = baseline_models(names, store, config, teacher, train_rows, device=chosen, quiet=quiet)
    with console.progress_bar("probe", "rows", quiet=quiet) as advance:
        report = probe(
            store, model, teacher.norm, models, train_rows, test_rows, device=chosen, progress=advance
        )
    if not baselines:
        rollouts = {}
    else:
        rolled = models if model is None else {"surrogate": model, **models}
        rollouts = measured(rolled, store, test_rows, chosen, quiet=quiet)
    result = ProbeResult(report=report, rollouts=rollouts)
    if run is None or run_path is None:
        return result
    try:
        made_from = probe_identity(store, run, of_run)
        file = run_path / f"probe{of_run.suffix}.json"
        write_json(file, {"task": task, **made_from, **result.to_dict()})
    except RunError as exc:  # another team's run may be read-only; its numbers are still good
        console.err.print(f"activault: the probe is not kept: {exc}", style="yellow", soft_wrap=True)
    return result


def probe_identity(store: Store, run: Run, weights: ChosenWeights = LAST) -> dict[str, str]:
    """What a probe was made from."""
    model = file_sha256(run.path / f"model{weights.suffix}.safetensors")
    return {"store_digest": store.digest, "model_sha256": model}


def check_fit(store: Store, run: Run, tables: RotaryTables | None = None) -> None:
    """A run rolls out from a store of its own teacher; the images may be others, and the grid."""
    if store.manifest.teacher.weights_sha256 != run.teacher_sha256:
        raise ConfigError(
            f"a run is held against its own teacher's activations; {run.path} was trained on weights "
            f"{run.teacher_sha256[:12]}..., {store.path} has {store.manifest.teacher.weights_sha256[:12]}..."
        )
    fit_grid(run.model, store, tables)
