"""Steps that keep an error bound, and codes that mean what FORMAT.md says."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activault.store import NonFiniteError
from activault.store.errors import PrecisionError
from activault.store.manifest import Quantisation
from activault.store.quantise import MAX_ERROR, PatchMoments, Steps


def patches(rows: int, *, dim: int = 24, seed: int = 0, spread: float = 1.0, far: float = 0.0) -> np.ndarray:
    """Channels of unlike deviations and means; `far` puts one value that many deviations out."""
    rng = np.random.default_rng(seed)
    deviation = np.exp(spread * rng.standard_normal(dim))
    mean = 3 * rng.standard_normal(dim)
    x = mean + deviation * rng.standard_normal((rows, 16, dim))
    if far:
        x[rows // 2, 3, 5] = mean[5] + far * deviation[5]
    return x.astype(np.float32)


def calibrated(x: np.ndarray, num_rows: int = 10_000) -> Quantisation:
    moments = PatchMoments(x.shape[-1])
    moments.add(x)
    return moments.quantisation(num_rows)


def unexplained(x: np.ndarray, errors: np.ndarray) -> float:
    """1 - R2: the mean per channel, the sums over everything."""
    flat = x.reshape(-1, x.shape[-1]).astype(np.float64)
    return float(errors.sum() / ((flat - flat.mean(axis=0)) ** 2).sum())


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    spread=st.floats(0, 1),
    far=st.sampled_from([0.0, 10.0]),
    scale=st.sampled_from([1e-9, 1e-3, 1.0, 1e4]),
)
def test_the_error_stays_within_its_bound(seed: int, spread: float, far: float, scale: float) -> None:
    x = patches(48, seed=seed, spread=spread, far=far) * np.float32(scale)
    quantisation = calibrated(x[:40])
    steps = Steps.of(quantisation)
    codes = np.empty(x.shape, np.int8)
    errors, clipped = steps.quantise(x, codes)
    # The rows that were calibrated from are never clipped, and use up most of what is allowed.
    assert not clipped[:40].any()
    assert unexplained(x[:40], errors[:40]) < MAX_ERROR
    assert errors[:40].sum() < MAX_ERROR * quantisation.variance * x[:40].size
    assert unexplained(x[:40], errors[:40]) > MAX_ERROR / 10
    decoded = np.empty_like(x)
    steps.dequantise(codes, decoded)
    gaps = decoded.astype(np.float64) - x
    np.testing.assert_allclose(errors, (gaps**2).sum(axis=1), rtol=1e-3, atol=1e-9 * scale**2)
    assert (np.abs(gaps[:40]) <= 0.5001 * steps.scale + 1e-6 * np.abs(x[:40])).all()


@given(cuts=st.lists(st.integers(1, 11), max_size=4))
@settings(max_examples=20, deadline=None)
def test_nothing_depends_on_how_many_rows_come_at_a_time(cuts: list[int]) -> None:
    x = patches(12, dim=7)
    whole = calibrated(x)
    moments, steps = PatchMoments(7), Steps.of(whole)
    codes = np.empty(x.shape, np.int8)
    parts = []
    bounds = sorted({0, 12, *cuts})
    for start, stop in pairwise(bounds):
        moments.add(x[start:stop])
        parts.append(steps.quantise(x[start:stop], codes[start:stop]))
    assert moments.quantisation(10_000) == whole
    expected = np.empty_like(codes)
    errors, clipped = steps.quantise(x, expected)
    assert np.array_equal(codes, expected)
    assert np.array_equal(np.concatenate([part[0] for part in parts]), errors)
    assert np.array_equal(np.concatenate([part[1] for part in parts]), clipped)


def test_a_product_with_a_code_is_exact() -> None:
    """Sixteen significant bits times seven: whoever fuses the multiplication with the sum gets the same."""
    steps = Steps.of(calibrated(patches(40)))
    codes = np.arange(-127, 128, dtype=np.float32)[:, None]
    assert np.array_equal((codes * steps.scale).astype(np.float64), codes.astype(np.float64) * steps.scale)


def test_steps_shrink_where_few_rows_say_how_large_the_variance_is() -> None:
    x = patches(64) * np.linspace(0.2, 2, 64, dtype=np.float32)[:, None, None]
    sure, unsure = calibrated(x, num_rows=64), calibrated(x, num_rows=10**6)
    assert sure.variance == unsure.variance
    assert 0.7 * sum(sure.scale) < sum(unsure.scale) < 0.98 * sum(sure.scale)


def test_a_channel_that_would_clip_gets_a_larger_step() -> None:
    x = patches(40, dim=96, spread=0, far=60)
    near, far = calibrated(patches(40, dim=96, spread=0)), calibrated(x)
    assert far.scale[5] > 2 * near.scale[5]
    assert far.scale[4] < near.scale[4]
    assert far.scale[5] * 127 > 1.2 * np.abs(x[..., 5] - far.offset[5]).max()


def test_values_too_far_out_are_refused_at_planning() -> None:
    x = patches(40, spread=0)
    x[0, 0] = x[:, :, :].mean((0, 1)) + 500
    with pytest.raises(PrecisionError, match=r"channel \d+ reaches .* choose bfloat16"):
        calibrated(x)


@pytest.mark.parametrize("scale", [1e-14, 1e-30, 1e-40])
def test_steps_too_fine_to_count_their_errors_are_refused(scale: float) -> None:
    """In float32 the squares of such errors are 0: nothing would ever be over the bound."""
    x = patches(40) * np.float32(scale)
    if scale == 1e-14:
        errors, _ = Steps.of(calibrated(x)).quantise(x, np.empty(x.shape, np.int8))
        assert MAX_ERROR / 10 < unexplained(x, errors) < MAX_ERROR
        return
    with pytest.raises(PrecisionError, match=r"int8 has steps of at least 1\.39e-17; channel \d+, .* needs"):
        calibrated(x)


def test_no_rows_add_nothing() -> None:
    x = patches(40)
    moments = PatchMoments(x.shape[-1])
    for part in (x[:0], x[:9], x[9:9], x[9:]):
        moments.add(part)
    assert moments.quantisation(10_000) == calibrated(x)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_becomes_no_value(value: float) -> None:
    x = patches(3)
    steps = Steps.of(calibrated(x))
    with pytest.raises(NonFiniteError, match="a calibration row holds"):
        calibrated(np.where(np.arange(24) == 2, np.float32(value), x))
    x[1, 4, 2] = value
    codes = np.empty(x.shape, np.int8)
    errors, _ = steps.quantise(x, codes)
    assert np.argwhere(codes == -128).tolist() == [[1, 4, 2]]
    assert not np.isfinite(errors[1, 2])
    decoded = np.empty_like(x)
    steps.dequantise(codes, decoded)
    assert np.argwhere(np.isnan(decoded)).tolist() == [[1, 4, 2]]


def test_a_layer_without_any_spread_comes_back_exactly() -> None:
    x = np.full((4, 6, 3), 0.1, np.float32)
    steps = Steps.of(calibrated(x))
    codes = np.empty(x.shape, np.int8)
    errors, clipped = steps.quantise(x, codes)
    decoded = np.empty_like(x)
    steps.dequantise(codes, decoded)
    assert np.array_equal(decoded, x)
    assert not errors.any()
    assert not clipped.any()


def test_what_is_not_finite_leaves_its_neighbours_as_they_are() -> None:
    x = patches(3)
    steps = Steps.of(calibrated(x))
    x[1, 4, 2], x[2, 5, 7] = np.nan, 1e4  # small rows are quantised together
    codes = np.empty(x.shape, np.int8)
    _, clipped = steps.quantise(x, codes)
    assert codes[2, 5, 7] == 127
    assert clipped.sum() == clipped[2, 7] == 1
