from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from activault.store.plan import EpochPlan, Pool, plan_epoch

ROWS = st.sets(st.integers(0, 300), min_size=1).map(lambda rows: np.array(sorted(rows)))
SIZES = st.integers(1, 70)


def make(rows: np.ndarray, **changes: Any) -> EpochPlan:
    options: dict[str, Any] = {"chunk_rows": 8, "window_rows": 64, "seed": 0, "epoch": 0}
    return plan_epoch(rows, **options | changes)


def batches(plan: EpochPlan, size: int = 10) -> list[np.ndarray]:
    rows = plan.rows
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def pools(plan: EpochPlan) -> list[Pool]:
    return [plan.pool(number) for number in range(plan.num_pools)]


def entropy(labels: np.ndarray) -> float:
    share = np.unique(labels, return_counts=True)[1] / len(labels)
    return float(-(share * np.log2(share)).sum())


@given(ROWS, SIZES, SIZES, st.booleans(), st.integers(1, 5))
def test_every_row_comes_exactly_once(
    rows: np.ndarray, chunk_rows: int, window_rows: int, shuffle: bool, reads: int
) -> None:
    plan = make(rows, chunk_rows=chunk_rows, window_rows=window_rows, shuffle=shuffle, reads_per_chunk=reads)
    assert sorted(plan.rows) == rows.tolist()
    assert plan.num_rows == len(rows)


