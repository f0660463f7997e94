from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from activault.store import (
    ActivationLoader,
    Batch,
    ConfigError,
    CorruptStoreError,
    Store,
    open_store,
    reading,
)
from activault.store.prefetch import Execution

from .conftest import MakePlan, Plan

ROW_BYTES = 3 * 9 * 8 * 2  # of the written store, all layers and kinds, in its pool


def make(store: Store, **changes: Any) -> ActivationLoader:
    options: dict[str, Any] = {"layers": [0, 2, 4], "batch_size": 7, "pool_bytes": 2 * 16 * ROW_BYTES}
    return ActivationLoader(store, **options | changes)


def rows_of(batches: object) -> list[int]:
    return [row for batch in batches for row in batch.rows.tolist()]  # type: ignore[attr-defined]


@pytest.mark.parametrize("num_threads", [0, 1, 3])
@pytest.mark.parametrize("pool_bytes", [1, 2 * 16 * ROW_BYTES, 1 << 30], ids=["one chunk", "small", "all"])
@pytest.mark.parametrize("batch_size", [1, 7, 48, 100])
def test_an_epoch_has_every_valid_row_once_with_its_values(
    store: Store, written: Plan, batch_size: int, pool_bytes: int, num_threads: int
) -> None:
    loader = make(store, batch_size=batch_size, pool_bytes=pool_bytes, num_threads=num_threads)
    batches = list(loader)
    assert len(batches) == len(loader)
    assert sorted(rows_of(batches)) == store.valid_rows.tolist()
    for batch in batches:
        assert np.array_equal(batch.tokens.numpy(), written.stored[batch.rows.numpy()])
        assert np.array_equal(batch.labels.numpy(), store.label_ids[batch.rows.numpy()])
        assert batch.tokens.dtype == torch.float32
    assert loader.epoch == 1


def test_float32_stores_load_too(make_plan: MakePlan) -> None:
    plan = make_plan(dtype="float32")
    for batch in make(plan.write(), tokens="cls,patches", layers=[4, 0]):
        expected = np.delete(plan.values[batch.rows.numpy()][:, [2, 0]], [1, 2], axis=2)
        assert np.array_equal(batch.tokens.numpy(), expected)


def test_an_unfinished_store_loads_what_is_there(plan: Plan) -> None:
    store = plan.write([1])
    assert sorted(rows_of(make(store))) == [row for row in range(16, 32) if row != 20]


def test_a_subset_of_rows(store: Store) -> None:
    rows = [49, 3, 4, 5, 30]
    assert sorted(rows_of(make(store, rows=rows, batch_size=2))) == sorted(rows)
    assert rows_of(make(store, rows=rows, shuffle=False)) == sorted(rows)


def test_the_same_seed_gives_the_same_order_whatever_the_threads(store: Store) -> None:
    orders = [rows_of(make(store, num_threads=num_threads)) for num_threads in (0, 1, 4)]
    assert orders[0] == orders[1] == orders[2]
    assert rows_of(make(store, seed=1)) != orders[0]


