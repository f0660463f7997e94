"""Which tokens of a layer a store keeps, and how they are taken out of it where the teacher runs.

    parse_patches("every:4", grid=(16, 16), seed=0)         the places 0, 4, 8 ... of the grid, row by row
    kept_tokens(tokens (B, tokens, dim), layout, kinds)   ->   (B, kept tokens, dim), CLS and registers first

`all` keeps every patch, `mean` their mean as one token, `every:N` each N-th place of the grid counted row by
row, `random:N` N places drawn by the seed, the same for every image and layer.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from activault.store.errors import ConfigError
from activault.store.layout import KINDS, TokenKind, TokenLayout

__all__ = ["KeptPatches", "kept_tokens", "parse_patches", "spoken_patches"]

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


def spoken_patches(kept: KeptPatches) -> str:
    """For messages: `all`, `mean`, or how many places, and which by a short hash."""
    if not isinstance(kept, tuple):
        return kept or "all"
    return f"{len(kept)} places ({hashlib.sha256(repr(kept).encode()).hexdigest()[:8]})"


def kept_tokens(
    tokens: Float[Tensor, "batch all_tokens dim"],
    layout: TokenLayout,
    kinds: tuple[TokenKind, ...] = KINDS,
) -> Float[Tensor, "batch kept_tokens dim"]:
    """The tokens of a whole layer that a store of this layout and these kinds keeps, on their device.

    So nothing crosses to the host that is not stored: of a CLS token alone 1 of 257. The mean is taken in
    float32, whatever the teacher computes in. What stands together is a view, not a copy.
    """
    if "patches" in kinds and layout.kept_patches == "mean":
        mean = tokens[:, layout.num_cls + layout.num_registers :].float().mean(dim=1, keepdim=True)
        prefix = _taken(tokens, _places(layout, tuple(kind for kind in kinds if kind != "patches")))
        return torch.cat([prefix.float(), mean], dim=1)
    return _taken(tokens, _places(layout, kinds))


@lru_cache(maxsize=8)
def _places(layout: TokenLayout, kinds: tuple[TokenKind, ...]) -> tuple[int, ...]:
    """Places on the token axis of a whole layer, ascending; `mean` has none."""
    num_prefix, kept = layout.num_cls + layout.num_registers, layout.kept_patches
    patches = kept if isinstance(kept, tuple) else range(layout.grid[0] * layout.grid[1])
    of_kind: dict[TokenKind, Sequence[int]] = {
        "cls": range(layout.num_cls),
        "registers": range(layout.num_cls, num_prefix),
        "patches": [num_prefix + place for place in patches],
    }
    return tuple(place for kind in KINDS if kind in kinds for place in of_kind[kind])


def _taken(tokens: Tensor, places: tuple[int, ...]) -> Tensor:
    if not places:
        return tokens[:, :0]
    if places[-1] - places[0] + 1 == len(places):
        return tokens[:, places[0] : places[-1] + 1]
    return tokens.index_select(1, _indices(places, tokens.device))


@lru_cache(maxsize=8)
def _indices(places: tuple[int, ...], device: torch.device) -> Tensor:
    """Made once, since a copy to a GPU in every layer would hold it up."""
    return torch.tensor(places, device=device)