@given(ROWS, SIZES, SIZES, st.booleans())
def test_every_chunk_is_in_one_pool_and_pools_are_bounded(
    rows: np.ndarray, chunk_rows: int, window_rows: int, shuffle: bool
) -> None:
    plan = make(rows, chunk_rows=chunk_rows, window_rows=window_rows, shuffle=shuffle)
    chunks = [np.unique(pool.rows // chunk_rows) for pool in pools(plan)]
    assert sorted(np.concatenate(chunks)) == np.unique(rows // chunk_rows).tolist()
    for pool, members in zip(pools(plan), chunks, strict=True):
        assert len(pool.rows) <= window_rows or len(members) == 1
    assert plan.largest_pool == max(len(pool.rows) for pool in pools(plan))


@given(ROWS, SIZES, SIZES)
def test_a_span_knows_its_pools(rows: np.ndarray, size: int, window_rows: int) -> None:
    plan = make(rows, window_rows=window_rows)
    for start in range(0, len(rows), size):
        places = range(start, min(start + size, len(rows)))
        touched = [n for n, pool in enumerate(pools(plan)) if set(places) & set(range(pool.start, pool.stop))]
        assert list(plan.pools_of(places)) == touched


@given(ROWS, SIZES, SIZES, st.booleans())
def test_a_pool_is_the_same_whichever_was_asked_for_before(
    rows: np.ndarray, chunk_rows: int, window_rows: int, shuffle: bool
) -> None:
    plan = make(rows, chunk_rows=chunk_rows, window_rows=window_rows, shuffle=shuffle)
    for number in reversed(range(plan.num_pools)):
        one = make(rows, chunk_rows=chunk_rows, window_rows=window_rows, shuffle=shuffle).pool(number)
        assert np.array_equal(plan.pool(number).rows, one.rows)
        assert plan.rows[one.start : one.stop].tolist() == one.rows.tolist()
        assert ((one.positions >= 0) & (one.positions < 1)).all()


@given(ROWS, st.integers(0, 2**63), st.integers(0, 10**6))
def test_the_order_is_a_function_of_seed_and_epoch(rows: np.ndarray, seed: int, epoch: int) -> None:
    assert np.array_equal(make(rows, seed=seed, epoch=epoch).rows, make(rows, seed=seed, epoch=epoch).rows)


def test_epochs_and_seeds_differ() -> None:
    rows = np.arange(300)
    orders = [make(rows, seed=seed, epoch=epoch).rows.tolist() for seed in range(3) for epoch in range(3)]
    assert len({tuple(order) for order in orders}) == 9


def test_batches_differ_between_epochs_not_only_their_order() -> None:
    """Defect of the reference: the same groups of rows in every epoch, shuffled among themselves."""
    rows = np.arange(300)
    first, second = ({frozenset(batch.tolist()) for batch in batches(make(rows, epoch=e))} for e in (0, 1))
    assert not first & second


def test_without_shuffling_rows_ascend() -> None:
    rows = np.arange(3, 300, 7)
    assert make(rows, shuffle=False).rows.tolist() == rows.tolist()


@pytest.mark.parametrize("num_classes", [10, 100, 1000])
@pytest.mark.parametrize("batch_size", [32, 64, 128])
def test_class_ordered_rows_mix_as_in_a_full_shuffle(num_classes: int, batch_size: int) -> None:
    """Where a pool has a chunk, or a part of one, for each row of a batch."""
    num_rows = 40_000
    labels = np.arange(num_rows) * num_classes // num_rows
    rows = np.random.default_rng(0).permutation(num_rows)
    full = np.mean([entropy(labels[rows[start : start + batch_size]]) for start in range(0, 20_000, 64)])
    for window_rows, reads in ((36 * batch_size, 1), (9 * batch_size, 4)):
        plan = make(np.arange(num_rows), chunk_rows=32, window_rows=window_rows, reads_per_chunk=reads)
        found = np.array([entropy(labels[batch]) for batch in batches(plan, batch_size)])
        assert found.mean() > 0.98 * full
        assert found[:-1].min() > 0.8 * full


def test_a_pool_of_few_chunks_mixes_less() -> None:
    """What the test above would see of a plan that does not spread."""
    labels = np.arange(40_000) // 400
    plan = make(np.arange(40_000), chunk_rows=32, window_rows=160)
    assert np.mean([entropy(labels[batch]) for batch in batches(plan, 64)]) < 3


@given(ROWS, SIZES, SIZES)
def test_any_run_has_its_share_of_every_unit(rows: np.ndarray, chunk_rows: int, size: int) -> None:
    """Within two rows, of whole pools."""
    plan = make(rows, chunk_rows=chunk_rows, window_rows=120)
    for pool in pools(plan):
        numbers, totals = np.unique(pool.rows // chunk_rows, return_counts=True)
        for start in range(max(1, len(pool.rows) - size)):
            run = pool.rows[start : start + size] // chunk_rows
            counts = np.array([np.count_nonzero(run == number) for number in numbers])
            assert np.abs(counts - totals * len(run) / len(pool.rows)).max() < 2


def test_parts_of_a_chunk_come_far_apart() -> None:
    plan = make(np.arange(8000), chunk_rows=32, window_rows=800, reads_per_chunk=4)
    by_pool = [np.unique(pool.rows // 32, return_counts=True) for pool in pools(plan)]
    times = {chunk: [n for n, (found, _) in enumerate(by_pool) if chunk in found] for chunk in range(250)}
    assert {len(numbers) for numbers in times.values()} == {4}
    assert min(np.diff(numbers).min() for numbers in times.values()) >= 2
    assert {count for _, counts in by_pool for count in counts} == {8}


def test_copies_of_a_row_come_in_different_pools() -> None:
    rows = np.sort(np.concatenate([np.arange(1000), np.repeat([5, 500, 501], 3)]))
    plan = make(rows, chunk_rows=32, window_rows=128)
    assert sorted(plan.rows) == rows.tolist()
    for pool in pools(plan):
        assert len(pool.rows) == len(set(pool.rows))


def test_more_copies_than_pools_still_fit_into_them() -> None:
    rows = np.sort(np.concatenate([np.arange(64), np.full(2000, 5)]))
    plan = make(rows, chunk_rows=32, window_rows=128)
    assert sorted(plan.rows) == rows.tolist()
    assert plan.largest_pool <= 128


def test_no_rows_make_no_pools() -> None:
    plan = make(np.empty(0, np.int64))
    assert (plan.num_pools, plan.num_rows, len(plan.rows), plan.largest_pool) == (0, 0, 0, 0)


@given(ROWS, SIZES, SIZES, st.booleans())
def test_pools_follow_each_other_and_are_few(
    rows: np.ndarray, chunk_rows: int, window_rows: int, shuffle: bool
) -> None:
    plan = make(rows, chunk_rows=chunk_rows, window_rows=window_rows, shuffle=shuffle)
    found = pools(plan)
    assert [pool.start for pool in found] == [0, *(pool.stop for pool in found[:-1])]
    assert all(len(pool.rows) for pool in found)
    largest_unit = max(np.unique(rows // chunk_rows, return_counts=True)[1])
    least = len(rows) / max(1, window_rows - largest_unit + 1)
    assert plan.num_pools <= 1.25 * least + 1


def test_pools_are_as_large_as_one_another() -> None:
    plan = make(np.arange(3200), chunk_rows=32, window_rows=1000)
    assert [len(pool.rows) for pool in pools(plan)] == [800, 800, 800, 800]


def test_the_order_stays_for_ever() -> None:
    plan = make(np.arange(1, 21), chunk_rows=4, window_rows=8, seed=1, epoch=2)
    assert plan.rows.tolist() == [18, 8, 16, 11, 17, 9, 19, 10, 1, 20, 3, 2, 13, 4, 12, 5, 14, 7, 15, 6]


def test_many_rows_are_planned_in_less_than_their_memory() -> None:
    rows = np.delete(np.arange(2_000_000), [5, 64, 65, 1_999_999])
    tracemalloc.start()
    try:
        plan = make(rows, chunk_rows=32, window_rows=20_000)
        for number in range(0, plan.num_pools, 10):
            plan.pool(number)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < rows.nbytes
    assert np.array_equal(np.sort(plan.rows), rows)
