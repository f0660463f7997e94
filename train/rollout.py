"""What every model that replays a teacher's layers can do, trained or not: roll out, layer after layer.

    layer `start` (batch, tokens, dim)  ->  layers start+1 .. stop (batch, stop - start, tokens, dim)

A model says how it makes one layer after the other (`rollout`); stacking them and keeping only the last is
the same for all. Surrogate and baselines (`identity`, repeated blocks, linear maps) are such models, so that
one evaluation (`evaluate_rollout`, `probe`) measures them all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor, nn

from activault.store.errors import ConfigError

__all__ = ["Identity", "RolloutModel"]


class RolloutModel(nn.Module, ABC):
    """A model of layers 1 to `num_layers`."""

    num_layers: int
    """Layers it makes, L."""

    @abstractmethod
    def rollout(
        self, tokens: Float[Tensor, "batch tokens dim"], start: int = 0, stop: int | None = None
    ) -> Iterator[Float[Tensor, "batch tokens dim"]]:
        """Layers start+1 .. stop one after the other, each made from the model's own layer before it.

        Raises:
            ConfigError: not 0 <= start < stop <= L.
        """

    def forward(
        self, tokens: Float[Tensor, "batch tokens dim"], start: int = 0, stop: int | None = None
    ) -> Float[Tensor, "batch layers tokens dim"]:
        """`rollout` with all its layers stacked."""
        return torch.stack(list(self.rollout(tokens, start, stop)), dim=1)

    def last(
        self, tokens: Float[Tensor, "batch tokens dim"], start: int = 0, stop: int | None = None
    ) -> Float[Tensor, "batch tokens dim"]:
        """Layer `stop` alone, L by default, made from layer `start`; no other layer is kept.

        With a lower `stop` this is an early exit: the reader applies the final norm to the layer it gets.
        """
        for out in self.rollout(tokens, start, stop):
            tokens = out
        return tokens

    def checked_span(self, start: int, stop: int | None) -> tuple[int, int]:
        """The span with its end filled in.

        Raises:
            ConfigError: not 0 <= start < stop <= L.
        """
        stop = self.num_layers if stop is None else stop
        if not 0 <= start < stop <= self.num_layers:
            raise ConfigError(
                f"a roll-out goes from a layer to a later one within 0-{self.num_layers}; "
                f"got {start} to {stop}"
            )
        return start, stop


class Identity(RolloutModel):
    """The baseline that changes nothing: every layer is the one it starts from."""

    def __init__(self, num_layers: int) -> None:
        super().__init__()
        self.num_layers = num_layers

    def rollout(
        self, tokens: Float[Tensor, "batch tokens dim"], start: int = 0, stop: int | None = None
    ) -> Iterator[Float[Tensor, "batch tokens dim"]]:
        """The given tokens again and again."""
        start, stop = self.checked_span(start, stop)
        for _ in range(start, stop):
            yield tokens
