"""Stage 1: every phase's block alone, on the teacher's layers of its phase.

A phase that makes layers a+1 .. b learns from batches (batch, b - a + 1, tokens, dim) of layers a .. b:
lambda times teacher forcing plus (1 - lambda) times its own roll-out from layer a, where lambda falls from 1
to 0 over the first part of the steps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from activault.store import Store

from .losses import annealed_weight, mixture_loss
from .raptor import Raptor
from .recipe import Stage1Config
from .stages import Stage, span_loss

__all__ = ["phase_stages"]


def phase_stages(model: Raptor, config: Stage1Config, store: Store, device: torch.device) -> list[Stage]:
    """One stage a phase, in order; each trains one block of the model and none depends on another.

    Raises:
        ConfigError: no token kind of the store has a weight above 0.
    """
    return [_phase_stage(model, number, config, store, device) for number in range(len(model.phases))]


def _phase_stage(
    model: Raptor, number: int, config: Stage1Config, store: Store, device: torch.device
) -> Stage:
    phase = model.phases[number]
    layers = range(phase[0] - 1, phase[-1] + 1)
    is_last = number == len(model.phases) - 1
    weights = config.last_phase_token_weights if is_last else config.token_weights
    loss = span_loss(store, config.loss, weights, layers, device)

    def objective(tokens: Tensor, step: int) -> Tensor:
        forcing = annealed_weight(step, config.steps, config.teacher_forcing)
        return mixture_loss(model, tokens, layers[0], loss, forcing)

    return Stage(
        name=f"phase_{number + 1}",
        config=config,
        module=model.blocks[number],
        layers=layers,
        objective=objective,
    )
