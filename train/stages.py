"""What a stage of training is, before any of it runs: a module, its layers of the store, and its objective.

`teacher_forced.py` and `closed_loop.py` build stages, `trainer.py` runs them, `runs.py` strings them
together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from activault.store import Store
from activault.store.errors import ConfigError

from .losses import LossKind, SpanLoss, TokenWeights, kind_weights, layer_scales
from .recipe import StageConfig

__all__ = ["ProgressCallback", "Stage", "StageProgress", "StageResult", "span_loss"]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One optimisation: which module learns what, from which layers."""

    name: str
    """Name of its folder in the run, and in messages."""
    config: StageConfig
    """Steps, optimiser, schedule."""
    module: nn.Module
    """What is trained, and nothing else is."""
    layers: range
    """Layers of the store that a batch holds; the first is the input, the others are targets."""
    objective: Callable[[Float[Tensor, "batch layers tokens dim"], int], Float[Tensor, ""]]
    """Loss of a batch at a step counted from 0."""


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


ProgressCallback = Callable[[StageProgress], None]


def span_loss(
    store: Store,
    loss: LossKind,
    weights: TokenWeights | Literal["plain"],
    layers: range,
    device: torch.device,
) -> SpanLoss:
    """The loss of the target layers `layers[1:]`, with the store's variances where it normalises by them.

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
    if loss == "per_layer":
        variances = {
            kind: torch.tensor([float(store.statistics(layer, kind).var.mean()) for layer in layers[1:]])
            for kind in by_kind
        }
        scales = layer_scales(variances, by_kind).to(device)
    return SpanLoss(layout=store.layout, weights=None if given is None else by_kind, scales=scales)
