"""Objectives beside the published ones: huber, cosine, last layer alone, noise, horizon."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from activault.store.layout import TokenLayout
from activault.train.losses import LossKind, SpanLoss, autoregressive_loss, kind_weights, teacher_forcing_loss
from activault.train.noise import noisy, seed_of
from activault.train.raptor import Raptor, RaptorConfig

LAYOUT = TokenLayout(num_cls=1, num_registers=2, grid=(2, 3))
SCALES = torch.tensor([0.25, 4.0])


def span(kind: LossKind, **options: object) -> SpanLoss:
    scales = SCALES if kind in ("per_layer", "huber") else None
    return SpanLoss(layout=LAYOUT, weights=None, scales=scales, kind=kind, **options)  # type: ignore[arg-type]


@pytest.fixture
def model() -> Raptor:
    return Raptor(RaptorConfig(dim=16, num_heads=2, num_layers=4, cuts=(2,), layer_scale=0.3))


@pytest.fixture
def tokens() -> Tensor:
    return torch.randn(3, 5, 9, 16)


@pytest.mark.parametrize("kind", ["raw", "per_layer", "huber", "cosine"])
@pytest.mark.parametrize("weighted", [False, True])
def test_every_loss_falls_towards_the_target_and_is_least_there(kind: LossKind, weighted: bool) -> None:
    """The reference's `cosine` rises as the prediction comes nearer."""
    target, off = torch.randn(2, 2, 9, 8), torch.randn(2, 2, 9, 8)
    weights = kind_weights(LAYOUT, None) if weighted else None
    loss = SpanLoss(layout=LAYOUT, weights=weights, scales=span(kind).scales, kind=kind)
    values = [float(loss(target + size * off, target)) for size in (2.0, 1.0, 0.5, 0.1, 0.0)]
    assert values == sorted(values, reverse=True)
    assert values[-1] == pytest.approx(0, abs=1e-6)


def test_cosine_is_one_minus_the_mean_cosine_of_tokens() -> None:
    target, made = torch.randn(2, 2, 9, 8), torch.randn(2, 2, 9, 8)
    cosines = (target * made).sum(-1) / target.norm(dim=-1) / made.norm(dim=-1)
    torch.testing.assert_close(span("cosine")(made, target), 1 - cosines.mean())
    torch.testing.assert_close(span("cosine")(3 * made, target), span("cosine")(made, target))


def test_huber_is_per_layer_up_to_delta_and_linear_behind_it() -> None:
    target = torch.zeros(1, 2, 9, 8)
    sigma = SCALES.sqrt().view(1, 2, 1, 1)
    small, delta = torch.full_like(target, 0.5) * sigma, 0.7
    huber = span("huber", huber_delta=delta)
    torch.testing.assert_close(huber(small, target), span("per_layer")(small, target))
    far = [float(huber(torch.ones_like(target) * sigma * size, target)) for size in (2.0, 3.0, 4.0)]
    assert far == pytest.approx([2 * delta * size - delta**2 for size in (2.0, 3.0, 4.0)])


def test_last_layer_alone_counts_where_it_is_the_only_target(model: Raptor, tokens: Tensor) -> None:
    loss = SpanLoss(layout=LAYOUT, weights=None, scales=torch.tensor([9.0, 9, 9, 0.5]), last_only=True)
    expected = (model(tokens[:, 0])[:, -1] - tokens[:, -1]).square().mean() / 0.5
    torch.testing.assert_close(autoregressive_loss(model, tokens, 0, loss), expected)


def test_losses_of_a_16_bit_prediction_are_computed_in_full() -> None:
    target = torch.randn(2, 2, 9, 8)
    value = span("raw")(target.bfloat16(), target)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, (target.bfloat16().float() - target).square().mean())


@pytest.mark.parametrize("horizon", [1, 2, 3, 4, 9])
def test_a_horizon_starts_again_from_the_teacher(model: Raptor, tokens: Tensor, horizon: int) -> None:
    made, current = [], tokens[:, 0]
    for layer in range(4):
        current = tokens[:, layer] if layer % horizon == 0 else current
        current = model(current, layer, layer + 1)[:, 0]
        made.append(current)
    expected = (torch.stack(made, dim=1) - tokens[:, 1:]).square().mean()
    torch.testing.assert_close(autoregressive_loss(model, tokens, 0, span("raw"), horizon=horizon), expected)


def test_a_horizon_of_one_is_teacher_forcing(model: Raptor, tokens: Tensor) -> None:
    forced = teacher_forcing_loss(model, tokens, 0, span("raw"))
    torch.testing.assert_close(autoregressive_loss(model, tokens, 0, span("raw"), horizon=1), forced)


def test_noise_is_relative_to_each_token() -> None:
    tokens = torch.randn(4, 300, 64) * torch.logspace(-3, 3, 300).view(1, 300, 1)
    added = noisy(tokens, 0.1, torch.Generator().manual_seed(0)) - tokens
    share = added.norm(dim=-1) / tokens.norm(dim=-1)
    assert share.mean(dim=0).min() > 0.07
    assert share.mean() == pytest.approx(0.1, rel=0.01)
    assert noisy(tokens, 0.0, None) is tokens


def test_noise_disturbs_the_inputs_and_leaves_the_targets(model: Raptor, tokens: Tensor) -> None:
    class Spy(Raptor):
        def predict_next(self, tokens: Tensor, start: int = 0) -> Tensor:
            seen.append(tokens)
            return super().predict_next(tokens, start)

    seen: list[Tensor] = []
    spy = Spy(model.config)
    value = teacher_forcing_loss(
        spy, tokens, 0, span("raw"), noise=0.5, generator=torch.Generator().manual_seed(3)
    )
    assert not torch.equal(seen[0], tokens[:, :-1])
    torch.testing.assert_close(value, (spy.predict_next(seen[0]) - tokens[:, 1:]).square().mean())


def test_seeds_differ_by_step_and_piece_and_never_change() -> None:
    seeds = {seed_of(1, step, piece) for step in range(50) for piece in range(4)}
    assert len(seeds) == 200
    assert seed_of(0, "phase_1") == 871653126, "runs of earlier versions go on in the same order"
