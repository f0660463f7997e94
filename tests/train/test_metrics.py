"""R2 and cosine as the science defines them, against a direct computation over all rows at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from activault.store.errors import ConfigError
from activault.store.layout import TokenLayout
from activault.train.metrics import R2Accumulator, RolloutMetrics

LAYOUT, LAYERS, DIM = TokenLayout(num_cls=1, num_registers=2, grid=(2, 2)), (1, 2, 5), 8
SPANS = {"cls": slice(0, 1), "registers": slice(1, 3), "patches": slice(3, 7), "all": slice(0, 7)}


def activations(num_rows: int = 37) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    sizes = np.array([0.01, 1, 30]).reshape(1, 3, 1, 1)
    target = (rng.normal(size=(num_rows, 3, 7, DIM)) * sizes + rng.normal(size=DIM) * 5).astype(np.float32)
    target[:, :, 0] += 3 * sizes[:, :, 0]
    return target, (target + rng.normal(size=target.shape) * sizes * 0.5).astype(np.float32)


def direct_r2(target: np.ndarray, made: np.ndarray) -> float:
    """One layer, one kind: (rows, tokens, dim)."""
    x, made = target.astype(np.float64), made.astype(np.float64)
    mean = x.mean(axis=(0, 1))
    return 1 - ((x - made) ** 2).sum() / ((x - mean) ** 2).sum()


def streamed(target: np.ndarray, made: np.ndarray, batch: int) -> RolloutMetrics:
    accumulator = R2Accumulator(LAYOUT, LAYERS, DIM)
    for first in range(0, len(target), batch):
        accumulator.update(
            torch.from_numpy(target[first : first + batch]), torch.from_numpy(made[first : first + batch])
        )
    return accumulator.result()


@pytest.mark.parametrize("batch", [1, 5, 16, 37])
def test_r2_is_the_direct_one_whatever_the_batches(batch: int) -> None:
    target, made = activations()
    metrics = streamed(target, made, batch)
    assert metrics.num_rows == 37
    assert metrics.layers == LAYERS
    for kind, span in SPANS.items():
        expected = [direct_r2(target[:, layer, span], made[:, layer, span]) for layer in range(3)]
        assert metrics.r2[kind] == pytest.approx(expected, rel=1e-9), kind


def test_r2_is_not_a_mean_of_batches_and_not_symmetric() -> None:
    """Defects of the reference: arguments swapped, R2 averaged over batches."""
    target, made = activations()
    metrics = streamed(target, made, 5)
    span = SPANS["patches"]
    averaged = np.mean(
        [direct_r2(target[n : n + 5, 1, span], made[n : n + 5, 1, span]) for n in range(0, 37, 5)]
    )
    assert abs(metrics.r2["patches"][1] - averaged) > 1e-3
    swapped = streamed(made, target, 5)
    assert abs(metrics.r2["patches"][1] - swapped.r2["patches"][1]) > 1e-2


def test_mean_is_per_channel_and_not_one_for_all() -> None:
    target, _ = activations()
    mean = np.broadcast_to(target.mean(axis=0, keepdims=True)[:, :, :1], target.shape).copy()
    metrics = streamed(target, mean, 8)
    assert metrics.r2["cls"] == pytest.approx((0, 0, 0), abs=1e-5)


def test_perfect_prediction_is_one_and_large_means_do_no_harm() -> None:
    target, _ = activations()
    target += 1000
    exact = streamed(target, target, 7)
    assert all(value == 1 for values in exact.r2.values() for value in values)
    assert all(value == pytest.approx(1) for values in exact.cosine.values() for value in values)


def test_cosine_is_the_mean_over_tokens() -> None:
    target, made = activations()
    metrics = streamed(target, made, 6)
    x, y = target.astype(np.float64), made.astype(np.float64)
    cosine = (x * y).sum(-1) / np.linalg.norm(x, axis=-1) / np.linalg.norm(y, axis=-1)
    for kind, span in SPANS.items():
        assert metrics.cosine[kind] == pytest.approx(cosine[:, :, span].mean(axis=(0, 2)), rel=1e-9)


@pytest.mark.parametrize("constant", [0.0, 0.1, -321.7])
def test_constant_kind_has_no_r2(constant: float) -> None:
    target, made = activations()
    target[:, 0, 0] = constant * np.linspace(1, 2, DIM)
    metrics = streamed(target, made, 5)
    assert metrics.r2["cls"][0] is None
    assert metrics.r2["cls"][1] is not None
    assert metrics.r2["all"][0] is not None
    assert metrics.to_dict()["r2"]["cls"][0] == "constant"


def test_one_row_has_a_constant_cls() -> None:
    target, made = activations(1)
    assert streamed(target, made, 1).r2["cls"] == (None, None, None)


def test_layer_zero_is_never_counted() -> None:
    with pytest.raises(ConfigError, match="layer 0 is the roll-out's own input and is never counted"):
        R2Accumulator(LAYOUT, (0, 1), DIM)


def test_no_rows_is_refused() -> None:
    with pytest.raises(ConfigError, match="R2 is measured on at least one row; got none"):
        R2Accumulator(LAYOUT, LAYERS, DIM).result()
