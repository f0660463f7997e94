"""Several ranks: every row once, as many steps each, few chunks read twice; and epochs without a stall."""

from __future__ import annotations

import re
import threading
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from activault.store import (
    ConfigError,
    CorruptStoreError,
    PrecisionError,
    Store,
    batches,
    open_store,
    reading,
)
from activault.store.plan import plan_epoch
from activault.store.turns import Turn

from .conftest import MakePlan
from .test_loader import ROW_BYTES, make


def turns(
    num_rows: int, pool_rows: int, batch_size: int, world: int, *, start: int = 0, **options: Any
) -> list[Turn]:
    plan = plan_epoch(np.arange(num_rows), chunk_rows=32, window_rows=pool_rows, seed=0, epoch=0, **options)
    return [Turn(plan, batch_size, start, rank, world) for rank in range(world)]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("start", [0, 7, 299])
@pytest.mark.parametrize(("batch_size", "world"), [(5, 1), (16, 2), (7, 3), (64, 8), (1, 5)])
def test_ranks_share_a_global_batch(batch_size: int, world: int, start: int, shuffle: bool) -> None:
    ranks = turns(300, 96, batch_size, world, start=start, shuffle=shuffle)
    order = ranks[0].plan.rows
    for step in range(ranks[0].num_steps):
        shares = [turn.rows(step) for turn in ranks]
        span = ranks[0].span(step)
        assert sorted(np.concatenate(shares)) == sorted(order[span.start : span.stop])
        sizes = {len(share) for share in shares}
        assert sizes == {batch_size} or (step + 1 == ranks[0].num_steps and max(sizes) - min(sizes) <= 1)
    assert ranks[0].num_steps == -(-(300 - start) // (batch_size * world))


@pytest.mark.parametrize("start", [0, 7, 299])
@pytest.mark.parametrize("world", [1, 3])
def test_a_pool_holds_a_ranks_rows_of_all_its_steps_in_order(world: int, start: int) -> None:
    for turn in turns(300, 96, 10, world, start=start):
        found: dict[int, list[int]] = {}
        for number in range(turn.plan.num_pools):
            pool = turn.pool(number)
            for step, run in pool.runs.items():
                found.setdefault(step, []).extend(pool.rows[run].tolist())
            assert sum(run.stop - run.start for run in pool.runs.values()) == len(pool.rows)
        assert found == {step: turn.rows(step).tolist() for step in range(turn.num_steps)}


@pytest.mark.parametrize(("world", "pool_rows"), [(2, 160), (4, 160), (8, 160), (3, 640), (8, 1280)])
def test_ranks_read_few_chunks_in_common(world: int, pool_rows: int) -> None:
    ranks = turns(10_000, pool_rows, 64, world)
    read = sum(
        len(np.unique(turn.pool(number).rows // 32))
        for turn in ranks
        for number in range(turn.plan.num_pools)
    )
    assert read / np.ceil(10_000 / 32) <= 1.02 + 1.3 * (world - 1) / (pool_rows / 32)


def test_a_rank_without_rows_at_the_last_step_gets_a_batch_of_none(store: Store) -> None:
    """48 rows, 5 ranks of 9: the last 3 rows go to some of them."""
    loaders = [make(store, batch_size=9, rank=rank, world=5) for rank in range(5)]
    last = [list(loader)[-1] for loader in loaders]
    assert sorted(len(batch) for batch in last) == [0, 0, 1, 1, 1]
    assert {batch.num_global for batch in last} == {3}
    empty = next(batch for batch in last if not len(batch))
    assert empty.tokens.shape == (0, 3, 9, 8)


@pytest.mark.parametrize("num_threads", [0, 2])
def test_ranks_get_the_values_of_their_rows(store: Store, num_threads: int) -> None:
    whole = store.read(slice(0, 50), [0, 2, 4])
    seen: list[int] = []
    for rank in range(3):
        for batch in make(store, batch_size=4, rank=rank, world=3, num_threads=num_threads):
            np.testing.assert_array_equal(batch.tokens.numpy(), whole[batch.rows.numpy()])
            seen += batch.rows.tolist()
    assert sorted(seen) == store.valid_rows.tolist()


def test_a_stream_reads_into_the_next_epoch_before_the_last_batch_is_taken(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows are one pool: the next epoch's is read while this one's batches are taken."""
    reads: list[int] = []
    began = threading.Event()
    original = reading.ChunkSource.read_parts

    def counted(self: reading.ChunkSource, parts: Any, array: Any, out: Any) -> None:
        reads.append(len(parts))
        if sum(reads) > 13 * 9:
            began.set()
        original(self, parts, array, out)

    monkeypatch.setattr(reading.ChunkSource, "read_parts", counted)
    loader = make(store, pool_bytes=1 << 30, num_threads=2)
    stream = loader.stream()
    next(stream)
    assert began.wait(10)
    assert [batch.rows.tolist() for batch in islice(stream, len(loader) - 1)]
    assert loader.epoch == 1
    stream.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("num_threads", [0, 2])
@pytest.mark.parametrize("pool_bytes", [2 * 16 * ROW_BYTES, 1 << 30], ids=["some pools", "one pool"])
def test_in_the_stores_own_dtype_batches_are_views_of_the_pool(
    store: Store, pool_bytes: int, num_threads: int
) -> None:
    whole = torch.from_numpy(store.read(slice(0, 50), [0, 2, 4], dtype="bfloat16")).view(torch.bfloat16)
    loader = make(store, dtype=torch.bfloat16, pool_bytes=pool_bytes, batch_size=3, num_threads=num_threads)
    kept = list(islice(loader.stream(), 2 * len(loader)))
    for batch in kept:
        assert torch.equal(batch.tokens, whole[batch.rows])
    places = [batch.tokens.untyped_storage().data_ptr() for batch in kept]
    assert len(set(places)) < len(places)


def test_int8_and_other_dtypes_are_copies_with_the_same_values(make_plan: MakePlan) -> None:
    store = make_plan(dtype="int8").write()
    batch = next(iter(make(store, dtype=torch.bfloat16)))
    want = torch.from_numpy(store.read(batch.rows.numpy(), [0, 2, 4])).bfloat16()
    assert torch.equal(batch.tokens, want)


def test_a_value_beyond_the_dtype_names_its_row(make_plan: MakePlan) -> None:
    plan = make_plan(dtype="float32")
    plan.values[17, 1, 4, 2] = 70_000
    loader = make(plan.write(), dtype=torch.float16)
    with pytest.raises(
        PrecisionError, match=r"row 17 \(shard 1\): float16 holds values up to 65504; one of this"
    ):
        list(loader)


def test_a_batch_is_cast_on_its_device(store: Store) -> None:
    batch = next(iter(make(store, dtype=torch.bfloat16)))
    moved = batch.to("cpu", dtype=torch.float32)
    assert moved.tokens.dtype == torch.float32
    assert torch.equal(moved.tokens, batch.tokens.float())
    assert (moved.rows.tolist(), moved.num_global) == (batch.rows.tolist(), batch.num_global)
    assert torch.equal(batch.to("cpu").tokens, batch.tokens)
    assert batch.to("meta").tokens.device.type == "meta"


@pytest.mark.parametrize("row_seed", [None, 3], ids=["in order", "shuffled when planned"])
def test_three_shards_two_ranks_four_threads_each_have_as_many_steps_and_every_row_once(
    make_plan: MakePlan, row_seed: int | None
) -> None:
    """Shards of 16, 16 and 5 rows, of which a rank's batches of 4 are no multiple; both ranks at a time."""
    store = make_plan(row_seed=row_seed, num_rows=37, bad_rows=(1, 2, 30)).write()
    found: list[list[list[int]]] = [[], []]

    def load(rank: int) -> None:
        for batch in make(store, rank=rank, world=2, batch_size=4, num_threads=4, pool_bytes=1 << 20):
            found[rank].append(batch.rows.tolist())

    loading = [threading.Thread(target=load, args=(rank,), daemon=True) for rank in range(2)]
    for thread in loading:
        thread.start()
    for thread in loading:
        thread.join(30)
    assert not any(thread.is_alive() for thread in loading), "a rank hangs"
    assert len(found[0]) == len(found[1]) == 5
    assert sorted(row for rank in found for rows in rank for row in rows) == store.valid_rows.tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_pinned_batches_come_from_pinned_memory(
    store: Store, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    """As far as can be told without a GPU: torch's own memory, of the batches or of the pools they view."""
    made: list[int] = []

    def pinned(self: batches.PinnedMemory, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        tensor = torch.empty(shape, dtype=dtype)
        made.append(tensor.untyped_storage().data_ptr())
        return tensor

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(batches.PinnedMemory, "tensor", pinned)
    whole = torch.from_numpy(store.read(slice(0, 50), [0, 2, 4])).to(dtype)
    for batch in make(store, dtype=dtype, pin_memory=True):
        assert batch.tokens.untyped_storage().data_ptr() in made
        assert torch.equal(batch.tokens, whole[batch.rows])
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="pin_memory needs a GPU"):
        make(store, pin_memory=True)


@pytest.mark.parametrize("num_threads", [0, 2])
def test_a_damaged_shard_stops_every_rank_that_needs_it(copy: Path, num_threads: int) -> None:
    """Amid a shuffled epoch, with its rows and its shard; ranks that do not need it get all of their rows."""
    (copy / "layer_02" / "cls" / "c" / "1" / "0" / "0").write_bytes(b"x")
    store, seen, stopped = open_store(copy), [], 0
    for rank in range(2):
        loader = make(store, rank=rank, world=2, batch_size=4, num_threads=num_threads, pool_bytes=1)
        try:
            for batch in loader:
                seen += batch.rows.tolist()
        except CorruptStoreError as exc:
            stopped += 1
            assert re.match(r"rows \d+ to \d+ \(shard 1\): layer_02/cls/c/1/0/0 must have", str(exc))  # noqa: PT017
    assert stopped
    assert len(seen) == len(set(seen)) < 48
