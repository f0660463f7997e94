"""Rotary positions of a surrogate: the teacher's own tables, applied to the queries and keys of patches.

    x (rows, heads, tokens, width)  ->  the same shape, its patches turned; CLS and registers are not

With x a query or key of one head at one patch, turned = x cos + rotate(x) sin, where `rotate` takes (a, b) to
(-b, a): of the two halves of x (`halves`, DINOv3) or of every two channels next to one another (`neighbours`,
EVA-02). The tables are handed over by whoever has the teacher; they are of one patch grid. For another grid
the teacher makes them anew by its own rule, and `Raptor.use_rotary` takes them. Source: arXiv 2104.09864.
"""

from __future__ import annotations

from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

__all__ = ["Pairs", "RotaryConfig", "RotaryTables", "Table", "turned"]

Pairs = Literal["halves", "neighbours"]
Table = tuple[Tensor, Tensor]
"""Sine and cosine, each (layers or 1, heads or 1, patches, head width)."""


@runtime_checkable
class RotaryTables(Protocol):
    """A teacher's tables at one patch grid."""

    @property
    def sin(self) -> Tensor:
        """(1 or L, 1 or heads, patches, head width)."""

    @property
    def cos(self) -> Tensor:
        """The same shape."""

    @property
    def pairs(self) -> Pairs:
        """Which two channels are turned together."""


class RotaryConfig(BaseModel):
    """What a run records of the tables; their values are tensors of the model."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pairs: Pairs
    """Which two channels are turned together."""
    num_prefix: int = Field(ge=0)
    """CLS and register tokens, which stand first and are not turned."""
    num_patches: int = Field(ge=1)
    """Patches of the grid that the model was trained at."""
    per_layer: bool = False
    """Whether every layer has a table of its own."""
    per_head: bool = False
    """Whether every head has a table of its own."""

    @staticmethod
    def of(tables: RotaryTables, num_prefix: int) -> RotaryConfig:
        """What there is to record of a teacher's tables."""
        layers, heads, patches, _ = tables.sin.shape
        return RotaryConfig(
            pairs=tables.pairs,
            num_prefix=num_prefix,
            num_patches=patches,
            per_layer=layers > 1,
            per_head=heads > 1,
        )


def turned(x: Float[Tensor, "rows heads tokens width"], table: Table, pairs: Pairs) -> Tensor:
    """Queries or keys with their patches turned; rows are (batch, layers) flattened."""
    sin, cos = table
    rows = x.view(-1, len(sin), *x.shape[1:])
    prefix = x.shape[-2] - sin.shape[-2]
    patches = rows[..., prefix:, :]
    if pairs == "halves":
        first, second = patches.chunk(2, dim=-1)
        rotated = torch.cat([-second, first], dim=-1)
    else:
        rotated = torch.stack([-patches[..., 1::2], patches[..., ::2]], dim=-1).flatten(-2)
    # In the tables' float32 also where x is bfloat16, whose steps near 1 are 1/128 of a radian.
    patches = (patches * cos + rotated * sin).to(x.dtype)
    return torch.cat([rows[..., :prefix, :], patches], dim=-2).flatten(0, 1)
