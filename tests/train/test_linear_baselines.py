"""The linear baselines against dense least squares over all rows in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from activault.store import Store
from activault.store.errors import ConfigError
from activault.store.layout import TokenLayout
from activault.train.linear_maps import LinearKind, fit_linear_maps
from activault.train.linear_moments import Moments, best_ridge, solve
from activault.train.metrics import evaluate_rollout
from activault.train.phases import phases_of_cuts, phases_of_groups
from activault.train.probes import probe
from activault.train.raptor import Raptor, RaptorConfig
from activault.train.rollout import Identity, RolloutModel

LAYOUT = TokenLayout(num_cls=1, num_registers=1, grid=(2, 2))
KINDS = {"cls": slice(0, 1), "registers": slice(1, 2), "patches": slice(2, 6)}
PHASES = {
    "cuts": phases_of_cuts((1,), 4),
    "one": phases_of_cuts((), 4),
    "groups": phases_of_groups(((1, 4), (2, 3)), 4),
}
MakeStore = Callable[..., Store]


def dense_map(x: np.ndarray, y: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """The affine least-squares map of samples (n, dim), by NumPy."""
    ones = np.ones((len(x), 1))
    solution = np.linalg.lstsq(np.hstack([x, ones]), y, rcond=None)[0]
    return lambda new: np.concatenate([new, np.ones((*new.shape[:-1], 1))], axis=-1) @ solution


def expected_layers(
    kind: LinearKind, layers: np.ndarray, phases: Any, rows: np.ndarray, test: np.ndarray
) -> np.ndarray:
    """Layers 1 to 4 of the test rows, (rows, 4, tokens, dim), straight from the definition."""
    made = {0: layers[0, test].astype(np.float64)}
    run_starts = {1: 0} | {}
    for phase in phases:
        for layer in phase:
            run_starts[layer] = run_starts[layer - 1] if layer - 1 in phase else layer - 1
    for layer in range(1, 5):
        phase = next(phase for phase in phases if layer in phase)
        if kind == "linear":
            pairs, source = [(run_starts[layer], layer)], run_starts[layer]
        else:
            pairs, source = [(other - 1, other) for other in phase], layer - 1
        out = np.empty_like(made[0])
        for span in KINDS.values():
            x, y = (
                np.concatenate([layers[pair[side], rows][:, span].reshape(-1, 16) for pair in pairs])
                for side in (0, 1)
            )
            out[:, span] = dense_map(x.astype(np.float64), y.astype(np.float64))(made[source][:, span])
        made[layer] = out
    return np.stack([made[layer] for layer in range(1, 5)], axis=1)


def crooked_layers(num_rows: int) -> np.ndarray:
    """(5, rows, 6, 16) layers that no linear map reaches, with means far above their spread; CLS starts
    constant."""
    rng = np.random.default_rng(1)
    layers = [rng.normal(size=(num_rows, 6, 16))]
    layers[0][:, 0] = rng.normal(size=16)
    for layer in range(4):
        turn = rng.normal(size=(16, 16)) / 4
        layers.append(layers[-1] + np.tanh(layers[-1].mean(1, keepdims=True) + layers[-1] @ turn) + layer)
    return np.stack(layers).astype(np.float32) + 30


@pytest.mark.parametrize("phases", PHASES)
@pytest.mark.parametrize("kind", ["linear", "power"])
def test_maps_are_those_of_dense_least_squares(make_store: MakeStore, kind: LinearKind, phases: str) -> None:
    layers = crooked_layers(64)
    store = make_store("s.zarr", tokens=layers)
    rows, test = np.arange(0, 50), np.arange(50, 64)
    fitted = fit_linear_maps(store, rows, PHASES[phases], ridge=0.0, batch_size=7)
    assert list(fitted) == ["linear", "power"]
    made = fitted[kind](torch.from_numpy(layers[0, test]))
    expected = expected_layers(kind, layers, PHASES[phases], rows, test)
    scale = np.abs(expected - expected.mean()).max()
    assert np.abs(made.numpy() - expected).max() < 1e-4 * scale


def test_batches_and_one_kind_alone_give_the_same(make_store: MakeStore) -> None:
    store = make_store("s.zarr", tokens=crooked_layers(40))
    phases, tokens = PHASES["cuts"], torch.from_numpy(store.read(slice(30, 40), (0,))[:, 0])
    told: list[tuple[int, int]] = []
    whole = fit_linear_maps(store, np.arange(30), phases, ridge=1e-3, batch_size=30)["power"]
    alone = fit_linear_maps(
        store, np.arange(30), phases, kinds=["power"], ridge=1e-3, batch_size=7,
        progress=lambda *state: told.append(state),
    )  # fmt: skip
    assert list(alone) == ["power"]
    torch.testing.assert_close(alone["power"](tokens), whole(tokens), rtol=1e-5, atol=1e-4)
    assert told == [(7, 30), (14, 30), (21, 30), (28, 30), (30, 30)]


def test_reading_is_bounded_and_once(make_store: MakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store("s.zarr", tokens=crooked_layers(40))
    asked: list[list[int]] = []
    read = Store.read

    def spy(self: Store, rows: np.ndarray, *given: Any) -> np.ndarray:
        asked.append(rows.tolist())
        return read(self, rows, *given)

    monkeypatch.setattr(Store, "read", spy)
    fit_linear_maps(store, np.arange(20), PHASES["cuts"], batch_size=8)
    assert asked == [list(range(8)), list(range(8, 16)), list(range(16, 20))]


def test_a_linear_teacher_is_reached_exactly(make_store: MakeStore) -> None:
    rng = np.random.default_rng(2)
    turn = np.linalg.qr(rng.normal(size=(16, 16)))[0]
    layers = [rng.normal(size=(60, 6, 16))]
    for _ in range(4):
        layers.append(layers[-1] @ turn + 0.5)
    store = make_store("linear.zarr", tokens=np.stack(layers).astype(np.float32))
    for model in fit_linear_maps(store, np.arange(50), PHASES["one"]).values():
        metrics = evaluate_rollout(model, store, np.arange(50, 60))
        assert all(
            value is not None and value > 0.99999 for values in metrics.r2.values() for value in values
        )


def test_held_out_rows_choose_a_ridge_where_rows_are_few() -> None:
    rng = torch.Generator().manual_seed(0)
    truth = torch.randn(16, 16, generator=rng, dtype=torch.float64)

    def samples(num: int) -> Moments:
        x = torch.randn(num, 16, generator=rng, dtype=torch.float64)
        moments = Moments(torch.zeros(16).double(), torch.zeros(16).double())
        moments.update(x, x @ truth.T + 4 * torch.randn(num, 16, generator=rng, dtype=torch.float64))
        return moments

    fitted, held_out, unseen = samples(20), samples(40), samples(4000)
    chosen = best_ridge(fitted, held_out)
    assert chosen >= 1e-2
    loose, strict = solve(fitted, [1e-8, chosen])
    assert unseen.error(strict) < 0.7 * unseen.error(loose)


def test_error_of_a_map_is_the_sum_of_squares() -> None:
    x, y = torch.randn(30, 5).double() + 9, torch.randn(30, 5).double() - 4
    moments = Moments(torch.full((5,), 8.0).double(), torch.full((5,), -3.0).double())
    moments.update(x[:10], y[:10])
    moments.update(x[10:], y[10:])
    found = solve(moments, [0.1])[0]
    direct = ((x - found.centre) @ found.weight.T + found.bias - y).square().sum()
    assert moments.error(found) == pytest.approx(float(direct), rel=1e-9)


def test_baselines_stand_beside_a_surrogate_in_every_measure(make_store: MakeStore) -> None:
    store = make_store("s.zarr", tokens=crooked_layers(64))
    train, test = np.arange(48), np.arange(48, 64)
    baselines: dict[str, RolloutModel] = {
        **fit_linear_maps(store, train, PHASES["cuts"]),
        "same": Identity(4),
    }
    config = RaptorConfig(dim=16, num_heads=2, num_layers=4, cuts=(1,))
    report = probe(store, Raptor(config), nn.LayerNorm(16), baselines, train, test)
    assert report.scores["same"] == report.scores["identity"]
    assert set(report.scores) == {"teacher", "surrogate", "identity", "same", "linear", "power"}
    r2 = {name: evaluate_rollout(model, store, test).r2["patches"] for name, model in baselines.items()}
    for position in range(4):
        assert r2["linear"][position] > r2["same"][position]


def test_a_span_is_not_entered_in_its_middle(make_store: MakeStore) -> None:
    store = make_store("s.zarr", tokens=crooked_layers(40))
    fitted = fit_linear_maps(store, np.arange(30), PHASES["cuts"])
    tokens = torch.from_numpy(store.read(slice(0, 2), (1, 2)))
    whole = fitted["linear"](tokens[:, 0], 1, 4)
    assert whole.shape == (2, 3, 6, 16)
    with pytest.raises(ConfigError, match=r"layer 3 is made straight from layer 1, .* got 2"):
        fitted["linear"](tokens[:, 1], 2, 4)
    assert fitted["power"](tokens[:, 1], 2, 4).shape == (2, 2, 6, 16)


@pytest.mark.parametrize(
    ("options", "rows", "ridge", "message"),
    [
        ({}, 0, None, "a linear map is fitted to at least one row; got none"),
        ({}, 9, -1.0, "a ridge is at least 0; got -1.0"),
        (
            {"layers": (0, 1, 2, 4)},
            9,
            None,
            r"map of every layer takes the teacher's layers 0-4; the store lacks \[3\]",
        ),
        ({"kinds": ["cls"]}, 9, None, "a linear map of every token takes all tokens"),
    ],
    ids=["no-rows", "ridge", "layers", "kinds"],
)
def test_what_makes_no_map_is_refused(
    make_store: MakeStore, options: dict[str, Any], rows: int, ridge: float | None, message: str
) -> None:
    store = make_store("s.zarr", tokens=crooked_layers(16), **options)
    with pytest.raises(ConfigError, match=message):
        fit_linear_maps(store, np.arange(rows), PHASES["cuts"], ridge=ridge)
