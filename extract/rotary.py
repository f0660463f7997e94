"""Rotary positions: what a block needs beside the tokens, and blocks that carry it with them.

    tables: sin and cos, each (1 or blocks, 1 or heads, patches, head width), float32
    RotaryBlock: tokens (B, tokens, dim)  ->  tokens (B, tokens, dim)

A rotary block turns the queries and keys of patches, before they meet, by angles that depend on the patch's
place; CLS and registers are not turned. With x a query or key of one head at one patch,

    turned = x * cos + rotate(x) * sin

where `rotate` takes (a, b) to (-b, a): of the two halves of x where `pairs` is `halves` (DINOv3), of every
two channels next to one another where it is `neighbours` (EVA-02). The first axis of a table is 1 if all
blocks share it, the second if all heads do. The tables are of one input size and travel with the teacher's
files, so that blocks can be run without timm.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

__all__ = ["Pairs", "RotaryBlock", "RotaryTables", "rotary_blocks"]

Pairs = Literal["halves", "neighbours"]

TOLERANCE = 1e-4
"""Tables made elsewhere may differ in their last digits; a wrong grid or temperature differs by far more."""


@dataclass(frozen=True, kw_only=True)
class RotaryTables:
    """The sines and cosines of one teacher at one input size."""

    sin: Float[Tensor, "blocks heads patches width"]
    cos: Float[Tensor, "blocks heads patches width"]
    pairs: Pairs
    """Which two channels are turned together."""

    @staticmethod
    def of_joined(joined: Tensor, pairs: Pairs) -> RotaryTables:
        """From timm's form, sine and cosine side by side on the last axis.

        Args:
            joined: (patches, 2 width), or (blocks, heads, patches, 2 width).
            pairs: which two channels are turned together.
        """
        four = joined.detach().float().cpu()
        sin, cos = (four if four.ndim == 4 else four[None, None]).chunk(2, dim=-1)
        return RotaryTables(sin=sin.contiguous(), cos=cos.contiguous(), pairs=pairs)

    def joined(self, block: int) -> Tensor:
        """One block's table as timm's blocks take it: (patches, 2 width) or (heads, patches, 2 width)."""
        table = torch.cat([self.sin, self.cos], dim=-1)
        table = table[block if len(table) > 1 else 0]
        return table[0] if len(table) == 1 else table

    def agrees_with(self, other: RotaryTables) -> bool:
        """Whether both turn the same way, up to the rounding of another machine."""
        return (
            self.pairs == other.pairs
            and self.sin.shape == other.sin.shape == self.cos.shape == other.cos.shape
            and bool(torch.allclose(self.sin, other.sin, rtol=0, atol=TOLERANCE))
            and bool(torch.allclose(self.cos, other.cos, rtol=0, atol=TOLERANCE))
        )


class RotaryBlock(nn.Module):
    """A teacher's block together with its table, so that it maps tokens to tokens like any other."""

    rotary: Tensor

    def __init__(self, block: nn.Module, table: Tensor) -> None:
        super().__init__()
        self.block = block
        # Not persistent: it follows from the input size, and the block's weights do not.
        self.register_buffer("rotary", table, persistent=False)

    def forward(self, tokens: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch tokens dim"]:
        """The block, its patches turned."""
        out: Tensor = self.block(tokens, rope=self.rotary)
        return out


def rotary_blocks(blocks: Iterable[nn.Module], tables: RotaryTables) -> nn.Sequential:
    """Every block with its table; the modules and their weights are shared with `blocks`."""
    return nn.Sequential(*(RotaryBlock(block, tables.joined(i)) for i, block in enumerate(blocks)))
