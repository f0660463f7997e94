"""How many rows in the order of their classes are mixed at a time, and held: as well as by a full shuffle.

What a loader does of it is in `test_mixing_loader.py`.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from activault.store import mixing
from activault.store.mixing import Mixing, choose_mixing, entropy_share, shortcomings
from activault.store.plan import EpochPlan, plan_epoch

from .test_plan import batches, entropy

VIT_B = 8 * 261 * 768 * 2
"""Bytes of a row in a pool: ViT-B with registers at 224 pixels, 8 layers."""
VIT_S = 8 * 50 * 384 * 2
"""ViT-S at 98 pixels."""
VIT_L = 8 * 1374 * 1024 * 2
"""ViT-L at 518 pixels, with 4 rows a chunk."""


def chosen(rows: np.ndarray, draws: np.ndarray | None = None, **changes: Any) -> Mixing:
    options: dict[str, Any] = {
        "chunk_rows": 32,
        "row_bytes": VIT_B,
        "in_source_order": True,
        "pool_bytes": None,
        "mixed_rows": 64,
        "reads_per_chunk": None,
    }
    return choose_mixing(rows, draws, **options | changes)


def planned(rows: np.ndarray, mixed: Mixing, chunk_rows: int = 32, epoch: int = 0) -> EpochPlan:
    return plan_epoch(
        rows,
        chunk_rows=chunk_rows,
        window_rows=mixed.window_rows,
        seed=0,
        epoch=epoch,
        reads_per_chunk=mixed.reads_per_chunk,
        pool_rows=mixed.pool_rows,
    )


def of_a_full_shuffle(plan: EpochPlan, labels: np.ndarray, batch_size: int) -> float:
    """Mean label entropy of an epoch's whole batches over that of a full shuffle's."""
    shuffled = np.random.default_rng(1).permutation(plan.drawn)
    starts = range(0, len(shuffled) - batch_size + 1, batch_size)
    full = np.mean([entropy(labels[shuffled[start : start + batch_size]]) for start in starts])
    return float(np.mean([entropy(labels[rows]) for rows in batches(plan, batch_size)[: len(starts)]]) / full)


SHAPES = [
    pytest.param(VIT_B, 32, 26_000, 1000, id="ViT-B 224, 26 rows a class"),
    pytest.param(VIT_B, 32, 26_000, 20, id="ViT-B 224, 1,300 rows a class"),
    pytest.param(VIT_B, 32, 5_000, 500, id="ViT-B 224, 156 chunks"),
    pytest.param(VIT_B, 32, 1_500, 300, id="ViT-B 224, 47 chunks"),
    pytest.param(VIT_S, 64, 20_000, 200, id="ViT-S 98"),
    pytest.param(VIT_L, 4, 6_000, 1000, id="ViT-L 518"),
]


@pytest.mark.parametrize("chosen_rows", [1.0, 0.95, 0.3])
@pytest.mark.parametrize(("row_bytes", "chunk_rows", "num_rows", "num_classes"), SHAPES)
def test_batches_of_class_ordered_rows_are_mixed_within_2_percent(
    row_bytes: int, chunk_rows: int, num_rows: int, num_classes: int, chosen_rows: float
) -> None:
    labels = np.arange(num_rows) * num_classes // num_rows
    rows = np.flatnonzero(np.random.default_rng(0).random(num_rows) < chosen_rows)
    mixed = chosen(rows, row_bytes=row_bytes, chunk_rows=chunk_rows, pool_bytes=1 << 30)
    plan = planned(rows, mixed, chunk_rows)
    assert sorted(plan.rows) == rows.tolist()
    assert plan.largest_pool <= mixed.pool_rows
    assert of_a_full_shuffle(plan, labels, 64) >= 0.98
    assert not [told for told in shortcomings(mixed, plan, labels, 64) if "mixed less" in told]


@pytest.mark.parametrize(("batch_size", "mixed_rows"), [(128, 128), (256, 256), (16, 16)])
def test_batches_of_other_sizes_are_mixed_by_as_many_chunks(batch_size: int, mixed_rows: int) -> None:
    labels, rows = np.arange(26_000) // 26, np.arange(26_000)
    plan = planned(rows, chosen(rows, mixed_rows=mixed_rows))
    assert of_a_full_shuffle(plan, labels, batch_size) >= 0.98


def test_rows_drawn_by_class_are_mixed_too() -> None:
    """Of 200 classes in order, of 5 to 255 rows, each is drawn as often as any other."""
    sizes = 5 + np.arange(200) * 250 // 199
    labels = np.repeat(np.arange(200), sizes)
    rows = np.arange(len(labels))
    draws = 1 / sizes[labels]
    drawn = np.sort(np.random.default_rng(0).choice(rows, len(rows), p=draws / draws.sum()))
    assert of_a_full_shuffle(planned(drawn, chosen(rows, draws)), labels, 64) >= 0.98


def test_a_window_of_few_chunks_is_told() -> None:
    labels, rows = np.arange(26_000) // 26, np.arange(26_000)
    mixed = chosen(rows, mixed_rows=8, pool_bytes=64 << 30)
    plan = planned(rows, mixed)
    share = of_a_full_shuffle(plan, labels, 64)
    assert share < 0.75
    assert entropy_share(plan, labels, 64) == pytest.approx(share, abs=0.02)
    told = next(shortcomings(mixed, plan, labels, 64))
    assert re.search(
        r"labels of 64 rows have (69|7\d)% of its entropy where 29\d rows .* mixed_rows=64, ", told
    )
    assert "mixed_rows=16," in next(shortcomings(mixed, plan, labels, 16))
    assert list(shortcomings(mixed, plan, np.zeros_like(labels), 64)) == []  # no labels, nothing to mix


@pytest.mark.parametrize(
    ("available", "reads"), [(200 << 30, 1), (30 << 30, 2), (16 << 30, 4), (1 << 30, 14)], ids=str
)
def test_the_order_does_not_depend_on_memory_and_reads_do(
    monkeypatch: pytest.MonkeyPatch, available: int, reads: int
) -> None:
    """A window of 64 chunks or a few more of ViT-B rows takes 7 GB twice."""
    rows, labels = np.arange(20_000), np.arange(20_000) // 20
    monkeypatch.setattr(mixing, "available_bytes", lambda: available)
    mixed, elsewhere = chosen(rows), chosen(rows, pool_bytes=100 << 30)
    plan, other = planned(rows, mixed), planned(rows, elsewhere)
    assert mixed.identity() == elsewhere.identity()
    assert np.array_equal(plan.rows, other.rows)
    assert 2 * mixed.pool_rows * VIT_B <= max(1 << 30, available // 4)
    read = sum(len(np.unique(plan.pool(number).rows // 32)) for number in range(plan.num_pools))
    assert read / 625 == pytest.approx(reads, rel=0.05)
    told = list(shortcomings(mixed, plan, labels, 64))
    assert len(told) == (reads > 4)
    if told:
        needed = r"takes 14\.\d GB of memory, and pools get 1\.1 GB here"
        assert re.search(
            rf"{needed}: every chunk is read 14 times an epoch; run it with more memory", told[0]
        )


def test_a_chunk_is_read_for_each_of_its_rows_at_most() -> None:
    """Of ViT-L at 518 pixels: 23 rows fit where 260 are mixed, in chunks of 4."""
    rows, labels = np.arange(6_000), np.arange(6_000) // 6
    mixed = chosen(rows, row_bytes=VIT_L, chunk_rows=4, pool_bytes=1 << 30)
    plan = planned(rows, mixed, chunk_rows=4)
    assert mixed.window_rows > 10 * mixed.pool_rows
    assert list(shortcomings(mixed, plan, labels, 64)) == []


@pytest.mark.parametrize(
    ("num_rows", "changes", "window_rows"),
    [
        (26_000, {}, 2199),
        (1_500, {}, 1532),
        (26_000, {"reads_per_chunk": 2}, 1056),
        (26_000, {"mixed_rows": 128}, 4366),
        (26_000, {"in_source_order": False}, 167),
        (26_000, {"in_source_order": False, "pool_bytes": 1 << 31}, 334),
    ],
    ids=str,
)
def test_windows_stay_for_ever(num_rows: int, changes: dict[str, Any], window_rows: int) -> None:
    """Runs that are begun without saying it must mix their rows as they do today."""
    assert chosen(np.arange(num_rows), **changes).window_rows == window_rows


def test_memory_is_asked_for_only_where_it_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked() -> int:
        raise AssertionError

    monkeypatch.setattr(mixing, "available_bytes", asked)
    rows = np.arange(20_000)
    for one in (chosen(rows, row_bytes=VIT_S // 2), chosen(rows, in_source_order=False), chosen(rows[:150])):
        assert one.window_rows == one.pool_rows == (1 << 29) // one.row_bytes
    with pytest.raises(AssertionError):
        chosen(rows)


@pytest.mark.parametrize("in_source_order", [False, True])
@pytest.mark.parametrize("reads", [None, 3])
@pytest.mark.parametrize("pool_bytes", [None, 1 << 28])
def test_a_state_brings_what_was_not_asked_for(
    in_source_order: bool, reads: int | None, pool_bytes: int | None
) -> None:
    here = chosen(
        np.arange(9_000), in_source_order=in_source_order, reads_per_chunk=reads, pool_bytes=pool_bytes
    )
    there = here.as_in({"version": 2, "pool_rows": 77, "reads_per_chunk": 4})
    asks_pool = pool_bytes is not None and not in_source_order
    assert there.window_rows == (here.window_rows if asks_pool else 77)
    assert there.reads_per_chunk == (reads or 4)
    assert there.pool_rows == here.pool_rows  # memory is this machine's
    assert here.as_in({"version": 1, "pool_rows": 77}).reads_per_chunk == (reads or 1)
    for wrong in ({}, {"pool_rows": -1}, {"pool_rows": "many"}, {"pool_rows": True}, None):
        assert here.as_in(wrong).window_rows == here.window_rows  # type: ignore[arg-type]
