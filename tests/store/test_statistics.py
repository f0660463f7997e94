from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from activault.store.statistics import ChannelStats, Moments, merge


def statistics_of(values: np.ndarray) -> ChannelStats:
    """Statistics of float32 values (rows, tokens, dim), fed in two parts."""
    moments = Moments(values.shape[-1])
    for part in (values[: len(values) // 2], values[len(values) // 2 :]):
        moments.add(part)
    absmax = np.abs(values).max(axis=(0, 1), initial=0.0)
    return moments.finish(absmax.astype(np.float64))


def merge_all(parts: Iterable[ChannelStats], dim: int) -> ChannelStats:
    """Statistics of all parts together, in the order given, as completion merges shards."""
    return reduce(merge, parts, ChannelStats.empty(dim))


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(0, 2**32 - 1), st.floats(-1e3, 1e3))
def test_merged_statistics_are_those_of_all_together(sizes: list[int], seed: int, offset: float) -> None:
    random = np.random.default_rng(seed)
    parts = [(random.standard_normal((size, 3, 5)) + offset).astype(np.float32) for size in sizes]
    merged = merge_all(map(statistics_of, parts), 5)
    whole = np.concatenate(parts).astype(np.float64).reshape(-1, 5)
    assert merged.count == len(whole)
    np.testing.assert_allclose(merged.mean, whole.mean(axis=0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(merged.var, whole.var(axis=0), rtol=1e-8)
    assert np.array_equal(merged.absmax, np.abs(whole).max(axis=0))


@pytest.mark.parametrize("value", [0.1, -7.3e4, 3e-30])
def test_a_channel_that_never_changes_has_exactly_no_variance(value: float) -> None:
    values = np.full((1000, 1, 400), value, np.float32)
    assert not merge_all([statistics_of(values), statistics_of(values)], 400).var.any()


def test_statistics_of_nothing() -> None:
    nothing = merge_all([ChannelStats.empty(3), statistics_of(np.empty((0, 2, 3), np.float32))], 3)
    assert nothing.count == 0
    assert nothing.var.tolist() == [0.0, 0.0, 0.0]