def test_epochs_differ(store: Store) -> None:
    loader = make(store)
    assert rows_of(loader) != rows_of(loader)
    assert loader.epoch == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 0}, "batch_size is a whole number, at least 1 and below 2.63; got 0"),
        ({"batch_size": 7.0}, "batch_size is .* got 7.0"),
        ({"batch_size": "7"}, "batch_size is .* got '7'"),
        ({"seed": 1.5}, "seed is .* got 1.5"),
        ({"seed": -1}, "seed is .* got -1"),
        ({"seed": 2**63}, "seed is .* got 9223372036854775808"),
        ({"pool_bytes": 0}, "pool_bytes is .* got 0"),
        ({"num_threads": -1}, "num_threads is .* got -1"),
        ({"rows": [7]}, r"rows that are finished and ok .* 1 of 1 are not \(first: 7\)"),
        ({"rows": [1, 1]}, "rows are named once each; 1 is there twice"),
        ({"rows": []}, "0 rows make no batch"),
        ({"batch_size": 49, "drop_last": True}, "48 rows make no batch of 49"),
        ({"layers": [1]}, "layers are some of"),
        ({"world": 0}, "world is a whole number, at least 1 .* got 0"),
        ({"world": 2, "rank": 2}, "rank is a whole number, at least 0 and below 2; got 2"),
        ({"world": 7, "drop_last": True}, "48 rows make no batch of 49"),
        ({"reads_per_chunk": 0}, "reads_per_chunk is .* got 0"),
        ({"pin_memory": True}, "pin_memory needs a GPU, and torch finds none here; leave it out"),
        ({"tokens": "words"}, "token kinds are"),
    ],
)
def test_unusable_arguments_are_refused(store: Store, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(store, **changes)


def test_numbers_of_numpy_are_numbers(store: Store) -> None:
    state = make(store, batch_size=np.int64(7), seed=np.uint8(0)).state_dict()
    assert make(store).state_dict() == state == json.loads(json.dumps(state))


@pytest.mark.parametrize("begin", ["iterator", "state"])
def test_an_iterator_ends_when_another_takes_over(store: Store, begin: str) -> None:
    loader = make(store)
    saved = loader.state_dict()
    first = iter(loader)
    seen = next(first).rows.tolist()
    if begin == "state":
        loader.load_state_dict(saved)
        seen = []
    second = iter(loader)
    seen += next(second).rows.tolist()
    with pytest.raises(ConfigError, match="a loader has one iterator at a time"):
        next(first)
    assert sorted(seen + rows_of(second)) == store.valid_rows.tolist()
    assert loader.epoch == 1


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # of forks with threads: what is tested
@pytest.mark.parametrize("num_threads", [0, 2])
@pytest.mark.parametrize("asked", [False, True], ids=["dropped", "asked for more"])
def test_a_fork_is_told_that_it_cannot_go_on(store: Store, num_threads: int, asked: bool) -> None:
    loader = make(store, num_threads=num_threads, batch_size=2)
    iterator = iter(loader)
    seen = next(iterator).rows.tolist()
    child = os.fork()
    if not child:
        signal.alarm(20)  # ends it if it hangs
        status = 3
        try:
            if asked:
                next(iterator)
            del iterator
            status = 5
        except ConfigError as exc:
            status = 0 if "make a loader in the child, or start children by spawn" in str(exc) else 4
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == (0 if asked else 5)
    assert sorted(seen + rows_of(iterator)) == store.valid_rows.tolist()


@pytest.mark.parametrize("num_threads", [0, 2])
def test_a_damaged_shard_reaches_the_consumer_and_no_batch_is_lost(copy: Path, num_threads: int) -> None:
    """Defect of the reference: an error of a worker is printed, and its rows are missing."""
    (copy / "layer_02" / "cls" / "c" / "1" / "0" / "0").write_bytes(b"x")
    store = open_store(copy)
    loader = make(store, num_threads=num_threads, shuffle=False, pool_bytes=1)
    batches = iter(loader)
    seen = rows_of([next(batches), next(batches)])
    with pytest.raises(CorruptStoreError, match=r"rows 16 to 19 \(shard 1\): layer_02/cls/c/1/0/0 must have"):
        next(batches)
    assert seen == [row for row in range(16) if row != 7][:14]
    assert loader.state_dict()["row"] == 14


def test_any_error_of_a_thread_reaches_the_consumer(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect of the reference: see above."""

    def broken(self: object, *arguments: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(reading.ChunkSource, "read_parts", broken)
    with pytest.raises(MemoryError, match="no room"):
        next(iter(make(store)))


def loader_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("activault")]


def test_threads_end_with_the_epoch(store: Store) -> None:
    rows_of(make(store))
    assert loader_threads() == []


def test_threads_end_when_the_iterator_is_dropped(store: Store) -> None:
    iterator = iter(make(store, batch_size=2))
    assert isinstance(next(iterator), Batch)
    assert loader_threads() != []
    del iterator
    assert loader_threads() == []


def test_each_chunk_is_read_once_an_epoch(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect of the reference: every chunk is decompressed twice, for reads of half a chunk."""
    seen: list[tuple[int, int, str]] = []
    original = reading.ChunkSource.read_parts

    def counted(self: reading.ChunkSource, parts: Any, array: Any, out: Any) -> None:
        seen.extend((part.chunk, array.layer, array.kind) for part in parts)
        original(self, parts, array, out)

    monkeypatch.setattr(reading.ChunkSource, "read_parts", counted)
    rows_of(make(store))
    assert len(seen) == len(set(seen)) == 13 * 3 * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_at_most_two_pools_are_held_while_batches_fit_in_one(store: Store, dtype: torch.dtype) -> None:
    loader = make(store, batch_size=4, dtype=dtype)
    turns = [loader._turn(0, 0), loader._turn(1, 0), None]
    with Execution(loader._pools, turns.__getitem__, num_threads=2) as execution:
        held = [len(execution._read) for _ in execution.batches()]
    assert loader.plan(0).num_pools > 3
    assert len(held) == 2 * len(loader)
    assert max(held) == 2
