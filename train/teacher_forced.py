"""Stage 1: every phase's block alone, on the teacher's layers of its phase.

A phase that makes layers a+1 .. b learns from batches (batch, b - a + 1, tokens, dim) of layers a .. b:
lambda times teacher forcing plus (1 - lambda) times its own roll-out from layer a, where lambda falls from 1
to 0 over the first part of the steps. The roll-out's horizon may grow meanwhile. A phase with holes does the
same on each of its stretches, and every layer counts the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from activault.store import Store

from .losses import SpanLoss, mixture_loss
from .phases import runs_of
from .raptor import Raptor
from .schedule import annealed_weight, horizon_at
from .stage_config import Stage1Config
from .stages import Stage, span_loss

__all__ = ["phase_stages"]


def phase_stages(model: Raptor, config: Stage1Config, store: Store, device: torch.device) -> list[Stage]:
    """One stage a phase, in order; each trains one block of the model and none depends on another.

    Raises:
        ConfigError: no token kind of the store has a weight above 0.
    """
    return [_phase_stage(model, number, config, store, device) for number in range(len(model.phases))]


@dataclass(frozen=True, kw_only=True)
class _Stretch:
    """Layers of a phase that follow one another."""

    start: int
    """Teacher's layer that it starts from."""
    length: int
    """Layers that it makes."""
    places: slice
    """Where its layers, the first one too, stand in a batch of the stage."""
    loss: SpanLoss
    """Loss of the layers that it makes."""


def _phase_stage(
    model: Raptor, number: int, config: Stage1Config, store: Store, device: torch.device
) -> Stage:
    phase = model.phases[number]
    is_last = number == len(model.phases) - 1
    weights = config.last_phase_token_weights if is_last else config.token_weights
    layers = tuple(sorted({layer - 1 for layer in phase} | set(phase)))
    stretches = [
        _Stretch(
            start=run[0] - 1,
            length=len(run),
            places=slice(layers.index(run[0] - 1), layers.index(run[-1]) + 1),
            loss=span_loss(store, config, weights, range(run[0] - 1, run[-1] + 1), device),
        )
        for run in runs_of(phase)
    ]

    def objective(
        tokens: Float[Tensor, "batch layers tokens dim"], step: int, generator: torch.Generator | None = None
    ) -> Float[Tensor, ""]:
        model.checkpoint_every = config.gradient_checkpointing
        parts = [_stretch_loss(model, config, part, tokens, step, generator) for part in stretches]
        if len(parts) == 1:
            return parts[0]
        shares = [part.length / len(phase) for part in stretches]
        return torch.stack([share * loss for share, loss in zip(shares, parts, strict=True)]).sum()

    return Stage(
        name=f"phase_{number + 1}",
        config=config,
        module=model.blocks[number],
        layers=layers,
        targets=tuple(phase),
        objective=objective,
        rollout=lambda tokens: _rolled(model, stretches, tokens),
    )


def _stretch_loss(
    model: Raptor,
    config: Stage1Config,
    part: _Stretch,
    tokens: Float[Tensor, "batch layers tokens dim"],
    step: int,
    generator: torch.Generator | None,
) -> Float[Tensor, ""]:
    return mixture_loss(
        model,
        tokens[:, part.places],
        part.start,
        part.loss,
        1.0 if config.only_teacher_forcing else annealed_weight(step, config.steps, config.teacher_forcing),
        horizon=horizon_at(
            step,
            steps=config.steps,
            span=part.length,
            start=config.horizon_start,
            growth=config.horizon_growth,
        ),
        noise=config.noise,
        generator=generator,
    )


def _rolled(
    model: Raptor, stretches: Sequence[_Stretch], tokens: Float[Tensor, "batch layers tokens dim"]
) -> Float[Tensor, "batch targets tokens dim"]:
    """Every stretch rolled out from the teacher's layer before it."""
    made = [model(tokens[:, part.places.start], part.start, part.start + part.length) for part in stretches]
    return made[0] if len(made) == 1 else torch.cat(made, dim=1)
