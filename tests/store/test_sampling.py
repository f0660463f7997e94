from __future__ import annotations

import json
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from activault.store import ConfigError, Store
from activault.store.sampling import class_weights, draw_rows

from .test_loader import make, rows_of

WEIGHTS = st.lists(st.floats(0, 1e6), min_size=1, max_size=60).filter(lambda weights: sum(weights) > 0)


@given(WEIGHTS, st.integers(0, 2**60), st.integers(0, 100))
def test_every_row_is_drawn_by_its_share_up_or_down(weights: list[float], seed: int, epoch: int) -> None:
    share = np.array(weights) / np.sum(weights) * len(weights)
    rows = np.arange(len(weights)) * 3
    drawn = draw_rows(rows, np.array(weights), seed, epoch)
    assert len(drawn) == len(rows)
    assert (np.diff(drawn) >= 0).all()
    counts = np.array([np.count_nonzero(drawn == row) for row in rows])
    assert (np.abs(counts - share) < 1 + 1e-6).all()
    assert np.array_equal(drawn, draw_rows(rows, np.array(weights), seed, epoch))


def test_which_rows_are_rounded_up_changes_from_epoch_to_epoch() -> None:
    weights = np.where(np.arange(100) < 50, 1.0, 3.0)
    epochs = [draw_rows(np.arange(100), weights, 0, epoch) for epoch in range(400)]
    counts = np.mean([np.bincount(drawn, minlength=100) for drawn in epochs], axis=0)
    assert np.abs(counts - weights / 2).max() < 0.1
    pairs = np.corrcoef([np.bincount(drawn, minlength=100) for drawn in epochs], rowvar=False)
    assert np.abs(pairs[np.triu_indices(100, 1)]).max() < 0.3


def test_a_weight_of_nothing_leaves_a_row_out(store: Store) -> None:
    weights = np.where(np.arange(50) < 10, 1, 0)
    rows = rows_of(make(store, weights=weights))
    assert len(rows) == 48
    assert set(rows) == {row for row in range(10) if row != 7}
    assert {rows.count(row) for row in set(rows)} == {5, 6}


def test_weighted_batches_have_the_values_of_their_rows(store: Store) -> None:
    whole = store.read(slice(0, 50), [0, 2, 4])
    for batch in make(store, weights=np.arange(50) ** 2):
        np.testing.assert_array_equal(batch.tokens.numpy(), whole[batch.rows.numpy()])


def test_balanced_classes_come_equally_often(store: Store) -> None:
    few = [0, 1, 4, 5, 8, 11, 14, 17, 23, 26]  # one of class 0, two of class 1, seven of class 2
    loader = make(store, rows=few, balanced=True, batch_size=5)
    counts = np.zeros(3)
    for batch in islice(loader.stream(), 2 * 60):
        counts += np.bincount(batch.labels, minlength=3)
    np.testing.assert_allclose(counts, 200, atol=15)


def test_a_weighted_epoch_resumes_anywhere(store: Store) -> None:
    whole = [batch.rows.tolist() for batch in make(store, balanced=True, rows=range(8, 20))]
    for cut in range(len(whole)):
        first, second = (make(store, balanced=True, rows=range(8, 20)) for _ in range(2))
        taken = [batch.rows.tolist() for batch in islice(first, cut)]
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert taken + [batch.rows.tolist() for batch in second] == whole


def test_the_order_of_weighted_rows_is_of_seed_and_epoch(store: Store) -> None:
    weights = np.arange(50)
    orders = [rows_of(make(store, weights=weights, seed=seed)) for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": [1.0] * 48}, r"so 50 of them, whatever rows are chosen; got the shape \(48,\)"),
        ({"weights": [-1.0] * 50}, "weights are finite and not negative; row 0 has -1.0"),
        ({"weights": [np.nan] * 50}, "row 0 has nan"),
        ({"weights": [0.0] * 50}, "weights are above 0 for some of the chosen rows; all 48 are 0"),
        ({"weights": "many"}, "weights are one number a row of the store; got 'many'"),
        ({"weights": [1.0] * 50, "shuffle": False}, "leave out shuffle=False"),
        ({"weights": [1.0] * 50, "balanced": True}, "got both; leave one out"),
        ({"balanced": True}, r"1 of 48 have no label \(first: 3\); leave them out by rows"),
    ],
)
def test_unusable_weights_are_refused(store: Store, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(store, **changes)


def test_classes_weigh_the_same() -> None:
    labels = np.array([0, 0, 0, 2, 2, 5])
    weights = class_weights(labels, np.arange(6))
    assert [weights[labels == label].sum() for label in (0, 2, 5)] == pytest.approx([1, 1, 1])
