"""The linear head: a convex fit with a known answer, folded into a plain linear map."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from activault.train.heads import fit_head


def blobs(num: int = 60, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(num) % 3
    centres = torch.tensor([[3.0, 0, 0, 7], [0, 3, 0, 7], [0, 0, 3, 7]]) * torch.tensor(
        [1.0, 100.0, 0.01, 1.0]
    )
    spread = torch.tensor([1.0, 100.0, 0.01, 0.0])
    return centres[labels] + torch.randn(num, 4, generator=generator) * spread, labels


def test_fit_is_the_stationary_point_of_the_penalised_loss() -> None:
    """Gradient zero in the standardised features, from the folded head alone; the last feature is
    constant."""
    x, labels = blobs()
    head = fit_head(x, labels, 3, strength=0.1)
    mean, spread = x.double().mean(0), x.double().std(0, correction=0)
    standard = ((x.double() - mean) / spread)[:, :3]
    weight = (head.weight * spread)[:, :3].clone().requires_grad_()
    bias = (head.bias + head.weight @ mean).clone().requires_grad_()
    loss = functional.cross_entropy(standard @ weight.T + bias, labels) + 0.05 * weight.square().sum()
    gradients = torch.autograd.grad(loss, (weight, bias))
    assert all(gradient.abs().max() < 1e-6 for gradient in gradients)
    torch.testing.assert_close(head.logits(x), standard @ weight.detach().T + bias.detach())


def test_separable_blobs_are_separated_on_new_rows() -> None:
    head = fit_head(*blobs(), 3, strength=1e-3)
    assert head.accuracy(*blobs(600, seed=1)) > 0.9


def test_scale_of_a_feature_does_not_matter() -> None:
    x, labels = blobs()
    first = fit_head(x, labels, 3)
    second = fit_head(x * torch.tensor([1e3, 1e-3, 1.0, 1.0]), labels, 3)
    torch.testing.assert_close(
        second.weight * torch.tensor([1e3, 1e-3, 1.0, 1.0]), first.weight, rtol=1e-3, atol=1e-5
    )


@pytest.mark.parametrize("constant", [0.0, 0.1, -1e6])
def test_constant_feature_gets_no_weight(constant: float) -> None:
    x, labels = blobs()
    x[:, 3] = constant
    head = fit_head(x, labels, 3)
    assert not head.weight[:, 3].any()
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
