"""Early exit: each row leaves a roll-out as soon as its tokens hardly turn any more.

    layer `start` (batch, tokens, dim)  ->  EarlyExit: tokens (batch, tokens, dim), layers (batch,)

A layer's turn is 1 minus the mean over tokens of the cosine between it and the layer before it, as in the
analyses of angular speed. Rows that have left are not computed further. To leave at a given layer, use
`last(tokens, stop=layer)`. The final norm is applied by whoever reads out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from activault.store.errors import ConfigError

from .rollout import RolloutModel

__all__ = ["EarlyExit", "early_exit"]


@dataclass(frozen=True, kw_only=True)
class EarlyExit:
    """Where each row left."""

    tokens: Float[Tensor, "batch tokens dim"]
    """The layer that each row left at."""
    layers: Int[Tensor, " batch"]
    """Its number; L for a row that never came to rest."""


@torch.no_grad()
def early_exit(
    model: RolloutModel, tokens: Float[Tensor, "batch tokens dim"], *, until: float, start: int = 0
) -> EarlyExit:
    """Roll out until every row's turn is at most `until`, or to layer L.

    Looks at every layer on the host, so it is for inference alone.

    Raises:
        ConfigError: `until` is negative, or `start` is not 0 to L - 1.
    """
    if until < 0:
        raise ConfigError(f"a turn is at least 0, and rows leave at one of at most `until`; got {until}")
    start, stop = model.checked_span(start, None)
    made = torch.empty_like(tokens)
    layers = torch.full((len(tokens),), stop, device=tokens.device)
    rows = torch.arange(len(tokens), device=tokens.device)
    for layer in range(start + 1, stop + 1):
        before, tokens = tokens, model.last(tokens, layer - 1, layer)
        turn = 1 - functional.cosine_similarity(before, tokens, dim=-1).mean(dim=1)
        leaves = (turn <= until) | (layer == stop)
        made[rows[leaves]], layers[rows[leaves]] = tokens[leaves].to(made.dtype), layer
        tokens, rows = tokens[~leaves], rows[~leaves]
        if not len(rows):
            break
    return EarlyExit(tokens=made, layers=layers)
