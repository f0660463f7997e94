"""What training minimises: token-weighted squared errors of spans of layers, teacher-forced or rolled out.

    prediction, target (batch, layers, tokens, dim)  ->  one number

`SpanLoss` holds what is fixed over a stage (where each token kind stands, its weight, each layer's scale);
everything else is a pure function. The error of a layer is

    plain      the mean of (x - xhat)^2 over rows, tokens and channels
    weighted   w_cls MSE(cls) + w_registers MSE(registers) + w_patches MSE(patches)

and the loss is the mean over layers of error / scale, where the scale is 1 (`raw`, the parity form) or the
layer's variance (`per_layer`). Raw errors are ruled by the last layer, whose distance to the layer before it
is 17.5 against 1.27, 0.27, 0.12 for those before it (DINOv2 ViT-B); variances put all on one footing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from activault.store.layout import TokenKind, TokenLayout

__all__ = [
    "LossKind",
    "SpanLoss",
    "SpanModel",
    "TokenWeights",
    "annealed_weight",
    "autoregressive_loss",
    "kind_weights",
    "layer_scales",
    "mixture_loss",
    "teacher_forcing_loss",
]

LossKind = Literal["raw", "per_layer"]

SMALLEST_SCALE = 1e-6
"""Least scale of a layer, as a part of the largest one: a layer that hardly varies may not rule the loss."""


class TokenWeights(BaseModel):
    """Weight of each token kind's mean error; those of the kinds a teacher has are made to sum to 1."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cls: float = Field(ge=0, allow_inf_nan=False)
    """Weight of the class token."""
    registers: float = Field(ge=0, allow_inf_nan=False)
    """Weight of all registers together."""
    patches: float = Field(ge=0, allow_inf_nan=False)
    """Weight of all patches together."""

    @model_validator(mode="after")
    def _not_all_zero(self) -> TokenWeights:
        if not self.cls + self.registers + self.patches > 0:
            raise ValueError("token weights are not all 0; leave them out for a plain mean over tokens")
        return self


@runtime_checkable
class SpanModel(Protocol):
    """What the losses need of a model; `Raptor` is one."""

    def predict_next(self, tokens: Tensor, start: int = 0) -> Tensor:
        """Every layer's successor, each from the given layer."""

    def __call__(self, tokens: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
        """Layers start+1 .. stop, each from the model's own layer before it."""


def kind_weights(layout: TokenLayout, weights: TokenWeights | None) -> dict[TokenKind, float]:
    """Weights that sum to 1 over the kinds the layout has; None gives every token the same weight.

    Raises:
        ValueError: the layout has only kinds whose weight is 0.
    """
    if weights is None:
        given = {kind: float(layout.count(kind)) for kind in layout.kinds}
    else:
        given = {kind: float(getattr(weights, kind)) for kind in layout.kinds}
    total = sum(given.values())
    if total <= 0:
        raise ValueError(
            f"one of the token kinds {', '.join(layout.kinds)} has a weight above 0; got {weights}"
        )
    return {kind: weight / total for kind, weight in given.items()}


def layer_scales(
    variances: Mapping[TokenKind, Float[Tensor, " layers"]], weights: Mapping[TokenKind, float]
) -> Float[Tensor, " layers"]:
    """Each layer's variance under the loss's own token weights: sum over kinds of w_kind var_kind.

    The error of a layer is that same sum of its kinds' errors, so error / scale is a weighted 1 - R2. One
    scale a layer, and not one a kind: on the demo's teacher CLS varies 60 times less than patches at layer 1
    and 3 times less at layer 12, and a scale of its own would spend the training on what no later layer can
    see. A layer without variance counts as the least scale.
    """
    scale = torch.stack([weight * variances[kind] for kind, weight in weights.items()]).sum(dim=0)
    largest = scale.max()
    if largest <= 0:
        return torch.ones_like(scale)
    return scale.clamp(min=SMALLEST_SCALE * float(largest))


@dataclass(frozen=True, kw_only=True)
class SpanLoss:
    """The loss of one span of layers: `loss(prediction, target) -> scalar`."""

    layout: TokenLayout
    """Where each kind stands on the token axis."""
    weights: Mapping[TokenKind, float] | None
    """Weights from `kind_weights`, or None for a plain mean over tokens."""
    scales: Float[Tensor, " layers"] | None
    """Scales from `layer_scales` for the span's target layers, or None for raw errors."""

    def layer_errors(
        self,
        prediction: Float[Tensor, "batch layers tokens dim"],
        target: Float[Tensor, "batch layers tokens dim"],
    ) -> Float[Tensor, " layers"]:
        """Each layer's squared error before scaling."""
        error = (prediction - target).square()
        if self.weights is None:
            return error.mean(dim=(0, 2, 3))
        parts = [
            weight * error[:, :, self.layout.span(kind)].mean(dim=(0, 2, 3))
            for kind, weight in self.weights.items()
            if weight > 0
        ]
        return torch.stack(parts).sum(dim=0)

    def __call__(
        self,
        prediction: Float[Tensor, "batch layers tokens dim"],
        target: Float[Tensor, "batch layers tokens dim"],
    ) -> Float[Tensor, ""]:
        """Mean over layers of error / scale."""
        errors = self.layer_errors(prediction, target)
        return errors.mean() if self.scales is None else (errors / self.scales).mean()


def teacher_forcing_loss(
    model: SpanModel, tokens: Float[Tensor, "batch layers_and_one tokens dim"], start: int, loss: SpanLoss
) -> Float[Tensor, ""]:
    """Every layer predicted from the teacher's layer before it; `tokens` holds layers start .. start+n."""
    return loss(model.predict_next(tokens[:, :-1], start), tokens[:, 1:])


def autoregressive_loss(
    model: SpanModel, tokens: Float[Tensor, "batch layers_and_one tokens dim"], start: int, loss: SpanLoss
) -> Float[Tensor, ""]:
    """Rolled out on the model's own outputs from the teacher's layer `start`, the mean over the steps."""
    stop = start + tokens.shape[1] - 1
    return loss(model(tokens[:, 0], start, stop), tokens[:, 1:])


def annealed_weight(step: int, steps: int, fraction: float = 0.25) -> float:
    """Lambda of teacher forcing at a step counted from 0: 1 to 0, linearly, over `fraction` of the steps."""
    span = fraction * steps
    return max(0.0, 1.0 - step / span) if span > 0 else 0.0


def mixture_loss(
    model: SpanModel,
    tokens: Float[Tensor, "batch layers_and_one tokens dim"],
    start: int,
    loss: SpanLoss,
    teacher_forcing: float,
) -> Float[Tensor, ""]:
    """lambda TF + (1 - lambda) AR; a branch whose weight is 0 is not computed."""
    if teacher_forcing <= 0:
        return autoregressive_loss(model, tokens, start, loss)
    forced = teacher_forcing * teacher_forcing_loss(model, tokens, start, loss)
    if teacher_forcing >= 1:
        return forced
    return forced + (1 - teacher_forcing) * autoregressive_loss(model, tokens, start, loss)
