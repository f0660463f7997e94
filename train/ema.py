"""A moving average of a module's weights, beside the weights themselves.

    average <- average + (1 - decay_t) (weight - average) after every update t, counted from 1

with decay_t = min(decay, (1 + t) / (10 + t)), so that the first updates of a short run do not hold on to the
weights that it started from. Saved as `ema.*` in the stage's checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

__all__ = ["Ema"]


class Ema:
    """The average of all parameters of a module."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self._parameters = dict(module.named_parameters())
        self.average = {name: value.detach().clone() for name, value in self._parameters.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after the update that made `step` updates in all."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.average.values()), list(self._parameters.values()), 1 - decay)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from a saved average.

        Raises:
            KeyError: a parameter's average is not there.
        """
        for name, value in self.average.items():
            value.copy_(tensors[name])

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The module with the average for its weights, inside the block."""
        own = {name: value.detach().clone() for name, value in self._parameters.items()}
        self._put(self.average)
        try:
            yield
        finally:
            self._put(own)

    @torch.no_grad()
    def _put(self, values: Mapping[str, Tensor]) -> None:
        for name, parameter in self._parameters.items():
            parameter.copy_(values[name])
