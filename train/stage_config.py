"""What a recipe says of one stage: objective, optimiser, schedule, precision, checkpoints, validation.

    [stage1] / [stage2] of a recipe  ->  Stage1Config / Stage2Config

Defaults are the paper's. A key that a recipe leaves out keeps its default.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from .losses import LossKind, TokenWeights
from .schedule import ScheduleKind

__all__ = ["Precision", "Stage1Config", "Stage2Config", "StageConfig"]

Precision = Literal["float32", "bfloat16"]


def _weights_or_word(value: object) -> str:
    return "(word)" if isinstance(value, str) else "(table)"


# Tagged, so that a wrong weight is told as one fault and not once for each form it might have had.
MaybeWeights = Annotated[
    Annotated[TokenWeights, Tag("(table)")] | Annotated[Literal["plain"], Tag("(word)")],
    Discriminator(_weights_or_word),
]


class StageConfig(BaseModel):
    """One stage's optimisation."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: int = Field(ge=0)
    """Updates; 0 leaves the stage out."""
    batch_size: int = Field(default=64, ge=1)
    """Rows a step, over all processes and pieces."""
    accumulate: int = Field(default=1, ge=1)
    """Pieces that a process makes its rows of a step into, one after the other; saves memory."""
    learning_rate: float = Field(default=3e-4, gt=0, allow_inf_nan=False)
    """Peak learning rate of AdamW."""
    weight_decay: float = Field(default=1e-4, ge=0, allow_inf_nan=False)
    """Decoupled weight decay, on every parameter."""
    beta2: float = Field(default=0.999, gt=0, lt=1)
    """Decay of AdamW's second moments."""
    warmup_steps: int = Field(default=10_000, ge=0)
    """Steps from 0 to the peak."""
    floor: float = Field(default=1e-6, ge=0, allow_inf_nan=False)
    """Learning rate at the end of the cosine."""
    schedule: ScheduleKind = "cosine"
    """Warm-up and cosine from the first update on, or one update ahead, as in the published code (parity)."""
    clip: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Largest norm of a step's gradient."""
    ema_decay: float = Field(default=0.0, ge=0, lt=1)
    """Decay of the moving average of the weights, beside the weights themselves; 0 keeps none."""
    loss: LossKind = "raw"
    """Squared errors as they are (raw) or over each layer's variance (per_layer), huber, or cosine."""
    huber_delta: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Where huber turns from squares to absolute values, in standard deviations of the layer."""
    targets: Literal["all", "last"] = "all"
    """Layers whose errors count: all of the span, or its last one alone (plain distillation)."""
    token_weights: MaybeWeights = Field(default="plain")
    """Weight of each token kind, or `plain` for the same weight on every token."""
    noise: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Gaussian noise on what a prediction starts from, relative to each token's root mean square."""
    horizon_start: int | None = Field(default=None, ge=1)
    """Layers that a roll-out makes at step 0 before it starts again from the teacher's; none: the span."""
    horizon_growth: float = Field(default=0.5, gt=0, le=1)
    """Part of the steps over which the horizon grows from `horizon_start` to the whole span."""
    precision: Precision = "float32"
    """Type of the matrix products; weights, residual stream and losses stay float32."""
    compile: bool = False
    """Compile the blocks by torch.compile."""
    gradient_checkpointing: int = Field(default=0, ge=0)
    """Layers of a roll-out that are computed again together on the way back; saves memory; 0 keeps all."""
    checkpoint_every: int = Field(default=1000, ge=1)
    """Steps between checkpoints; one is also written at the end, at each validation and on Ctrl-C."""
    keep: int = Field(default=1, ge=1)
    """Checkpoints kept, the last ones; the best one is kept beside them."""
    log_every: int = Field(default=50, ge=1)
    """Steps between lines of `metrics.jsonl`."""
    validate_every: int = Field(default=0, ge=0)
    """Steps between validations on the rows that `validation` holds out; one is also made at the end."""
    validation_rows: int = Field(default=512, ge=1)
    """Held-out rows that a validation reads at most."""

    @model_validator(mode="after")
    def _check(self) -> StageConfig:
        if self.steps and self.warmup_steps >= self.steps:
            raise ValueError(
                f"warmup_steps is below steps; got warmup_steps {self.warmup_steps} and steps {self.steps}: "
                "set it to a few per cent of them"
            )
        if self.floor > self.learning_rate:
            raise ValueError(f"floor is at most learning_rate; got {self.floor} and {self.learning_rate}")
        if self.batch_size % self.accumulate:
            raise ValueError(
                f"batch_size is a multiple of accumulate; got {self.batch_size} and {self.accumulate}"
            )
        return self


class Stage1Config(StageConfig):
    """Stage 1: every phase alone, for `steps` each, from teacher forcing to its own roll-out."""

    teacher_forcing: float = Field(default=0.25, ge=0, le=1)
    """Part of the steps over which the weight of teacher forcing falls from 1 to 0."""
    only_teacher_forcing: bool = False
    """Whether the weight of teacher forcing stays 1 to the end, so that nothing is rolled out."""
    last_phase_token_weights: MaybeWeights = TokenWeights(cls=0.34, registers=0.33, patches=0.33)
    """Token weights of the last phase, in place of `token_weights`."""


class Stage2Config(StageConfig):
    """Stage 2: all phases end to end from layer 0, on their own outputs."""

    token_weights: MaybeWeights = TokenWeights(cls=0.45, registers=0.10, patches=0.45)
    """Weight of each token kind, or `plain` for the same weight on every token."""
