"""The untrained baseline: one of the teacher's own blocks a phase, applied once for each layer of it.

    layer 0 (batch, tokens, dim)  ->  layers 1 .. L (batch, L, tokens, dim), or layer L alone by `last`

The teacher's modules themselves are called, so it holds for every teacher that can be extracted, whatever its
activation, epsilon, positions or width of MLP. What it scores is what repeating blocks gives without any
training.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

from activault.store.errors import ConfigError

from .raptor_config import RaptorConfig
from .rollout import RolloutModel

__all__ = ["RepeatedBlocks", "RepeatedChoice", "repeated_blocks"]

RepeatedChoice = Literal["first", "middle", "last"]


class RepeatedBlocks(RolloutModel):
    """`blocks[order[l - 1]]` makes layer l; the blocks stay whose they are."""

    def __init__(self, blocks: Sequence[nn.Module], order: Sequence[int]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.order = tuple(order)
        self.num_layers = len(self.order)

    def rollout(
        self, tokens: Float[Tensor, "batch tokens dim"], start: int = 0, stop: int | None = None
    ) -> Iterator[Float[Tensor, "batch tokens dim"]]:
        """Layers start+1 .. stop one after the other, each made from the one before it."""
        start, stop = self.checked_span(start, stop)
        for number in self.order[start:stop]:
            tokens = self.blocks[number](tokens)
            yield tokens


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
    number = {layer: at for at, phase in enumerate(config.phases) for layer in phase}
    return RepeatedBlocks(
        [blocks[layer - 1] for layer in chosen], [number[layer] for layer in range(1, config.num_layers + 1)]
    )
