"""Stage 2: all blocks end to end, rolled out from layer 0 on their own outputs.

Batches (batch, L + 1, tokens, dim) of all layers; the blocks go on from stage 1 under a fresh optimiser.
"""

from __future__ import annotations

import torch
from torch import Tensor

from activault.store import Store

from .losses import autoregressive_loss
from .raptor import Raptor
from .schedule import horizon_at
from .stage_config import Stage2Config
from .stages import Stage, span_loss

__all__ = ["closed_loop_stage"]


def closed_loop_stage(model: Raptor, config: Stage2Config, store: Store, device: torch.device) -> Stage:
    """The stage that trains the whole model.

    Raises:
        ConfigError: no token kind of the store has a weight above 0.
    """
    layers = range(model.config.num_layers + 1)
    loss = span_loss(store, config, config.token_weights, layers, device)

    def objective(tokens: Tensor, step: int, generator: torch.Generator | None = None) -> Tensor:
        model.checkpoint_every = config.gradient_checkpointing
        horizon = horizon_at(
            step,
            steps=config.steps,
            span=model.config.num_layers,
            start=config.horizon_start,
            growth=config.horizon_growth,
        )
        return autoregressive_loss(
            model, tokens, 0, loss, horizon=horizon, noise=config.noise, generator=generator
        )

    return Stage(
        name="closed_loop",
        config=config,
        module=model,
        layers=layers,
        targets=tuple(layers[1:]),
        objective=objective,
        rollout=lambda tokens: model(tokens[:, 0]),
    )
