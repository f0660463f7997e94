"""What a stage of training is, before any of it runs: a module, its layers of the store, and its objective.

`teacher_forced.py` and `closed_loop.py` build stages, `trainer.py` runs them, `runs.py` strings them
together.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from activault.store import Store
from activault.store.errors import ConfigError

from .checkpoint import write_json
from .losses import SpanLoss, TokenWeights, kind_weights, layer_scales
from .stage_config import StageConfig

__all__ = ["ProgressCallback", "Stage", "StageProgress", "StageResult", "record_stage", "span_loss"]

Objective = Callable[
    [Float[Tensor, "batch layers tokens dim"], int, torch.Generator | None], Float[Tensor, ""]
]
Rollout = Callable[[Float[Tensor, "batch layers tokens dim"]], Float[Tensor, "batch targets tokens dim"]]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One optimisation: which module learns what, from which layers."""

    name: str
    """Name of its folder in the run, and in messages."""
    config: StageConfig
    """Steps, optimiser, schedule."""
    module: nn.Module
    """What is trained, and nothing else is."""
    layers: Sequence[int]
    """Layers of the store that a batch holds, ascending."""
    targets: tuple[int, ...]
    """Those of them that the module makes."""
    objective: Objective
    """Loss of a batch at a step counted from 0; what it draws, it draws from the generator."""
    rollout: Rollout
    """The targets, rolled out from what the batch holds before them; validation measures these."""


@dataclass(frozen=True, kw_only=True)
class StageProgress:
    """What is told at the start of a stage and after every step."""

    stage: str
    """Name of the stage."""
    step: int
    """Updates made."""
    steps: int
    """Updates in all."""
    loss: float | None
    """Mean loss of the last logged steps; None until there is one."""
    wait_seconds: float
    """Time spent waiting for data so far, in this process."""
    validation: float | None = None
    """Mean R2 of the last validation; None where there was none."""


@dataclass(frozen=True, kw_only=True)
class StageResult:
    """What a finished stage leaves to say."""

    name: str
    """Name of the stage."""
    steps: int
    """Updates made in all."""
    loss: float
    """Mean loss of the last logged steps."""
    seconds: float
    """Time of the steps made in this process; next to none for a stage that was finished before."""
    wait_seconds: float
    """Part of it spent waiting for data."""
    validation: float | None = None
    """Mean R2 of the last validation; None where there was none."""
    best_step: int | None = None
    """Updates made at the best validation."""


ProgressCallback = Callable[[StageProgress], None]


def record_stage(folder: Path, stage: Stage, **given: int | str) -> None:
    """Write `stage.json`: all that the stage's steps depend on (`given` too), and the hash of it.

    Raises:
        RunError: the folder cannot be written.
    """
    record = {
        "stage": stage.name,
        "config": stage.config.model_dump(mode="json"),
        "layers": list(stage.layers),
        "targets": list(stage.targets),
        **given,
    }
    sha256 = hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
    write_json(folder / "stage.json", {**record, "sha256": sha256})


def span_loss(
    store: Store,
    config: StageConfig,
    weights: TokenWeights | Literal["plain"],
    layers: range,
    device: torch.device,
) -> SpanLoss:
    """A stage's loss of the target layers `layers[1:]`, with the store's variances where it normalises.

    The variances are over all rows of the store, test rows too: they only set the scale of a layer.

    Raises:
        ConfigError: no token kind of the store has a weight above 0.
    """
    given = weights if isinstance(weights, TokenWeights) else None
    try:
        by_kind = kind_weights(store.layout, given)
    except ValueError as exc:
        raise ConfigError(str(exc)) from exc
    scales = None
    if config.loss in ("per_layer", "huber"):
        variances = {
            kind: torch.tensor([float(store.statistics(layer, kind).var.mean()) for layer in layers[1:]])
            for kind in by_kind
        }
        scales = layer_scales(variances, by_kind).to(device)
    return SpanLoss(
        layout=store.layout,
        weights=None if given is None else by_kind,
        scales=scales,
        kind=config.loss,
        huber_delta=config.huber_delta,
        last_only=config.targets == "last",
    )
