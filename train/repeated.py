"""The untrained baseline: one of the teacher's own blocks a phase, applied once for each layer of it.

    layer 0 (batch, tokens, dim)  ->  layers 1 .. L (batch, L, tokens, dim), or layer L alone by `last`

The teacher's modules themselves are called, so it holds for every teacher that can be extracted, whatever its
activation, epsilon or width of MLP. What it scores is what repeating blocks gives without any training.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from activault.store.errors import ConfigError

from .raptor import RaptorConfig

__all__ = ["RepeatedBlocks", "RepeatedChoice", "repeated_blocks"]

RepeatedChoice = Literal["first", "middle", "last"]


class RepeatedBlocks(nn.Module):
    """`blocks[p]` applied `counts[p]` times, phase after phase; the blocks stay whose they are."""

    def __init__(self, blocks: Sequence[nn.Module], counts: Sequence[int]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.counts = tuple(counts)

    def rollout(
        self, tokens: Float[Tensor, "batch tokens dim"]
    ) -> Iterator[Float[Tensor, "batch tokens dim"]]:
        """Layers 1 .. L one after the other, each made from the one before it."""
        for block, count in zip(self.blocks, self.counts, strict=True):
            for _ in range(count):
                tokens = block(tokens)
                yield tokens

    def forward(self, tokens: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch layers tokens dim"]:
        """`rollout` with all its layers stacked."""
        return torch.stack(list(self.rollout(tokens)), dim=1)

    def last(self, tokens: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch tokens dim"]:
        """Layer L alone; no other layer is kept."""
        for out in self.rollout(tokens):
            tokens = out
        return tokens


def repeated_blocks(
    config: RaptorConfig, blocks: Sequence[nn.Module], choice: RepeatedChoice = "middle"
) -> RepeatedBlocks:
    """The baseline beside a Raptor of this config: the same phases, untrained.

    `blocks[l - 1]` is the teacher's block that makes layer l, (batch, tokens, dim) to the same shape, on its
    device and in its mode; `choice` takes the phase's first, middle (the later of two) or last one.

    Raises:
        ConfigError: there are not as many blocks as the config has layers.
    """
    if len(blocks) != config.num_layers:
        raise ConfigError(
            f"repeating blocks over {config.num_layers} layers takes as many teacher blocks; got "
            f"{len(blocks)}"
        )
    chosen = [phase[{"first": 0, "middle": len(phase) // 2, "last": -1}[choice]] for phase in config.phases]
    return RepeatedBlocks([blocks[layer - 1] for layer in chosen], [len(phase) for phase in config.phases])
