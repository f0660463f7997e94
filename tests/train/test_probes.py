"""Probes on synthetic layers whose accuracies are known in advance."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from activault.store import Store
from activault.store.errors import ConfigError
from activault.store.layout import TokenLayout
from activault.train.metrics import evaluate_rollout
from activault.train.probes import pooled_features, probe
from activault.train.raptor import Raptor, RaptorConfig

CONFIG = RaptorConfig(dim=16, num_heads=2, num_layers=4, layer_scale=0.1)
LAYOUT = TokenLayout(num_cls=1, num_registers=1, grid=(2, 2))
MakeStore = Callable[..., Store]
TRAIN, TEST = np.arange(0, 90), np.arange(90, 120)


class Known(Raptor):
    """A surrogate whose last layer is a known function of layer 0."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__(CONFIG)
        self.function = function

    def last(self, tokens: Tensor, start: int = 0) -> Tensor:
        return self.function(tokens)


def turn(tokens: Tensor) -> Tensor:
    """The teacher: channel c becomes channel c + 1."""
    return tokens.roll(1, dims=-1)


PERFECT, TURNED, DEAD = Known(turn), Known(lambda tokens: tokens.roll(2, dims=-1)), Known(torch.zeros_like)


@pytest.fixture
def coded(make_store: MakeStore) -> Store:
    """Class c of 3 lights channels 0, 5 or 10 at layer 0 and the next one at layer 4; registers say
    nothing."""
    rng = np.random.default_rng(0)
    labels = np.arange(120) % 3
    first = rng.normal(size=(120, 6, 16)) * 0.05
    first[np.arange(120)[:, None], np.array([0, 2, 3, 4, 5]), (labels * 5)[:, None]] += 1
    layers = np.stack([first] * 4 + [np.roll(first, 1, axis=-1)]).astype(np.float32)
    return make_store("coded.zarr", tokens=layers, labels=[f"c{label}" for label in labels])


def test_known_accuracies(coded: Store) -> None:
    report = probe(coded, PERFECT, nn.Identity(), {"turned": TURNED, "dead": DEAD}, TRAIN, TEST, batch_size=7)
    assert list(report.scores) == ["teacher", "surrogate", "identity", "turned", "dead"]
    for name in ("teacher", "surrogate"):
        score = report.scores[name]
        assert (score.frozen_accuracy, score.refitted_accuracy) == (1, 1)
        assert (score.frozen_retention, score.refitted_retention) == (1, 1)
    for name in ("identity", "turned"):
        assert report.scores[name].refitted_accuracy == 1, (
            "as separable as the teacher, under a head of its own"
        )
        assert report.scores[name].frozen_accuracy < 0.6, "the teacher's head looks at other channels"
    assert report.scores["dead"].refitted_accuracy == report.chance == pytest.approx(1 / 3)
    assert report.classes == ("c0", "c1", "c2")
    assert (report.num_train, report.num_test) == (90, 30)
    assert not report.beats_baselines, "a baseline ties under the refitted head"
    assert probe(coded, PERFECT, nn.Identity(), {}, TRAIN, TEST).to_dict()["scores"]["surrogate"] == {
        "frozen_accuracy": 1.0,
        "refitted_accuracy": 1.0,
        "frozen_retention": 1.0,
        "refitted_retention": 1.0,
    }


def test_batches_do_not_matter_and_few_rows_are_held(coded: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, tuple[int, ...]]] = []
    read = Store.read

    def spy(self: Store, rows: np.ndarray, layers: tuple[int, ...], tokens: str = "all") -> np.ndarray:
        asked.append((len(rows), tuple(layers)))
        return read(self, rows, layers, tokens)

    monkeypatch.setattr(Store, "read", spy)
    told: list[tuple[int, int]] = []
    first = probe(
        coded,
        TURNED,
        nn.LayerNorm(16),
        {},
        TRAIN,
        TEST,
        batch_size=50,
        progress=lambda *state: told.append(state),
    )
    assert asked == [(50, (0, 4)), (50, (0, 4)), (20, (0, 4))]
    assert told == [(50, 120), (100, 120), (120, 120)]
    assert probe(coded, TURNED, nn.LayerNorm(16), {}, TRAIN, TEST, batch_size=11) == first


