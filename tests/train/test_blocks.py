"""The block and the losses against a straight float64 transcription of the published formulas."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from activault.store.errors import ConfigError
from activault.store.layout import TokenLayout
from activault.train.blocks import MlpKind, RecurrentBlock
from activault.train.losses import (
    SpanLoss,
    TokenWeights,
    autoregressive_loss,
    kind_weights,
    teacher_forcing_loss,
)
from activault.train.raptor import Raptor, RaptorConfig

DIM, HEADS, LAYOUT = 16, 4, TokenLayout(num_cls=1, num_registers=2, grid=(2, 3))
WEIGHTS = TokenWeights(cls=0.45, registers=0.10, patches=0.45)


def layer_norm(x: Tensor, w: dict[str, Tensor], name: str) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return (
        centred / (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt() * w[f"{name}.weight"]
        + w[f"{name}.bias"]
    )


def linear(x: Tensor, w: dict[str, Tensor], name: str) -> Tensor:
    return torch.einsum("...i,oi->...o", x, w[f"{name}.weight"]) + w[f"{name}.bias"]


def sigmoid_weighted(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def published_block(x: Tensor, z: float, w: dict[str, Tensor], mlp: MlpKind, conditioned: bool) -> Tensor:
    """One row, (tokens, dim), through the formulas one after the other."""
    h = linear(layer_norm(x, w, "norm1"), w, "attn.qkv")
    width = DIM // HEADS
    attended = []
    for head in range(HEADS):
        q, k, v = (h[:, part * DIM + head * width : part * DIM + (head + 1) * width] for part in range(3))
        scores = torch.exp(q @ k.T / math.sqrt(width))
        attended.append(scores / scores.sum(-1, keepdim=True) @ v)
    attention = w["ls1.gamma"] * linear(torch.cat(attended, -1), w, "attn.proj")
    a, m, o = torch.ones(3, DIM, dtype=torch.float64)
    if conditioned:
        hidden = sigmoid_weighted(w["depth.fc1.weight"][:, 0] * z + w["depth.fc1.bias"])
        a, m, o = (1 + linear(hidden, w, "depth.fc2")).view(3, DIM)
    y = x + a * attention
    h = linear(layer_norm(y, w, "norm2"), w, "mlp.fc1")
    if mlp == "gelu":
        h = h * 0.5 * (1 + torch.erf(h / math.sqrt(2)))
    else:
        half = h.shape[-1] // 2
        h = sigmoid_weighted(h[:, :half]) * h[:, half:]
    return o * (y + m * (w["ls2.gamma"] * linear(h, w, "mlp.fc2")))


def published_errors(made: Tensor, target: Tensor, weights: TokenWeights | None) -> Tensor:
    """(layers,) from (batch, layers, tokens, dim)."""
    error = (made - target) ** 2
    if weights is None:
        return error.mean((0, 2, 3))
    cls, registers, patches = error[:, :, 0], error[:, :, 1:3], error[:, :, 3:]
    return (
        weights.cls * cls.mean((0, 2))
        + weights.registers * registers.mean((0, 2, 3))
        + weights.patches * patches.mean((0, 2, 3))
    )


def randomised(module: torch.nn.Module) -> torch.nn.Module:
    """Every tensor at a size where it matters, in float64."""
    generator = torch.Generator().manual_seed(3)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3
    return module.double()


@pytest.mark.parametrize("conditioned", [True, False])
@pytest.mark.parametrize("mlp", ["gelu", "swiglu", "swiglu_iso"])
def test_block_is_the_published_one(mlp: MlpKind, conditioned: bool) -> None:
    block = randomised(RecurrentBlock(DIM, HEADS, mlp=mlp, conditioned=conditioned))
    weights = {
        name: parameter.detach().clone().requires_grad_() for name, parameter in block.named_parameters()
    }
    x = torch.randn(2, 9, DIM, dtype=torch.float64)
    depths = torch.tensor([[3.0], [7.0]], dtype=torch.float64)
    made = block(x, depths)
    expected = torch.stack(
        [published_block(x[n], float(depths[n]), weights, mlp, conditioned) for n in range(2)]
    )
    torch.testing.assert_close(made, expected, rtol=1e-10, atol=1e-10)
    made.square().sum().backward()
    expected.square().sum().backward()
    for name, parameter in block.named_parameters():
        torch.testing.assert_close(parameter.grad, weights[name].grad, rtol=1e-8, atol=1e-8, msg=name)


@pytest.mark.parametrize("depth", ["raw", "normalised"])
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])
@pytest.mark.parametrize("form", ["teacher_forced", "autoregressive"])
def test_loss_and_gradients_are_the_published_ones(
    form: str, weights: TokenWeights | None, depth: str
) -> None:
    """Parity: the whole model, two phases, loss and gradients in float64."""
    config = RaptorConfig(dim=DIM, num_heads=HEADS, num_layers=4, cuts=(3,), mlp="swiglu", depth=depth)
    model = randomised(Raptor(config))
    tensors = {
        name: parameter.detach().clone().requires_grad_() for name, parameter in model.named_parameters()
    }
    own = [
        {
            name.removeprefix(f"blocks.{phase}."): t
            for name, t in tensors.items()
            if name.startswith(f"blocks.{phase}.")
        }
        for phase in range(2)
    ]
    tokens = torch.randn(3, 5, LAYOUT.num_tokens, DIM, dtype=torch.float64)
    made = []
    for row in range(3):
        x, layers = tokens[row, 0], []
        for layer in range(1, 5):
            source = tokens[row, layer - 1] if form == "teacher_forced" else x
            z = layer / 4 if depth == "normalised" else float(layer)
            x = published_block(source, z, own[layer > 3], "swiglu", True)
            layers.append(x)
        made.append(torch.stack(layers))
    expected = published_errors(torch.stack(made), tokens[:, 1:], weights).mean()
    by_kind = None if weights is None else kind_weights(LAYOUT, weights)
    span_loss = SpanLoss(layout=LAYOUT, weights=by_kind, scales=None)
    compute = teacher_forcing_loss if form == "teacher_forced" else autoregressive_loss
    loss = compute(model, tokens, 0, span_loss)
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=0)
    loss.backward()
    expected.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, tensors[name].grad, rtol=1e-8, atol=1e-9, msg=name)


def test_widths_of_the_mlp_kinds_cost_what_they_say() -> None:
    counts = {
        kind: sum(p.numel() for p in RecurrentBlock(192, 3, mlp=kind).mlp.parameters() if p.dim() == 2)
        for kind in ("gelu", "swiglu", "swiglu_iso")
    }
    assert counts["swiglu"] == 1.5 * counts["gelu"]
    assert counts["swiglu_iso"] == counts["gelu"]


def test_layer_scale_starts_as_configured() -> None:
    block = RecurrentBlock(DIM, HEADS, layer_scale=0.25)
    assert block.ls1.gamma.tolist() == block.ls2.gamma.tolist() == [0.25] * DIM


def test_fresh_depth_conditioning_is_small_and_has_the_published_variance() -> None:
    torch.manual_seed(0)
    block = RecurrentBlock(384, 6)
    assert block.depth is not None
    assert block.depth.fc2.weight.var().item() == pytest.approx(1e-4, rel=0.05)
    assert not block.depth.fc2.bias.any()


def test_width_that_heads_do_not_divide_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"multiple of its heads; got dim 16 and num_heads 3"):
        RecurrentBlock(16, 3)
