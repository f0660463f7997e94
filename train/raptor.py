"""Raptor: k recurrent blocks that stand in for a teacher's L, each tied over one phase of its layers.

    layer `start` (batch, tokens, dim)  ->  layers start+1 .. stop (batch, stop - start, tokens, dim)

Layers count as in the store: 0 is the embedded input, l the output of the teacher's block l. A phase is a
range of target layers; its block is applied once for each of them. The embedding and the final norm stay the
teacher's and are no part of the model. Source: "Block-Recurrent Dynamics in Vision Transformers",
arXiv 2512.19941; starting a block from one of the teacher's is ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal

import torch
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn

from activault.store.errors import ConfigError

from .blocks import MlpKind, RecurrentBlock
from .teacher_init import BlockChoice, teacher_tensors

__all__ = ["DepthKind", "ModelConfig", "Raptor", "RaptorConfig"]

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
    mlp_width: int | None = Field(default=None, ge=1)
    """Hidden width of the MLP, if it is the teacher's own and not the kind's."""

    @model_validator(mode="after")
    def _check(self) -> RaptorConfig:
        inside = all(0 < cut < self.num_layers for cut in self.cuts)
        if list(self.cuts) != sorted(set(self.cuts)) or not inside:
            raise ValueError(f"cuts rise within 1-{self.num_layers - 1}; got {list(self.cuts)}")
        if self.dim % self.num_heads:
            raise ValueError(f"dim {self.dim} is no multiple of num_heads {self.num_heads}")
        return self

    @property
    def phases(self) -> tuple[range, ...]:
        """Target layers of each phase, in order."""
        edges = (0, *self.cuts, self.num_layers)
        return tuple(range(first + 1, last + 1) for first, last in pairwise(edges))


class Raptor(nn.Module):
    """The block-recurrent surrogate of a teacher."""

    depths: Tensor

    def __init__(self, config: RaptorConfig) -> None:
        super().__init__()
        self.config = config
        self.blocks = nn.ModuleList(
            RecurrentBlock(
                config.dim,
                config.num_heads,
                mlp=config.mlp,
                mlp_width=config.mlp_width,
                conditioned=config.depth != "none",
                layer_scale=config.layer_scale,
                qkv_bias=config.qkv_bias,
                eps=config.eps,
            )
            for _ in config.phases
        )
        depths = torch.arange(config.num_layers + 1, dtype=torch.float32).unsqueeze(1)
        if config.depth == "normalised":
            depths = depths / config.num_layers
        # A buffer, so that no layer's depth is copied to the device in the middle of a step.
        self.register_buffer("depths", depths, persistent=False)

    @property
    def phases(self) -> tuple[range, ...]:
        """Target layers of each phase, in order."""
        return self.config.phases

    @property
    def num_parameters(self) -> int:
        """Learned values over all blocks."""
        return sum(parameter.numel() for parameter in self.parameters())

    def phase_of(self, layer: int) -> int:
        """The phase whose block makes this layer (1 to L)."""
        return sum(layer > cut for cut in self.config.cuts)

    def rollout(
        self, tokens: Float[Tensor, "batch tokens dim"], start: int = 0, stop: int | None = None
    ) -> Iterator[Float[Tensor, "batch tokens dim"]]:
        """Layers start+1 .. stop one after the other, each made from the one before it.

        Raises:
            ConfigError: not 0 <= start < stop <= L.
        """
        stop = self.config.num_layers if stop is None else stop
        self._check_span(start, stop)
        for layer in range(start + 1, stop + 1):
            tokens = self.blocks[self.phase_of(layer)](tokens, self.depths[layer : layer + 1])
            yield tokens

    def forward(
        self, tokens: Float[Tensor, "batch tokens dim"], start: int = 0, stop: int | None = None
    ) -> Float[Tensor, "batch layers tokens dim"]:
        """`rollout` with all its layers stacked."""
        return torch.stack(list(self.rollout(tokens, start, stop)), dim=1)

    def last(
        self, tokens: Float[Tensor, "batch tokens dim"], start: int = 0
    ) -> Float[Tensor, "batch tokens dim"]:
        """Layer L alone, made from layer `start`; no other layer is kept."""
        for out in self.rollout(tokens, start):
            tokens = out
        return tokens

    def predict_next(
        self, tokens: Float[Tensor, "batch layers tokens dim"], start: int = 0
    ) -> Float[Tensor, "batch layers tokens dim"]:
        """Each of the layers start .. start+n-1 applied to its own block once: layers start+1 .. start+n.

        All layers of a phase go through its block in one call.
        """
        batch, num, count, dim = tokens.shape
        self._check_span(start, start + num)
        made = []
        for block, phase in zip(self.blocks, self.phases, strict=True):
            first, last = max(phase[0], start + 1), min(phase[-1], start + num)
            if first > last:
                continue
            inputs = tokens[:, first - 1 - start : last - start].reshape(-1, count, dim)
            depths = self.depths[first : last + 1].repeat(batch, 1)
            made.append(block(inputs, depths).view(batch, last - first + 1, count, dim))
        return torch.cat(made, dim=1)

    def init_from_blocks(self, blocks: Sequence[nn.Module], choice: BlockChoice = "middle") -> None:
        """Start every phase's block from the teacher's own blocks of that phase.

        `blocks[l - 1]` is the teacher's block that makes layer l; `choice` takes the phase's first, middle
        (the later of two) or last block, or the mean of all its tensors. Depth conditioning is left as it is.

        Raises:
            ConfigError: the number of blocks, a shape, the heads, the activation or a norm's epsilon does
                not fit, or the teacher's block has tensors that this block has no place for.
        """
        if len(blocks) != self.config.num_layers:
            raise ConfigError(
                f"a Raptor of {self.config.num_layers} layers starts from as many teacher blocks; "
                f"got {len(blocks)}"
            )
        for block, phase in zip(self.blocks, self.phases, strict=True):
            assert isinstance(block, RecurrentBlock)
            own = [blocks[layer - 1] for layer in phase]
            chosen = {"first": own[:1], "middle": [own[len(own) // 2]], "last": own[-1:], "mean": own}[choice]
            tensors = [teacher_tensors(teacher, block, self.config.eps) for teacher in chosen]
            mean = {name: torch.stack([part[name] for part in tensors]).mean(dim=0) for name in tensors[0]}
            block.load_state_dict(mean, strict=False)

    def _check_span(self, start: int, stop: int) -> None:
        if not 0 <= start < stop <= self.config.num_layers:
            raise ConfigError(
                f"a roll-out goes from a layer to a later one within 0-{self.config.num_layers}; "
                f"got {start} to {stop}"
            )