@pytest.mark.parametrize(
    ("layout", "width"), [(LAYOUT, 32), (TokenLayout(num_cls=0, num_registers=2, grid=(2, 2)), 16)]
)
def test_features_are_cls_and_mean_patch_after_the_norm(layout: TokenLayout, width: int) -> None:
    norm = nn.LayerNorm(16, eps=1e-6)
    nn.init.normal_(norm.weight)
    tokens = torch.randn(3, 6, 16)
    features = pooled_features(tokens, norm, layout)
    normed = norm(tokens)
    expected = normed[:, 2:].mean(1)
    if layout.num_cls:
        expected = torch.cat([normed[:, 0], expected], 1)
    assert features.shape == (3, width)
    torch.testing.assert_close(features, expected)


def test_rows_without_a_label_are_left_out(make_store: MakeStore) -> None:
    labels = [None if row % 5 == 0 else f"c{row % 2}" for row in range(40)]
    store = make_store("some.zarr", labels=labels)
    report = probe(store, PERFECT, nn.LayerNorm(16), {}, np.arange(30), np.arange(30, 40))
    assert (report.num_train, report.num_test) == (24, 8)


@pytest.mark.parametrize(
    ("options", "train", "test", "message"),
    [
        ({"labels": [None] * 40}, range(30), range(30, 40), r"needs labelled rows .* got 0 and 0"),
        (
            {"labels": ["cat"] * 40},
            range(30),
            range(30, 40),
            r"at least 2 labels apart; every training row is 'cat'",
        ),
        ({}, range(30), range(0), r"needs labelled rows to train and to test on; got 30 and 0"),
        ({}, range(30), range(29, 40), r"disjoint; 1 rows are in both, row 29 first"),
        ({"labels": ["a", "b"] * 19 + ["c"] * 2}, range(30), range(30, 40), r"'c' is in none"),
        (
            {"layers": (1, 2, 4)},
            range(30),
            range(30, 40),
            r"closed loop starts from layer 0, .* layers \[1, 2, 4\]",
        ),
        (
            {"layers": (0, 1)},
            range(30),
            range(30, 40),
            r"probe reads the last layer, .* extract with layer 4",
        ),
        (
            {"kinds": ["cls"]},
            range(30),
            range(30, 40),
            r"closed loop takes all tokens of a layer; this store was made without",
        ),
    ],
    ids=["no-labels", "one-class", "no-test", "overlap", "unseen", "no-first", "no-last", "kinds"],
)
def test_what_makes_no_task_is_refused(
    make_store: MakeStore, options: dict[str, object], train: range, test: range, message: str
) -> None:
    store = make_store("bad.zarr", **options)
    with pytest.raises(ConfigError, match=message):
        probe(store, PERFECT, nn.LayerNorm(16), {}, np.array(train, np.int64), np.array(test, np.int64))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rollout_is_measured_against_the_store(make_store: MakeStore, dtype: str) -> None:
    store, model = make_store("r.zarr", dtype=dtype), Raptor(CONFIG).eval()
    rows = np.array([3, 30, 7, 21, 22])
    metrics = evaluate_rollout(model, store, rows, batch_size=2)
    layers = store.read(rows, range(5)).astype(np.float64)
    with torch.no_grad():
        made = model(torch.from_numpy(layers[:, 0].astype(np.float32))).numpy()
    for layer in range(1, 5):
        x, xhat = layers[:, layer, 2:], made[:, layer - 1, 2:]
        expected = 1 - ((x - xhat) ** 2).sum() / ((x - x.mean((0, 1))) ** 2).sum()
        assert metrics.r2["patches"][layer - 1] == pytest.approx(expected, rel=1e-5)
    assert metrics.layers == (1, 2, 3, 4)


def test_rollout_needs_every_layer(make_store: MakeStore) -> None:
    store = make_store("r.zarr", layers=(0, 1, 2, 4))
    with pytest.raises(
        ConfigError, match=r"a closed loop takes the teacher's layers 0-4; the store lacks \[3\]"
    ):
        evaluate_rollout(Raptor(CONFIG), store, store.valid_rows)
