"""Which patches of a layer a store keeps, and how they are taken out of it where the teacher runs.

    parse_patches("every:4", grid=(16, 16), seed=0)         the places 0, 4, 8 ... of the grid, row by row
    kept_tokens(tokens (B, tokens, dim), layout)       ->   (B, kept tokens, dim), CLS and registers with them

`all` keeps every patch, `mean` their mean as one token, `every:N` each N-th place of the grid counted row by
row, `random:N` N places drawn by the seed, the same for every image and layer.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from activault.store.errors import ConfigError
from activault.store.layout import TokenLayout

__all__ = ["KeptPatches", "kept_tokens", "parse_patches"]

KeptPatches = Literal["mean"] | tuple[int, ...] | None
"""As the manifest has it: None is all."""
_STREAM: Final = 0x9A7C
"""Sets this choice apart from the order of the rows, which has the same seed."""


def parse_patches(text: str, grid: tuple[int, int], seed: int) -> KeptPatches:
    """`all`, `mean`, `every:N` or `random:N` for a grid of rows and columns.

    Raises:
        ConfigError: it is none of these, or there are fewer patches.
    """
    if text == "all":
        return None
    if text == "mean":
        return "mean"
    match = re.fullmatch(r"(every|random):(\d{1,7})", text)
    if match is None or int(match[2]) < 1:
        raise ConfigError(
            f"patches are all, mean, every:N or random:N, such as every:4 or random:64; got {text!r}"
        )
    num_patches, number = grid[0] * grid[1], int(match[2])
    if number > num_patches:
        raise ConfigError(f"a grid of {grid[0]} x {grid[1]} has {num_patches} patches; got {text!r}")
    if match[1] == "every":
        kept = tuple(range(0, num_patches, number))
    else:
        drawn = np.random.default_rng([_STREAM, seed]).permutation(num_patches)[:number]
        kept = tuple(sorted(drawn.tolist()))
    return kept if len(kept) < num_patches else None


def kept_tokens(
    tokens: Float[Tensor, "batch all_tokens dim"], layout: TokenLayout
) -> Float[Tensor, "batch kept_tokens dim"]:
    """The tokens of a whole layer that a store of this layout keeps, on the device that they are on.

    The mean is taken in float32, whatever the teacher computes in.
    """
    kept, num_prefix = layout.kept_patches, layout.num_cls + layout.num_registers
    if kept is None:
        return tokens
    if kept == "mean":
        mean = tokens[:, num_prefix:].float().mean(dim=1, keepdim=True)
        return torch.cat([tokens[:, :num_prefix].float(), mean], dim=1)
    return tokens.index_select(1, _places(kept, num_prefix, tokens.device))


@lru_cache(maxsize=4)
def _places(kept: tuple[int, ...], num_prefix: int, device: torch.device) -> Tensor:
    """Places on the token axis; made once, since a copy to a GPU in every layer would hold it up."""
    places = [*range(num_prefix), *(num_prefix + place for place in kept)]
    return torch.tensor(places, device=device)
