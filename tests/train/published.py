"""The published method once more, in float64, from its formulas: what the parity tests hold ours against.

The reference's block is put together from PyTorch's own parts (`MultiheadAttention`, `Sequential`), its two
passes are plain loops over layers, its optimiser and its schedule are written out. Source: "Block-Recurrent
Dynamics in Vision Transformers", arXiv 2512.19941, and what the published code was seen to do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from activault.store.layout import TokenLayout
from activault.train.blocks import RecurrentBlock
from activault.train.losses import TokenWeights

NAMES = {
    "norm1": "before_attention",
    "norm2": "before_mlp",
    "attn.qkv.weight": "attention.in_proj_weight",
    "attn.qkv.bias": "attention.in_proj_bias",
    "attn.proj": "attention.out_proj",
    "mlp.fc1": "mlp.0",
    "mlp.fc2": "mlp.2",
    "ls1.gamma": "scales.0",
    "ls2.gamma": "scales.1",
    "depth.fc1": "layer.0",
    "depth.fc2": "layer.2",
}
"""Ours -> the published block's."""


class Gate(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        gate, value = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
        return gate * torch.sigmoid(gate) * value


class PublishedBlock(nn.Module):
    """Pre-norm attention and gated MLP, 4 dim wide, LayerScale, three factors from the layer's number."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.dim = dim
        self.before_attention, self.before_mlp = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(dim, 8 * dim), Gate(), nn.Linear(4 * dim, dim))
        self.scales = nn.ParameterList([torch.full((dim,), 1e-5), torch.full((dim,), 1e-5)])
        self.layer = nn.Sequential(nn.Linear(1, 16), nn.SiLU(), nn.Linear(16, 3 * dim))

    def forward(self, x: Tensor, layer: int) -> Tensor:
        number = torch.tensor([float(layer)], dtype=x.dtype)
        first, second, third = (1 + self.layer(number)).split(self.dim)
        normed = self.before_attention(x)
        x = x + first * (self.scales[0] * self.attention(normed, normed, normed, need_weights=False)[0])
        x = x + second * (self.scales[1] * self.mlp(self.before_mlp(x)))
        return third * x


def published_name(ours: str) -> str:
    stem = next(name for name in NAMES if ours == name or ours.startswith(f"{name}."))
    return NAMES[stem] + ours[len(stem) :]


def published(block: RecurrentBlock) -> PublishedBlock:
    """The published block with ours's weights."""
    made = PublishedBlock(block.attn.proj.out_features, block.attn.num_heads).double()
    made.load_state_dict({published_name(name): tensor for name, tensor in block.state_dict().items()})
    return made


def error(made: Tensor, target: Tensor, layout: TokenLayout, weights: TokenWeights | None) -> Tensor:
    """The published loss of one layer, (rows, tokens, dim)."""
    if weights is None:
        return ((made - target) ** 2).mean()
    first, last = layout.num_cls, layout.num_cls + layout.num_registers
    cls, registers, patches = (
        ((made[:, span] - target[:, span]) ** 2).mean()
        for span in (slice(0, first), slice(first, last), slice(last, None))
    )
    return weights.cls * cls + weights.registers * registers + weights.patches * patches


@dataclass(frozen=True, kw_only=True)
class PublishedStage:
    """One stage: phase `number` alone, or all blocks end to end where it is None."""

    cuts: tuple[int, ...]
    number: int | None
    start: int
    """Teacher's layer that the first one is made from."""
    layout: TokenLayout
    steps: int
    """Updates, of which the first quarter anneals."""
    warmup: int

    @property
    def weights(self) -> TokenWeights | None:
        if self.number is None:
            return TokenWeights(cls=0.45, registers=0.10, patches=0.45)
        return TokenWeights(cls=0.34, registers=0.33, patches=0.33) if self.number == len(self.cuts) else None

    def losses(self, blocks: Sequence[nn.Module], tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Teacher-forced and autoregressive loss of layers start+1 .. start+n."""
        forced, rolled = [], []
        x = tokens[:, 0]
        for step in range(tokens.shape[1] - 1):
            layer = self.start + step + 1
            block = blocks[sum(layer > cut for cut in self.cuts)]
            forced.append(
                error(block(tokens[:, step], layer), tokens[:, step + 1], self.layout, self.weights)
            )
            x = block(x, layer)
            rolled.append(error(x, tokens[:, step + 1], self.layout, self.weights))
        return torch.stack(forced).mean(), torch.stack(rolled).mean()

    def forcing(self, step: int) -> float:
        """Weight of teacher forcing at a step counted from 0."""
        return 0.0 if self.number is None else max(0.0, 1.0 - step / (0.25 * self.steps))

    def loss(self, blocks: Sequence[nn.Module], tokens: Tensor, step: int) -> Tensor:
        forced, rolled = self.losses(blocks, tokens)
        return self.forcing(step) * forced + (1 - self.forcing(step)) * rolled

    def updates(self, blocks: Sequence[nn.Module], batches: Sequence[Tensor]) -> Iterator[tuple[float, ...]]:
        """Train in place under an optimiser of its own; gives loss, norm before clipping and rate of each.

        Update n has entry n of the schedule, not n - 1: the published code steps its schedule first.
        """
        trained = blocks if self.number is None else [blocks[self.number]]
        parameters = [parameter for block in trained for parameter in block.parameters()]
        moments = [(torch.zeros_like(each), torch.zeros_like(each)) for each in parameters]
        rates = published_rates(self.steps, self.warmup)
        for n, tokens in enumerate(batches, start=1):
            loss = self.loss(blocks, tokens, n - 1)
            gradients = torch.autograd.grad(loss, parameters)
            norm = math.sqrt(sum(float((gradient**2).sum()) for gradient in gradients))
            for parameter, gradient, (m, v) in zip(parameters, gradients, moments, strict=True):
                clipped = gradient * min(1.0, 1.0 / (norm + 1e-6))
                m.copy_(0.9 * m + 0.1 * clipped)
                v.copy_(0.999 * v + 0.001 * clipped**2)
                step = (m / (1 - 0.9**n)) / ((v / (1 - 0.999**n)).sqrt() + 1e-8)
                parameter.data = parameter.data - rates[n] * (1e-4 * parameter.data + step)
            yield float(loss.detach()), norm, rates[n]


def published_rates(steps: int, warmup: int) -> list[float]:
    """The table of rates: `warmup` values from 0 to 3e-4, both in it, then a cosine to 1e-6, and 1e-6."""
    rising = [3e-4 * place / (warmup - 1) for place in range(warmup)]
    length = steps - warmup
    falling = [
        1e-6 + 0.5 * (3e-4 - 1e-6) * (1 + math.cos(math.pi * place / length)) for place in range(length)
    ]
    return [*rising, *falling, 1e-6]
