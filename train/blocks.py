"""One recurrent block: a pre-norm transformer block, scaled by the depth it is applied at if so wished.

    tokens (rows, tokens, dim), depth (layers, 1)  ->  tokens (rows, tokens, dim)

Rows are (batch, layers) flattened: each of the layers gets its own depth, and its own low-rank part and
rotary table where there are such. Its tensors carry the names of timm's ViT block (`norm1`, `attn.qkv`,
`attn.proj`, `ls1.gamma`, `norm2`, `mlp.fc1`, `mlp.fc2`, `ls2.gamma`), so that a teacher's block can be copied
in by name; what comes on top is `depth.fc1` and `depth.fc2`, and `lora.down` and `lora.up` beside each linear
map. With A the attention and M the MLP after their norms and LayerScales, and (a, m, o) the three chunks of
s = 1 + W2 silu(W1 z + b1) + b2:

    y = x + a * A(x);    out = o * (y + m * M(y))

Used by `raptor.py`, which owns which block runs at which layer.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from activault.store.errors import ConfigError

from .rotary import Pairs, Table, turned
from .tied_linear import TiedLinear

__all__ = ["MlpKind", "RandomInit", "RecurrentBlock"]

MlpKind = Literal["gelu", "swiglu", "swiglu_iso"]

RandomInit = Literal["vit", "reference"]

DEPTH_HIDDEN = 16
DEPTH_STD = 1e-2
"""With a normalised depth a fresh block starts within a few hundredths of its unscaled self."""
REFERENCE_STD = 1e-4
"""The reference's, of weights and biases; its paper writes N(0, 1e-4) and its code means a deviation."""


Slots = Int[Tensor, " layers"] | None
"""Places of the layers within the phase; None where nothing differs by layer."""


