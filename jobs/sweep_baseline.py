"""A baseline beside the runs of a sweep: fitted where it has to be, then held to what the runs are held to.

job (name, number of phases, store)  ->  its result: R2 on test rows, retentions, phases, learned values
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from activault.store import ConfigError, open_store

from .baselines import FIT_ROWS, baseline_models
from .phases import rows_of
from .sweep_plan import PlannedBaseline
from .teachers import teacher_if_there, teacher_of
from .training import config_of_phases

if TYPE_CHECKING:
    from activault.extract.backbone import Backbone
    from activault.store import Store
    from activault.train import RaptorConfig, RolloutModel

__all__ = ["baseline_identity", "baseline_result"]

REMEDY = "leave out the baseline repeated"


def baseline_identity(baseline: PlannedBaseline) -> dict[str, Any]:
    """What a baseline is made from, beside its store."""
    return {"baseline": dataclasses.asdict(baseline), "fit_rows": FIT_ROWS}


def baseline_result(job: Mapping[str, Any]) -> dict[str, Any]:
    """Make a baseline and measure it.

    Raises:
        ConfigError: the phases do not fit the layers, or the store lacks what it needs.
    """
    from activault.extract.machine import choose_device
    from activault.train import evaluate_rollout

    planned, device = PlannedBaseline(**job["recipe_identity"]["baseline"]), choose_device(job["device"])
    store = open_store(job["store"])
    config = config_of_phases(store, planned.num_phases, cost=planned.cost, quiet=True)
    if planned.name == "repeated":
        teacher: Backbone | None = teacher_of(store, None, REMEDY)
    else:
        teacher = teacher_if_there(store)
    began = time.perf_counter()
    models = baseline_models(
        [planned.name],
        store,
        config,
        None if teacher is None else teacher.to(device),
        rows_of(store, "train"),
        device=device,
        quiet=True,
    )
    ((name, model),) = models.items()
    seconds = time.perf_counter() - began
    rollout = evaluate_rollout(model, store, rows_of(store, "test"), device=device)
    probe, why_not = None, "not asked for"
    if job["probe"]:
        probe, why_not = _probe(store, teacher, name, model, device)
    return {
        "store_digest": store.digest,
        "cuts": list(config.cuts),
        "num_parameters": _num_values(planned, config, model, store),
        "seconds": seconds if planned.name in ("linear", "power") else None,
        "scored": name,
        "rollout": {"mean_r2": rollout.mean_r2, **rollout.to_dict()},
        "probe": probe,
        "no_probe": why_not,
    }


def _probe(
    store: Store, teacher: Backbone | None, name: str, model: RolloutModel, device: Any
) -> tuple[dict[str, Any] | None, str]:
    """The probe's scores, or why there can be none."""
    from activault.train import probe

    if teacher is None:
        return None, f"{store.path} has no teacher's weights, and a probe reads through its final norm"
    train_rows, test_rows = rows_of(store, "train"), rows_of(store, "test")
    try:
        report = probe(store, None, teacher.norm, {name: model}, train_rows, test_rows, device=device)
    except ConfigError as exc:
        return None, str(exc)
    return report.to_dict(), ""


def _num_values(planned: PlannedBaseline, config: RaptorConfig, model: RolloutModel, store: Store) -> int:
    """Values that it has: those of its teacher blocks, or of its affine maps (D x D and D), one a kind."""
    if planned.name in ("identity", "repeated"):
        return sum(parameter.numel() for parameter in model.parameters())
    num_maps = len(config.phases) if planned.name == "power" else config.num_layers
    return num_maps * len(store.layout.kinds) * (config.dim**2 + config.dim)
