"""Rows in the order of their classes are mixed as by a full shuffle, whatever memory there is."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest

from activault.store import ActivationLoader, ConfigError, Store, TokenLayout, mixing, plan_samples, reading
from activault.store.mixing import Mixing, choose_mixing, entropy_share, shortcomings
from activault.store.plan import EpochPlan, plan_epoch

from .conftest import MakePlan
from .test_loader import ROW_BYTES, make, rows_of
from .test_loader_state import ranks, stepped
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


@pytest.fixture
def class_ordered(make_plan: MakePlan) -> Store:
    """8,192 rows of 512 classes in order, chunks of 32: 256 of them, in shards of 1,024 rows."""
    layout = TokenLayout(num_cls=1, num_registers=0, grid=(1, 1))
    plan = make_plan(
        row_seed=None,
        num_rows=8192,
        shard_rows=1024,
        chunk_rows=32,
        layers=(0,),
        kinds=("cls", "patches"),
        layout=layout,
    )
    labels = [f"class {row // 16:03d}" for row in range(8192)]
    plan.samples = plan_samples([f"{row:04d}.jpg" for row in range(8192)], labels, "images")
    return plan.write()


def like_vit_b(
    store: Store, monkeypatch: pytest.MonkeyPatch, available: int, **changes: Any
) -> ActivationLoader:
    """A loader whose pools hold as many rows as they would of ViT-B, with memory for so many rows to go."""
    row_bytes = 2 * 8 * 2
    monkeypatch.setattr(mixing, "_POOL_BYTES", 2 * 160 * row_bytes)
    monkeypatch.setattr(mixing, "available_bytes", lambda: available * row_bytes)
    return ActivationLoader(store, **{"layers": [0], "batch_size": 64} | changes)


def test_a_loader_mixes_class_ordered_rows_by_default(
    class_ordered: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each chunk is decoded once with memory for two windows; with less the order is the same."""
    decoded: list[int] = []
    original = reading.ChunkSource.read_parts

    def counted(self: reading.ChunkSource, parts: Any, array: Any, out: Any) -> None:
        decoded.extend(part.chunk for part in parts if array.kind == "patches")
        original(self, parts, array, out)

    monkeypatch.setattr(reading.ChunkSource, "read_parts", counted)
    loader = like_vit_b(class_ordered, monkeypatch, 4 * 2 * 2200)
    orders = [[batch.rows.numpy() for batch in loader] for _ in range(2)]
    assert sorted(decoded) == sorted(2 * list(range(256)))
    assert not {frozenset(rows.tolist()) for rows in orders[0]} & {
        frozenset(rows.tolist()) for rows in orders[1]
    }
    for order in orders:
        assert np.array_equal(np.sort(np.concatenate(order)), np.arange(8192))
        full = np.random.default_rng(0).permutation(8192).reshape(-1, 64) // 16
        assert np.mean([entropy(rows // 16) for rows in order]) >= 0.98 * np.mean(
            [entropy(rows) for rows in full]
        )

    decoded.clear()
    less = like_vit_b(class_ordered, monkeypatch, 4 * 2 * 700, num_threads=0)
    assert np.array_equal(np.concatenate([batch.rows.numpy() for batch in less]), np.concatenate(orders[0]))
    assert len(decoded) == 3 * 256
    assert less.state_dict() == like_vit_b(class_ordered, monkeypatch, 1).state_dict() | {"epoch": 1}


def test_a_loader_tells_once_what_it_cannot(class_ordered: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = like_vit_b(class_ordered, monkeypatch, 1)
    with pytest.warns(RuntimeWarning, match="every chunk is read 1[3-5] times an epoch") as told:
        next(iter(loader))
    assert len(told) == 1
    assert told[0].filename == __file__
    next(iter(loader))  # a second warning would be an error
    loader = like_vit_b(class_ordered, monkeypatch, 1 << 30, mixed_rows=8)
    with pytest.warns(RuntimeWarning, match="labels of 64 rows have 7.% of its entropy"):
        next(iter(loader))
    next(iter(like_vit_b(class_ordered, monkeypatch, 1 << 30, mixed_rows=8, rank=1, world=2)))  # rank 0 tells
    next(iter(like_vit_b(class_ordered, monkeypatch, 1 << 30, mixed_rows=8, shuffle=False)))


def test_a_state_of_before_goes_on_in_its_order(
    class_ordered: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows were pools of 160 rows, and chunks read in four parts."""
    loader = like_vit_b(class_ordered, monkeypatch, 1 << 30)
    state = loader.state_dict() | {"pool_rows": 160, "reads_per_chunk": 4, "row": 640}
    before = plan_epoch(np.arange(8192), chunk_rows=32, window_rows=160, seed=0, epoch=0, reads_per_chunk=4)
    loader.load_state_dict(state)
    assert loader.state_dict() == state
    with pytest.warns(
        RuntimeWarning, match=r"where 160 rows are mixed at a time; .* mixed_rows=64, without a state"
    ):
        taken = rows_of(islice(loader, 20))
    assert taken == before.rows[640 : 640 + 20 * 64].tolist()
    with pytest.raises(ConfigError, match="this loader's reads_per_chunk is 1 and the state's is 4"):
        like_vit_b(class_ordered, monkeypatch, 1 << 30, reads_per_chunk=1).load_state_dict(state)


@pytest.mark.filterwarnings("ignore:.*every chunk is read 1. times:RuntimeWarning")
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 3), (3, 1)])
@pytest.mark.parametrize("num_threads", [0, 2])
def test_a_cut_at_any_batch_of_50_rows_in_order_gives_every_row_once(
    make_plan: MakePlan, before: int, after: int, num_threads: int
) -> None:
    """And in the epoch behind it, on machines of other memory: pools of 4 rows and of all."""
    store = make_plan(row_seed=None).write()
    small, large = {"pool_bytes": 1}, {"pool_bytes": 1 << 20}
    assert make(store, **small).plan(0).num_pools > 1 == make(store, **large).plan(0).num_pools
    first = ranks(store, before, batch_size=5, num_threads=0, mixed_rows=4, **large)
    epochs: list[list[int]] = []
    for cut in range(len(first[0]) + 1):
        for loader in first:
            loader.load_state_dict(make(store, mixed_rows=4).state_dict())
        seen = stepped(first, cut)
        then = ranks(store, after, batch_size=4, num_threads=num_threads, mixed_rows=9, **small)
        for loader in then:
            loader.load_state_dict(first[-1].state_dict())
        if cut < len(first[0]):
            seen += stepped(then, None)
        assert sorted(seen) == list(range(50))
        epochs.append(stepped(then, None))
        assert sorted(epochs[-1]) == list(range(50))
    assert all(epoch == epochs[0] for epoch in epochs)


def test_ranks_share_a_window_the_same_whatever_is_held(class_ordered: Store) -> None:
    """Each rank may hold another number of rows: it finds its own without the others."""
    held = [1 << 20, 2 * 500 * 32, 2 * 77 * 32]
    loaders = [
        ActivationLoader(class_ordered, layers=[0], batch_size=21, rank=rank, world=3, pool_bytes=num_bytes)
        for rank, num_bytes in enumerate(held)
    ]
    turns = [loader._turn(0, 100) for loader in loaders]
    assert len({turn.plan.num_pools for turn in turns}) == 3
    for step in range(turns[0].num_steps):
        span = turns[0].span(step)
        rows = np.concatenate([turn.rows(step) for turn in turns])
        assert np.array_equal(np.sort(rows), np.sort(turns[0].plan.rows[span.start : span.stop]))


def test_rows_of_a_small_pool_have_their_values(class_ordered: Store) -> None:
    whole = class_ordered.read(slice(0, 400), [0])
    loader = ActivationLoader(
        class_ordered, layers=[0], batch_size=30, rows=range(400), pool_bytes=2 * 90 * 32, num_threads=2
    )
    assert loader.plan(0).num_pools == 5
    with pytest.warns(RuntimeWarning, match="every chunk is read 5 times"):
        found = list(loader)
    assert sorted(rows_of(found)) == list(range(400))
    for batch in found:
        np.testing.assert_array_equal(batch.tokens.numpy(), whole[batch.rows.numpy()])


def test_mixed_rows_are_a_number(store: Store) -> None:
    with pytest.raises(ConfigError, match=r"mixed_rows is a whole number, at least 1 .* got 0"):
        make(store, mixed_rows=0)
    assert make(store, mixed_rows=5).mixing == replace(make(store).mixing, mixed_rows=5)
    assert make(store).mixing.window_rows == 16 == 2 * 16 * ROW_BYTES // (2 * ROW_BYTES)
