"""One recurrent block: a pre-norm transformer block, scaled by the depth it is applied at if so wished.

    tokens (rows, tokens, dim), depth (rows or 1, 1)  ->  tokens (rows, tokens, dim)

Its tensors carry the names of timm's ViT block (`norm1`, `attn.qkv`, `attn.proj`, `ls1.gamma`, `norm2`,
`mlp.fc1`, `mlp.fc2`, `ls2.gamma`), so that a teacher's block can be copied in by name; what comes on top is
`depth.fc1` and `depth.fc2`. With A the attention and M the MLP after their norms and LayerScales, and
(a, m, o) the three chunks of s = 1 + W2 silu(W1 z + b1) + b2:

    y = x + a * A(x);    out = o * (y + m * M(y))

Used by `raptor.py`, which owns which block runs at which layer.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from activault.store.errors import ConfigError

__all__ = ["MlpKind", "RecurrentBlock"]

MlpKind = Literal["gelu", "swiglu", "swiglu_iso"]

DEPTH_HIDDEN = 16
DEPTH_STD = 1e-2
"""The reference's N(0, 1e-4) read as mean and variance, the usual notation: with a normalised depth a fresh
block then starts within a few hundredths of its unscaled self; raw depths reach 12 and start farther off."""


class Attention(nn.Module):
    """Multi-head self-attention over all tokens, through PyTorch's fused kernel."""

    def __init__(self, dim: int, num_heads: int, qkv_bias: bool) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Float[Tensor, "rows tokens dim"]) -> Float[Tensor, "rows tokens dim"]:
        """Softmax(Q K^T / sqrt(head width)) V, heads joined and projected."""
        rows, tokens, dim = x.shape
        qkv = self.qkv(x).view(rows, tokens, 3, self.num_heads, dim // self.num_heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        heads = functional.scaled_dot_product_attention(query, key, value)
        out: Tensor = self.proj(heads.transpose(1, 2).reshape(rows, tokens, dim))
        return out


class Mlp(nn.Module):
    """`gelu`: two layers, 4 dim wide. `swiglu`: gated, 4 dim wide. `swiglu_iso`: gated, 8/3 dim wide.

    `width` is given where a teacher's own MLP, of another width, is to be copied in. The gated kinds need
    three matrices of their width, so `swiglu` costs 1.5 times the MLP of the teacher (the published form) and
    `swiglu_iso`, at two thirds of the width, costs the same.
    """

    def __init__(self, dim: int, kind: MlpKind, width: int | None = None) -> None:
        super().__init__()
        self.gated = kind != "gelu"
        hidden = width or (round(8 * dim / 3) if kind == "swiglu_iso" else 4 * dim)
        self.fc1 = nn.Linear(dim, 2 * hidden if self.gated else hidden)
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x: Float[Tensor, "rows tokens dim"]) -> Float[Tensor, "rows tokens dim"]:
        """fc2(gelu(fc1 x)), or fc2(silu(gate) * value) with gate and value the halves of fc1 x."""
        hidden: Tensor = self.fc1(x)
        if self.gated:
            gate, value = hidden.chunk(2, dim=-1)
            hidden = functional.silu(gate) * value
        else:
            hidden = functional.gelu(hidden)
        out: Tensor = self.fc2(hidden)
        return out


class LayerScale(nn.Module):
    """One learned factor a channel."""

    def __init__(self, dim: int, initial: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((dim,), initial))

    def forward(self, x: Float[Tensor, "rows tokens dim"]) -> Float[Tensor, "rows tokens dim"]:
        """x times the factors."""
        return x * self.gamma


class DepthScale(nn.Module):
    """s = 1 + W2 silu(W1 z + b1) + b2, in three chunks of `dim` (the reference's "t_scale")."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(1, DEPTH_HIDDEN)
        self.fc2 = nn.Linear(DEPTH_HIDDEN, 3 * dim)
        nn.init.normal_(self.fc2.weight, std=DEPTH_STD)
        nn.init.zeros_(self.fc2.bias)

    def forward(self, depth: Float[Tensor, "depths 1"]) -> tuple[Tensor, Tensor, Tensor]:
        """Factors of the attention branch, the MLP branch and the output, each (depths, 1, dim)."""
        scale = 1 + self.fc2(functional.silu(self.fc1(depth)))
        attention, mlp, output = scale.unsqueeze(1).chunk(3, dim=-1)
        return attention, mlp, output


class RecurrentBlock(nn.Module):
    """The block of one phase.

    Raises:
        ConfigError: `dim` is no multiple of `num_heads`.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        mlp: MlpKind = "gelu",
        mlp_width: int | None = None,
        conditioned: bool = True,
        layer_scale: float = 1e-5,
        qkv_bias: bool = True,
        eps: float = 1e-6,
    ) -> None:
        super().__init__()
        if dim % num_heads:
            raise ConfigError(
                f"a block's width is a multiple of its heads; got dim {dim} and num_heads {num_heads}"
            )
        self.norm1 = nn.LayerNorm(dim, eps=eps)
        self.attn = Attention(dim, num_heads, qkv_bias)
        self.ls1 = LayerScale(dim, layer_scale)
        self.norm2 = nn.LayerNorm(dim, eps=eps)
        self.mlp = Mlp(dim, mlp, mlp_width)
        self.ls2 = LayerScale(dim, layer_scale)
        for linear in (self.attn.qkv, self.attn.proj, self.mlp.fc1, self.mlp.fc2):
            nn.init.trunc_normal_(linear.weight, std=0.02)  # the usual ViT initialisation
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)
        self.depth = DepthScale(dim) if conditioned else None

    def forward(
        self, x: Float[Tensor, "rows tokens dim"], depth: Float[Tensor, "depths 1"]
    ) -> Float[Tensor, "rows tokens dim"]:
        """The block applied once; `depth` holds one value for every row, or one for all of them."""
        scales: tuple[Tensor, Tensor, Tensor] | None = self.depth(depth) if self.depth is not None else None
        branch: Tensor = self.ls1(self.attn(self.norm1(x)))
        x = x + (branch if scales is None else scales[0] * branch)
        branch = self.ls2(self.mlp(self.norm2(x)))
        return x + branch if scales is None else scales[2] * (x + scales[1] * branch)
