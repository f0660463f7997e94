"""Loaders of rows in the order of their classes: mixed as by a full shuffle, whatever memory there is."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest

from activault.store import ActivationLoader, ConfigError, Store, TokenLayout, mixing, plan_samples, reading
from activault.store.plan import plan_epoch

from .conftest import MakePlan
from .test_loader import ROW_BYTES, make, rows_of
from .test_loader_state import ranks, stepped
from .test_plan import entropy


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
