from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activault.analyze.dynamics import Dynamics, DynamicsSum, RowMoments, update_ranks

SPANS = {"cls": slice(0, 1), "registers": slice(1, 3), "patches": slice(3, 9)}


def measure(tokens: np.ndarray, batch: int | None = None, **options: int) -> Dynamics:
    """Dynamics of tokens (n, layers, 9, D), in batches."""
    total = DynamicsSum(len(tokens), range(tokens.shape[1]), SPANS, **options)
    size = batch or len(tokens)
    for start in range(0, len(tokens), size):
        total.add(start, tokens[start : start + size].astype(np.float32))
    return total.result()


def walk(rows: int = 10, layers: int = 5, dim: int = 7, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, layers, 9, dim)).cumsum(axis=1)


def turning(angles: np.ndarray, rows: int = 3) -> np.ndarray:
    """Tokens in a plane at the angles (layers,), of growing norms 1, 2, 3 ..."""
    plane = np.stack([np.cos(angles), np.sin(angles)], axis=-1) * np.arange(1, len(angles) + 1)[:, None]
    return np.broadcast_to(plane[None, :, None], (rows, len(angles), 9, 2)).copy()


@pytest.mark.parametrize("kind", ["cls", "registers", "patches"])
@pytest.mark.parametrize("step", [1e-4, 0.1, 1.0, 2.5])
def test_rotation_by_a_known_angle_has_that_speed(kind: str, step: float) -> None:
    curve = measure(turning(step * np.arange(4))).curve("speed", kind)
    assert curve.layers == (1, 2, 3)
    assert curve.unit == "radian"
    np.testing.assert_allclose(curve.mean, step, rtol=3e-3 if step < 0.01 else 1e-5)


def test_opposite_directions_are_half_a_turn_apart() -> None:
    tokens = turning(np.zeros(3))
    tokens[:, 1] *= -1
    np.testing.assert_allclose(measure(tokens).curve("speed", "cls").mean, np.pi, atol=1e-6)


def test_convergence_is_the_cosine_to_the_last_layer() -> None:
    curve = measure(turning(0.3 * np.arange(4))).curve("convergence", "patches")
    assert curve.layers == (0, 1, 2, 3)
    np.testing.assert_allclose(curve.mean, np.cos([0.9, 0.6, 0.3, 0]), atol=1e-6)


def test_norms_are_those_of_the_tokens() -> None:
    np.testing.assert_allclose(measure(turning(np.arange(4.0))).curve("norm", "registers").mean, [1, 2, 3, 4])


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_updates_of_known_rank(rank: int) -> None:
    """Token t turns from axis 2j to axis 2j+1, j = t mod rank: `rank` orthogonal updates of equal weight."""
    group = np.arange(9)[: 9 - 9 % rank] % rank
    before, after = np.eye(12)[2 * group], np.eye(12)[2 * group + 1]
    np.testing.assert_allclose(update_ranks((after - before)[None].astype(np.float32)), rank, rtol=1e-6)


def test_updates_of_unequal_weight() -> None:
    """Singular values 2 and 1: by hand."""
    ranks = update_ranks(np.diag([2.0, 1.0])[None].astype(np.float32))[:, 0]
    sigma, energy = np.array([2 / 3, 1 / 3]), np.array([0.8, 0.2])
    expected = [5 / 4, np.exp(-(sigma * np.log(sigma)).sum()), np.exp(-(energy * np.log(energy)).sum())]
    np.testing.assert_allclose(ranks, expected, rtol=1e-6)


def test_nothing_moves() -> None:
    dynamics = measure(turning(np.zeros(3)))
    for measured in ("stable_rank", "entropy_rank", "energy_rank"):
        assert dynamics.curve(measured).mean == (0.0, 0.0)
    assert dynamics.curve("speed", "cls").mean == (0.0, 0.0)


