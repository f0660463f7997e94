"""A linear map that all layers of a phase share, and what each of them may add to it at low rank.

    x (rows, tokens, in), slots (layers,)  ->  (rows, tokens, out);  rows are (batch, layers) flattened

With rank r, layer j of the phase computes x W^T + b + x A_j^T B_j^T, A_j (r, in) small at random and B_j
(out, r) zero at the start, so that a fresh map is the shared one. Source: LoRA, arXiv 2106.09685, untied over
depth as in "Relaxed Recursive Transformers", arXiv 2410.20672. Used by `blocks.py`.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

__all__ = ["LowRank", "TiedLinear"]


class LowRank(nn.Module):
    """x A_j^T B_j^T for the layers j of a phase."""

    def __init__(self, num_layers: int, num_in: int, num_out: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.empty(num_layers, rank, num_in))
        self.up = nn.Parameter(torch.zeros(num_layers, num_out, rank))
        bound = 1 / math.sqrt(num_in)
        nn.init.uniform_(self.down, -bound, bound)

    def forward(
        self, x: Float[Tensor, "rows tokens in"], slots: Int[Tensor, " layers"]
    ) -> Float[Tensor, "rows tokens out"]:
        """What the layers in `slots` add."""
        # Chosen by a tensor: a number would be compiled anew for every layer.
        down, up = self.down.index_select(0, slots), self.up.index_select(0, slots)
        narrow = torch.einsum("bnti,nri->bntr", x.view(-1, len(slots), *x.shape[1:]), down)
        return torch.einsum("bntr,nor->bnto", narrow, up).flatten(0, 1)


class TiedLinear(nn.Linear):
    """`nn.Linear`, and a `LowRank` beside it where `rank` is above 0."""

    def __init__(
        self, num_in: int, num_out: int, *, bias: bool = True, num_layers: int = 1, rank: int = 0
    ) -> None:
        super().__init__(num_in, num_out, bias=bias)
        self.lora = LowRank(num_layers, num_in, num_out, rank) if rank else None

    def forward(
        self, x: Float[Tensor, "rows tokens in"], slots: Int[Tensor, " layers"] | None = None
    ) -> Float[Tensor, "rows tokens out"]:
        """The shared map; `slots` says which layers of the phase the rows are for, if they differ."""
        out: Tensor = super().forward(x)
        if self.lora is None:
            return out
        assert slots is not None, "a map that differs by layer is told which layers it makes"
        added: Tensor = self.lora(x, slots)
        return out + added
