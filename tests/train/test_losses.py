"""Token weights, normalisation, annealing."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from activault.store.layout import TokenLayout
from activault.train.losses import (
    SMALLEST_SCALE,
    SpanLoss,
    TokenWeights,
    kind_weights,
    layer_scales,
    mixture_loss,
)

FULL = TokenLayout(num_cls=1, num_registers=4, grid=(4, 4))
NO_REGISTERS = TokenLayout(num_cls=1, num_registers=0, grid=(4, 4))
PATCHES = TokenLayout(num_cls=0, num_registers=0, grid=(4, 4))
WEIGHTS = TokenWeights(cls=0.45, registers=0.10, patches=0.45)


@pytest.mark.parametrize(
    ("layout", "weights", "expected"),
    [
        (FULL, WEIGHTS, {"cls": 0.45, "registers": 0.10, "patches": 0.45}),
        (NO_REGISTERS, WEIGHTS, {"cls": 0.5, "patches": 0.5}),
        (PATCHES, WEIGHTS, {"patches": 1.0}),
        (FULL, None, {"cls": 1 / 21, "registers": 4 / 21, "patches": 16 / 21}),
    ],
    ids=["full", "no-registers", "patches-only", "plain"],
)
def test_weights_sum_to_one_over_the_kinds_there_are(
    layout: TokenLayout, weights: TokenWeights | None, expected: dict[str, float]
) -> None:
    assert kind_weights(layout, weights) == pytest.approx(expected)


def test_weights_on_absent_kinds_alone_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"one of the token kinds patches has a weight above 0; got cls=1\.0"
    ):
        kind_weights(PATCHES, TokenWeights(cls=1, registers=0, patches=0))


@pytest.mark.parametrize("values", [(0, 0, 0), (-1, 1, 1), (float("nan"), 1, 1)])
def test_weights_that_weigh_nothing_are_refused(values: tuple[float, float, float]) -> None:
    with pytest.raises(ValidationError):
        TokenWeights(cls=values[0], registers=values[1], patches=values[2])


def test_plain_loss_is_the_mean_over_all_tokens() -> None:
    made, target = torch.randn(2, 3, 21, 8), torch.randn(2, 3, 21, 8)
    plain = SpanLoss(layout=FULL, weights=None, scales=None)(made, target)
    spelled = SpanLoss(layout=FULL, weights=kind_weights(FULL, None), scales=None)(made, target)
    torch.testing.assert_close(plain, torch.nn.functional.mse_loss(made, target))
    torch.testing.assert_close(spelled, plain)


def test_per_layer_loss_of_the_mean_is_one() -> None:
    """Predicting each kind's mean everywhere has R2 = 0, whatever the layer's size: error / scale is 1."""
    torch.manual_seed(0)
    sizes = torch.tensor([0.1, 1.0, 50.0]).view(1, 3, 1, 1)
    target = torch.randn(400, 3, 21, 8) * sizes
    weights = kind_weights(FULL, WEIGHTS)
    variances, made = {}, torch.zeros_like(target)
    for kind in weights:
        own = target[:, :, FULL.span(kind)]
        mean = own.mean(dim=(0, 2), keepdim=True)
        variances[kind] = (own - mean).square().mean(dim=(0, 2, 3))
        made[:, :, FULL.span(kind)] = mean
    loss = SpanLoss(layout=FULL, weights=weights, scales=layer_scales(variances, weights))
    torch.testing.assert_close(loss.layer_errors(made, target) / loss.scales, torch.ones(3))


def test_layer_without_variance_does_not_blow_up() -> None:
    scales = layer_scales({"patches": torch.tensor([0.0, 2.0])}, {"patches": 1.0})
    assert scales.tolist() == pytest.approx([2.0 * SMALLEST_SCALE, 2.0])
    assert layer_scales({"patches": torch.zeros(2)}, {"patches": 1.0}).tolist() == [1.0, 1.0]


def test_loss_falls_when_the_prediction_comes_nearer() -> None:
    """The reference's `cosine` loss has the wrong sign; every loss of ours falls towards the target."""
    target, off = torch.randn(2, 2, 21, 8), torch.randn(2, 2, 21, 8)
    for weights in (None, kind_weights(FULL, WEIGHTS)):
        for scales in (None, torch.tensor([0.1, 3.0])):
            loss = SpanLoss(layout=FULL, weights=weights, scales=scales)
            values = [float(loss(target + size * off, target)) for size in (1.0, 0.5, 0.1, 0.0)]
            assert values == sorted(values, reverse=True)
            assert values[-1] == 0


class Counting:
    """A model that remembers which of its two ways was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def predict_next(self, tokens: Tensor, start: int = 0) -> Tensor:
        self.asked.append("forced")
        return tokens + 1

    def __call__(self, tokens: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
        assert stop is not None
        self.asked.append("rolled")
        return torch.stack([tokens + 2] * (stop - start), dim=1)


@pytest.mark.parametrize(
    ("weight", "asked", "expected"),
    [(1.0, ["forced"], 1.0), (0.0, ["rolled"], 4.0), (0.25, ["forced", "rolled"], 3.25)],
)
def test_mixture_computes_no_branch_of_weight_zero(weight: float, asked: list[str], expected: float) -> None:
    model = Counting()
    loss = SpanLoss(layout=PATCHES, weights=None, scales=None)
    value = mixture_loss(model, torch.zeros(2, 4, 16, 8), 3, loss, weight)
    assert model.asked == asked
    assert float(value) == pytest.approx(expected)