class Attention(nn.Module):
    """Multi-head self-attention over all tokens, through PyTorch's fused kernel."""

    def __init__(
        self, dim: int, num_heads: int, qkv_bias: bool, num_layers: int, rank: int, pairs: Pairs | None
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.pairs = pairs
        self.qkv = TiedLinear(dim, 3 * dim, bias=qkv_bias, num_layers=num_layers, rank=rank)
        self.proj = TiedLinear(dim, dim, num_layers=num_layers, rank=rank)

    def forward(
        self, x: Float[Tensor, "rows tokens dim"], slots: Slots = None, table: Table | None = None
    ) -> Float[Tensor, "rows tokens dim"]:
        """Softmax(Q K^T / sqrt(head width)) V, heads joined and projected."""
        rows, tokens, dim = x.shape
        qkv = self.qkv(x, slots).view(rows, tokens, 3, self.num_heads, dim // self.num_heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        if self.pairs is not None:
            assert table is not None, "a block with rotary positions is handed its table"
            query, key = turned(query, table, self.pairs), turned(key, table, self.pairs)
        heads = functional.scaled_dot_product_attention(query, key, value)
        out: Tensor = self.proj(heads.transpose(1, 2).reshape(rows, tokens, dim), slots)
        return out


class Mlp(nn.Module):
    """`gelu`: two layers, 4 dim wide. `swiglu`: gated, 4 dim wide. `swiglu_iso`: gated, 8/3 dim wide.

    `width` is given where a teacher's own MLP, of another width, is to be copied in. The gated kinds need
    three matrices of their width, so `swiglu` costs 1.5 times the MLP of the teacher (the published form) and
    `swiglu_iso`, at two thirds of the width, costs the same.
    """

    def __init__(self, dim: int, kind: MlpKind, width: int | None, num_layers: int, rank: int) -> None:
        super().__init__()
        self.gated = kind != "gelu"
        hidden = width or (round(8 * dim / 3) if kind == "swiglu_iso" else 4 * dim)
        self.fc1 = TiedLinear(dim, 2 * hidden if self.gated else hidden, num_layers=num_layers, rank=rank)
        self.fc2 = TiedLinear(hidden, dim, num_layers=num_layers, rank=rank)

    def forward(
        self, x: Float[Tensor, "rows tokens dim"], slots: Slots = None
    ) -> Float[Tensor, "rows tokens dim"]:
        """fc2(gelu(fc1 x)), or fc2(silu(gate) * value) with gate and value the halves of fc1 x."""
        hidden: Tensor = self.fc1(x, slots)
        if self.gated:
            gate, value = hidden.chunk(2, dim=-1)
            hidden = functional.silu(gate) * value
        else:
            hidden = functional.gelu(hidden)
        out: Tensor = self.fc2(hidden, slots)
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

    def __init__(self, dim: int, random_init: RandomInit) -> None:
        super().__init__()
        self.fc1 = nn.Linear(1, DEPTH_HIDDEN)
        self.fc2 = nn.Linear(DEPTH_HIDDEN, 3 * dim)
        if random_init == "reference":
            nn.init.normal_(self.fc2.weight, std=REFERENCE_STD)
            nn.init.normal_(self.fc2.bias, std=REFERENCE_STD)
        else:
            nn.init.normal_(self.fc2.weight, std=DEPTH_STD)
            nn.init.zeros_(self.fc2.bias)

    def forward(self, depth: Float[Tensor, "depths 1"]) -> tuple[Tensor, Tensor, Tensor]:
        """Factors of the attention branch, the MLP branch and the output, each (depths, 1, dim).

        Never in bfloat16, whose steps near 1 are as large as what a fresh block adds to 1.
        """
        with torch.autocast(depth.device.type, enabled=False):
            scale = 1 + self.fc2(functional.silu(self.fc1(depth)))
        attention, mlp, output = scale.unsqueeze(1).chunk(3, dim=-1)
        return attention, mlp, output


class RecurrentBlock(nn.Module):
    """The block of one phase.

    Args:
        dim: width of a token.
        num_heads: attention heads.
        mlp: kind of the MLP, and `mlp_width` its hidden width where it is the teacher's own.
        conditioned: whether the block is scaled by the depth it is applied at.
        layer_scale: first value of both LayerScales.
        qkv_bias: whether queries, keys and values have a bias.
        eps: epsilon of the norms.
        random_init: how weights are drawn: `vit` is the usual way for ViTs, `reference` the published code's,
            which leaves them to PyTorch's `MultiheadAttention` and `Linear`.
        num_layers: layers of the phase, for which `lora_rank` above 0 makes a low-rank part each.
        pairs: which channels are turned together, if positions are rotary.

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
        random_init: RandomInit = "vit",
        num_layers: int = 1,
        lora_rank: int = 0,
        pairs: Pairs | None = None,
    ) -> None:
        super().__init__()
        if dim % num_heads:
            raise ConfigError(
                f"a block's width is a multiple of its heads; got dim {dim} and num_heads {num_heads}"
            )
        self.norm1 = nn.LayerNorm(dim, eps=eps)
        self.attn = Attention(dim, num_heads, qkv_bias, num_layers, lora_rank, pairs)
        self.ls1 = LayerScale(dim, layer_scale)
        self.norm2 = nn.LayerNorm(dim, eps=eps)
        self.mlp = Mlp(dim, mlp, mlp_width, num_layers, lora_rank)
        self.ls2 = LayerScale(dim, layer_scale)
        self._draw(random_init)
        self.depth = DepthScale(dim, random_init) if conditioned else None

    def _draw(self, random_init: RandomInit) -> None:
        """Weights of the linear maps, which PyTorch has drawn once already."""
        if random_init == "reference":
            nn.init.xavier_uniform_(self.attn.qkv.weight)
            without_bias: tuple[TiedLinear, ...] = (self.attn.qkv, self.attn.proj)
        else:
            without_bias = (self.attn.qkv, self.attn.proj, self.mlp.fc1, self.mlp.fc2)
            for linear in without_bias:
                nn.init.trunc_normal_(linear.weight, std=0.02)
        for linear in without_bias:
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    def forward(
        self,
        x: Float[Tensor, "rows tokens dim"],
        depth: Float[Tensor, "layers 1"],
        slots: Slots = None,
        table: Table | None = None,
    ) -> Float[Tensor, "rows tokens dim"]:
        """The block applied once; rows are (batch, layers) flattened, with one depth a layer."""
        branch: Tensor = self.ls1(self.attn(self.norm1(x), slots, table))
        if self.depth is None:
            x = x + branch
            branch = self.ls2(self.mlp(self.norm2(x), slots))
            return x + branch
        attention, mlp, output = self.depth(depth)
        x = x + _scaled(branch, attention)
        branch = self.ls2(self.mlp(self.norm2(x), slots))
        return _scaled(x + _scaled(branch, mlp), output)


def _scaled(
    x: Float[Tensor, "rows tokens dim"], scale: Float[Tensor, "layers 1 dim"]
) -> Float[Tensor, "rows tokens dim"]:
    """Every layer's rows times that layer's factors."""
    layers: Tensor = x.view(-1, len(scale), *x.shape[1:]) * scale
    return layers.flatten(0, 1)
