"""The linear head: a convex fit with a known answer, folded into a plain linear map."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from activault.train.heads import fit_head


def blobs(num: int = 60, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(num) % 3
    centres = torch.tensor([[3.0, 0, 0, 7], [0, 3, 0, 7], [0, 0, 3, 7]])
    spread = torch.tensor([1.0, 1.0, 1.0, 0.0])
    return centres[labels] + torch.randn(num, 4, generator=generator) * spread, labels


def test_fit_is_the_stationary_point_of_the_penalised_loss() -> None:
    """Gradient zero on centred features of mean variance 1, from the folded head alone."""
    x, labels = blobs()
    head = fit_head(x, labels, 3, strength=0.1)
    mean, scale = x.double().mean(0), x.double().var(0, correction=0).mean().sqrt()
    centred = (x.double() - mean) / scale
    weight = (head.weight * scale).clone().requires_grad_()
    bias = (head.bias + head.weight @ mean).clone().requires_grad_()
    loss = functional.cross_entropy(centred @ weight.T + bias, labels) + 0.05 * weight.square().sum()
    gradients = torch.autograd.grad(loss, (weight, bias))
    assert all(gradient.abs().max() < 1e-6 for gradient in gradients)
    torch.testing.assert_close(head.logits(x), centred @ weight.detach().T + bias.detach())


def test_separable_blobs_are_separated_on_new_rows() -> None:
    head = fit_head(*blobs(), 3, strength=1e-3)
    assert head.accuracy(*blobs(600, seed=1)) > 0.9


@pytest.mark.parametrize("factor", [1e3, 1e-3])
def test_common_scale_of_the_features_does_not_matter(factor: float) -> None:
    x, labels = blobs()
    first, second = fit_head(x, labels, 3), fit_head(x * factor, labels, 3)
    torch.testing.assert_close(second.weight * factor, first.weight, rtol=1e-3, atol=1e-5)


def test_features_keep_their_own_scales() -> None:
    """A direction that hardly varies is not blown up: it gets hardly any say."""
    x, labels = blobs()
    faint = x * torch.tensor([1.0, 1.0, 1e-3, 1.0])
    logits = fit_head(faint, labels, 3, strength=0.1)
    assert float((logits.weight[:, 2] * faint[:, 2].std()).abs().max()) < 1e-3


@pytest.mark.parametrize("constant", [0.0, 0.1, -1e6])
def test_constant_feature_gets_no_weight(constant: float) -> None:
    x, labels = blobs()
    x[:, 3] = constant
    head = fit_head(x, labels, 3)
    assert head.weight[:, 3].abs().max() * max(abs(constant), 1) < 1e-6
    assert head.weight.isfinite().all()


def test_fit_is_deterministic() -> None:
    first, second = fit_head(*blobs(), 3), fit_head(*blobs(), 3)
    assert torch.equal(first.weight, second.weight)
    assert torch.equal(first.bias, second.bias)


def test_heavier_penalty_gives_smaller_weights() -> None:
    norms = [
        float(fit_head(*blobs(), 3, strength=strength).weight[:, 0].norm()) for strength in (1e-3, 1e-1, 10.0)
    ]
    assert norms == sorted(norms, reverse=True)
