"""What fixes a Raptor's shape: the kind of its blocks, from a recipe, and what store and phases add."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from .blocks import MlpKind, RandomInit
from .phases import Phase, phases_of
from .rotary import RotaryConfig

__all__ = ["DepthKind", "ModelConfig", "RaptorConfig"]

DepthKind = Literal["raw", "normalised", "none"]


class ModelConfig(BaseModel):
    """What a recipe says about the model; the store and the phases say the rest."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mlp: MlpKind = "gelu"
    """MLP of a block."""
    depth: DepthKind = "normalised"
    """What conditions a block on the layer it makes: the layer, the layer over L, or nothing."""
    layer_scale: float = Field(default=1e-5, allow_inf_nan=False)
    """First value of both LayerScales; a copied teacher's block brings its own."""
    qkv_bias: bool = True
    """Whether queries, keys and values have a bias."""
    eps: float = Field(default=1e-6, gt=0, allow_inf_nan=False)
    """Epsilon of the norms; the teacher's."""
    random_init: RandomInit = "vit"
    """How random blocks are drawn: as ViTs usually are, or as the published code's (parity)."""
    lora_rank: int = Field(default=0, ge=0)
    """Rank of what each layer adds to the linear maps of its phase's block, at most dim; 0 leaves the block
    tied."""


class RaptorConfig(ModelConfig):
    """Everything that fixes a Raptor's shape."""

    dim: int = Field(ge=1)
    """Width of a token."""
    num_heads: int = Field(ge=1)
    """Attention heads of a block."""
    num_layers: int = Field(ge=1)
    """Blocks of the teacher, L."""
    cuts: tuple[int, ...] = ()
    """A phase ends after each of these layers; the last phase ends after `num_layers`."""
    groups: tuple[tuple[int, ...], ...] | None = None
    """The layers that each block makes, where they are no contiguous phases; in place of `cuts`."""
    mlp_width: int | None = Field(default=None, ge=1)
    """Hidden width of the MLP, if it is the teacher's own and not the kind's."""
    rotary: RotaryConfig | None = None
    """What the teacher's rotary tables are, if it has such."""

    @model_validator(mode="after")
    def _check(self) -> RaptorConfig:
        if self.groups is not None and self.cuts:
            raise ValueError(
                f"one of cuts and groups is given; got cuts {list(self.cuts)} and groups {self.groups}"
            )
        _ = self.phases  # says what is wrong with them
        if self.dim % self.num_heads:
            raise ValueError(
                f"dim is a multiple of num_heads; got dim {self.dim} and num_heads {self.num_heads}; give "
                "the teacher's, for an imported store by `activault import --heads`"
            )
        if self.lora_rank > self.dim:
            # A map of a higher rank has more parameters than the whole of it.
            raise ValueError(
                f"lora_rank is at most dim; got lora_rank {self.lora_rank} and dim {self.dim}; lower "
                "model.lora_rank"
            )
        return self

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Target layers of each block, in the blocks' order."""
        return phases_of(self.cuts, self.groups, self.num_layers)