def reference(tokens: np.ndarray) -> dict[str, np.ndarray]:
    """Every measure per image in float64 by plain loops and SVD; shape (n, layers) or (n, layers - 1)."""
    unit = tokens / np.linalg.norm(tokens, axis=-1, keepdims=True)
    num, layers = tokens.shape[:2]
    out: dict[str, list[list[float]]] = {
        name: [[] for _ in range(num)] for name in ("stable", "entropy", "energy")
    }
    for image in range(num):
        for layer in range(1, layers):
            values = np.linalg.svd(unit[image, layer] - unit[image, layer - 1], compute_uv=False)
            out["stable"][image].append((values**2).sum() / values[0] ** 2)
            for name, share in (
                ("entropy", values / values.sum()),
                ("energy", values**2 / (values**2).sum()),
            ):
                share = share[share > 1e-12]
                out[name][image].append(float(np.exp(-(share * np.log(share)).sum())))
    found = {f"{name}_rank": np.array(rows) for name, rows in out.items()}
    for kind, span in SPANS.items():
        part = unit[:, :, span]
        found[f"norm {kind}"] = np.linalg.norm(tokens[:, :, span], axis=-1).mean(-1)
        found[f"convergence {kind}"] = (part * part[:, -1:]).sum(-1).mean(-1)
        cosine = (part[:, 1:] * part[:, :-1]).sum(-1)
        found[f"speed {kind}"] = np.arccos(np.clip(cosine, -1, 1)).mean(-1)
    return found


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 10_000), dim=st.integers(2, 14), rows=st.integers(2, 7), batch=st.integers(1, 4))
def test_it_agrees_with_a_plain_float64_implementation(seed: int, dim: int, rows: int, batch: int) -> None:
    tokens = walk(rows=rows, dim=dim, seed=seed).astype(np.float32)
    dynamics = measure(tokens, batch)
    for name, values in reference(tokens.astype(np.float64)).items():
        curve = dynamics.curve(*name.split())
        np.testing.assert_allclose(curve.mean, values.mean(0), rtol=1e-3, atol=1e-5, err_msg=name)
        np.testing.assert_allclose(
            curve.stderr, values.std(0, ddof=1) / np.sqrt(rows), rtol=1e-2, atol=1e-4, err_msg=name
        )


def test_ranks_are_sampled_evenly_and_say_so() -> None:
    tokens = walk(rows=10)
    sampled, every = measure(tokens, batch=3, rank_rows=4), measure(tokens)
    assert sampled.curve("stable_rank").num_rows == 4
    assert sampled.curve("speed", "cls").num_rows == every.curve("stable_rank").num_rows == 10
    expected = measure(tokens[[0, 3, 6, 9]]).curve("stable_rank").mean
    np.testing.assert_allclose(sampled.curve("stable_rank").mean, expected)


def test_a_single_image_has_no_standard_error() -> None:
    curve = measure(walk(rows=1)).curve("speed", "cls")
    assert np.isfinite(curve.mean).all()
    assert np.isnan(curve.stderr).all()


def test_a_zero_token_has_no_direction_and_breaks_nothing() -> None:
    tokens = walk()
    tokens[:, 0, 0] = 0
    dynamics = measure(tokens)
    assert dynamics.curve("convergence", "cls").mean[0] == 0
    assert all(np.isfinite(curve.mean).all() for curve in dynamics.curves)


def test_an_absent_curve_is_named() -> None:
    with pytest.raises(KeyError, match="no curve of speed for all"):
        measure(walk()).curve("speed")


def test_moments_of_batches_are_those_of_the_whole() -> None:
    values = np.random.default_rng(0).normal(1e6, 1, size=(50, 3))
    moments = RowMoments(3)
    for part in np.split(values, [1, 1, 20]):
        moments.add(part)
    np.testing.assert_allclose(moments.mean, values.mean(0))
    np.testing.assert_allclose(moments.stderr, values.std(0, ddof=1) / np.sqrt(50))
