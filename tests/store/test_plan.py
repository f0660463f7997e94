from __future__ import annotations

import math
import tracemalloc
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from activault.store.plan import EpochPlan, plan_epoch

ROWS = st.sets(st.integers(0, 300), min_size=1).map(lambda rows: np.array(sorted(rows)))
SIZES = st.integers(1, 70)


def make(rows: np.ndarray, **changes: Any) -> EpochPlan:
    options: dict[str, Any] = {"chunk_rows": 8, "batch_size": 10, "pool_rows": 64, "seed": 0, "epoch": 0}
    return plan_epoch(rows, **options | changes)


def batches(plan: EpochPlan) -> list[np.ndarray]:
    spans = [plan.span(batch) for batch in range(plan.num_batches)]
    return [plan.rows[span.start : span.stop] for span in spans]


@given(ROWS, SIZES, SIZES, SIZES, st.booleans())
def test_every_row_comes_exactly_once(
    rows: np.ndarray, chunk_rows: int, batch_size: int, pool_rows: int, shuffle: bool
) -> None:
    plan = make(rows, chunk_rows=chunk_rows, batch_size=batch_size, pool_rows=pool_rows, shuffle=shuffle)
    found = batches(plan)
    assert sorted(np.concatenate(found)) == rows.tolist()
    assert {len(batch) for batch in found[:-1]} <= {batch_size}
    assert plan.num_batches == math.ceil(len(rows) / batch_size)


@given(ROWS, SIZES, SIZES)
def test_every_chunk_is_in_one_pool_and_pools_are_bounded(
    rows: np.ndarray, chunk_rows: int, pool_rows: int
) -> None:
    plan = make(rows, chunk_rows=chunk_rows, pool_rows=pool_rows)
    chunks = np.concatenate([pool.chunks for pool in plan.pools])
    assert sorted(chunks) == np.unique(rows // chunk_rows).tolist()
    for pool in plan.pools:
        assert set(pool.rows // chunk_rows) == set(pool.chunks)
        assert len(pool.rows) <= pool_rows or len(pool.chunks) == 1


@given(ROWS, SIZES, SIZES)
def test_a_batch_knows_its_pools(rows: np.ndarray, batch_size: int, pool_rows: int) -> None:
    plan = make(rows, batch_size=batch_size, pool_rows=pool_rows)
    for batch in range(plan.num_batches):
        places = set(plan.span(batch))
        touched = [n for n, pool in enumerate(plan.pools) if places & set(range(pool.start, pool.stop))]
        assert list(plan.pools_of(batch)) == touched


@given(ROWS, st.integers(0, 2**63), st.integers(0, 10**6))
def test_the_order_is_a_function_of_seed_and_epoch(rows: np.ndarray, seed: int, epoch: int) -> None:
    assert np.array_equal(make(rows, seed=seed, epoch=epoch).rows, make(rows, seed=seed, epoch=epoch).rows)


def test_epochs_and_seeds_differ() -> None:
    rows = np.arange(300)
    orders = [make(rows, seed=seed, epoch=epoch).rows.tolist() for seed in range(3) for epoch in range(3)]
    assert len({tuple(order) for order in orders}) == 9


def test_batches_differ_between_epochs_not_only_their_order() -> None:
    rows = np.arange(300)
    first, second = ({frozenset(batch.tolist()) for batch in batches(make(rows, epoch=e))} for e in (0, 1))
    assert not first & second


def test_without_shuffling_rows_ascend() -> None:
    rows = np.arange(3, 300, 7)
    assert make(rows, shuffle=False).rows.tolist() == rows.tolist()


def test_a_smaller_last_batch_can_be_dropped() -> None:
    assert make(np.arange(35), drop_last=True).num_batches == 3
    assert make(np.arange(40), drop_last=True).num_batches == 4


def test_class_ordered_rows_mix_within_a_pool() -> None:
    labels = np.arange(4096) // 128  # 32 classes one after the other
    plan = make(np.arange(4096), chunk_rows=32, batch_size=64, pool_rows=2048)

    def entropy(values: np.ndarray) -> float:
        share = np.unique(values, return_counts=True)[1] / len(values)
        return float(-(share * np.log2(share)).sum())

    ours = np.mean([entropy(labels[batch]) for batch in batches(plan)])
    shuffled = np.random.default_rng(0).permutation(4096).reshape(-1, 64)
    full = np.mean([entropy(labels[batch]) for batch in shuffled])
    assert ours > 0.95 * full


def test_no_rows_make_no_pools() -> None:
    plan = make(np.empty(0, np.int64))
    assert (plan.pools, plan.num_batches, len(plan.rows)) == ((), 0, 0)


@given(ROWS, SIZES, SIZES, st.booleans())
def test_pools_hold_what_fits_and_follow_each_other(
    rows: np.ndarray, chunk_rows: int, pool_rows: int, shuffle: bool
) -> None:
    plan = make(rows, chunk_rows=chunk_rows, pool_rows=pool_rows, shuffle=shuffle)
    assert np.array_equal(np.concatenate([pool.rows for pool in plan.pools]), plan.rows)
    assert [pool.start for pool in plan.pools] == [0, *(pool.stop for pool in plan.pools[:-1])]
    for pool, after in pairwise(plan.pools):
        next_chunk = np.count_nonzero(after.rows // chunk_rows == after.chunks[0])
        assert len(pool.rows) + next_chunk > pool_rows


def test_the_order_stays_for_ever() -> None:
    plan = make(np.arange(1, 21), chunk_rows=4, pool_rows=8, seed=1, epoch=2)
    assert plan.rows.tolist() == [2, 17, 18, 1, 19, 20, 16, 3, 12, 10, 15, 8, 11, 9, 14, 13, 5, 4, 6, 7]


def test_many_rows_are_planned_within_twice_their_memory() -> None:
    rows = np.delete(np.arange(2_000_000), [5, 64, 65, 1_999_999])
    tracemalloc.start()
    try:
        plan = make(rows, chunk_rows=32, batch_size=64, pool_rows=20_000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * rows.nbytes
    assert np.array_equal(np.sort(plan.rows), rows)
    assert plan.num_batches == 31_250
