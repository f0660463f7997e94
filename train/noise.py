"""Gaussian noise on what a prediction starts from, as a pure function of (seed, step, piece).

    tokens (..., dim)  ->  tokens + size * rms(token) * N(0, 1), of the same shape

`size` is relative to each token's own root mean square over its channels, so that a token's noise is `size`
times its norm, whatever the layer or kind. There is no state: a resumed run seeds the generator by its step.
"""

from __future__ import annotations

import hashlib

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["noisy", "seed_of"]


def noisy(
    tokens: Float[Tensor, "*rest dim"], size: float, generator: torch.Generator | None
) -> Float[Tensor, "*rest dim"]:
    """The tokens with noise of relative size `size`; the tokens themselves where it is 0."""
    if not size:
        return tokens
    assert generator is not None, "noise is drawn from a seeded generator"
    drawn = torch.randn(tokens.shape, generator=generator, device=tokens.device, dtype=tokens.dtype)
    return tokens + size * tokens.square().mean(dim=-1, keepdim=True).sqrt() * drawn


def seed_of(seed: int, *place: int | str) -> int:
    """A seed of its own for every place: a stage's name, or a step and a piece of it."""
    text = ":".join(map(str, (seed, *place)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
