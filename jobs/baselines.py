"""The models that a surrogate is held against, made for one store and one set of phases.

    names, store, phases  ->  {name: RolloutModel}, and their R2 on rows of the store

identity    layer 0 for every layer           repeated    an untrained teacher block a phase
linear      one linear map a span             power       one linear map a step of a phase, again and again
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from activault.store import ConfigError, Store

from . import console

if TYPE_CHECKING:
    import torch

    from activault.extract.backbone import Backbone
    from activault.train import RaptorConfig, RolloutMetrics, RolloutModel

__all__ = ["FIT_ROWS", "REPEATED", "BaselineName", "baseline_models", "measured"]

BaselineName = Literal["identity", "linear", "power", "repeated"]
REPEATED = "untrained blocks"
"""How reports call repeated teacher blocks."""
FIT_ROWS = 2_000
"""Training rows that linear maps are fitted to; a ViT-S/14 at 98 pixels gives 49 patches a row."""


def baseline_models(
    names: Sequence[BaselineName],
    store: Store,
    config: RaptorConfig,
    teacher: Backbone | None,
    rows: npt.NDArray[np.int64],
    *,
    fit_rows: int = FIT_ROWS,
    device: torch.device,
    quiet: bool = False,
) -> dict[str, RolloutModel]:
    """Baselines by the names that reports use, on `device`; linear maps are fitted to some of `rows`.

    Only repeated blocks need the teacher.

    Raises:
        ConfigError: `fit_rows` is below 1, or the store lacks layers or tokens.
    """
    from activault.train import Identity, fit_linear_maps, repeated_blocks

    if fit_rows < 1:
        raise ConfigError(f"linear maps are fitted to at least 1 row; got {fit_rows}")
    models: dict[str, RolloutModel] = {}
    if "identity" in names:
        models["identity"] = Identity(config.num_layers)
    if "repeated" in names:
        assert teacher is not None, "whoever asks for the teacher's blocks has it"
        models[REPEATED] = repeated_blocks(config, list(teacher.blocks))
    if linear := [name for name in names if name in ("linear", "power")]:
        if len(rows) > fit_rows:
            rows = np.sort(np.random.default_rng(0).choice(rows, fit_rows, replace=False))
        sums_on = "cpu" if device.type == "mps" else device  # which has no float64
        with console.progress_bar("fit linear maps", "rows", quiet=quiet) as advance:
            fitted = fit_linear_maps(
                store, rows, config.phases, kinds=linear, device=sums_on, progress=advance
            )
        models.update({str(name): model for name, model in fitted.items()})
    return {name: model.to(device).eval() for name, model in models.items()}


def measured(
    models: Mapping[str, RolloutModel],
    store: Store,
    rows: npt.NDArray[np.int64],
    device: torch.device,
    *,
    quiet: bool = False,
) -> dict[str, RolloutMetrics]:
    """R2 and cosine of each model's closed loop on rows of the store."""
    from activault.train import evaluate_rollout

    found = {}
    for name, model in models.items():
        with console.progress_bar(f"roll out {name}", "rows", quiet=quiet) as advance:
            found[name] = evaluate_rollout(model, store, rows, device=device, progress=advance)
    return found
