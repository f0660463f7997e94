"""A loader's state: what it resumes to, with other ranks, batches and threads, and what it refuses."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

import numpy as np
import pytest

from activault.store import ActivationLoader, ConfigError, Store

from .conftest import MakePlan
from .test_loader import make, rows_of

VERSION_1 = ("store", "rows", "seed", "pool_rows", "shuffle")


@pytest.mark.parametrize("num_threads", [0, 2])
@pytest.mark.parametrize("epoch", [0, 1])
def test_resuming_at_every_batch_gives_the_same_batches(store: Store, num_threads: int, epoch: int) -> None:
    loader = make(store, num_threads=num_threads)
    for _ in range(epoch):
        rows_of(loader)
    whole = [batch.rows.tolist() for batch in islice(loader.stream(), 2 * len(loader))]
    for cut in range(len(loader) + 1):
        first = make(store, num_threads=num_threads)
        for _ in range(epoch):
            rows_of(first)
        taken = [batch.rows.tolist() for batch in islice(first.stream(), cut)]
        state = json.loads(json.dumps(first.state_dict()))
        second = make(store, num_threads=0)
        second.load_state_dict(state)
        taken += [batch.rows.tolist() for batch in islice(second.stream(), 2 * len(loader) - cut)]
        assert taken == whole


def test_a_state_saved_inside_the_loop_goes_on_behind_that_batch(store: Store) -> None:
    loader = make(store)
    seen = []
    for batch in loader:
        seen += batch.rows.tolist()
        if len(seen) == 21:
            break
    other = make(store)
    other.load_state_dict(loader.state_dict())
    assert sorted(seen + rows_of(other)) == store.valid_rows.tolist()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, "this loader's seed is 1 and the state's is 0"),
        ({"rows": [1, 2, 4, 5, 6, 8, 9]}, "this loader's rows is"),
        ({"pool_bytes": 1}, "this loader's pool_rows is 1 and the state's is 16"),
        ({"shuffle": False}, "this loader's shuffle is False"),
        ({"reads_per_chunk": 2}, "this loader's reads_per_chunk is 2 and the state's is 1"),
        ({"weights": np.ones(50)}, "this loader's weights is '.*' and the state's is None"),
    ],
)
def test_an_incompatible_state_is_refused(store: Store, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(store, **changes).load_state_dict(make(store).state_dict())


def test_a_state_of_another_store_is_refused(store: Store, make_plan: MakePlan) -> None:
    other = make_plan(bad_rows=(7, 20), row_seed=4).write()
    with pytest.raises(ConfigError, match="this loader's store is"):
        make(store).load_state_dict(make(other).state_dict())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 3}, "a loader state has version 2, or 1; got 3"),
        ({"row": 48}, "row is a whole number, at least 0 and below 48; got 48"),
        ({"row": -1}, "at least 0 and below 48; got -1"),
        ({"row": 1.0}, "got 1.0"),
        ({"epoch": None}, "epoch is a whole number, at least 0 and below 2.63; got None"),
        ({"epoch": 2**63}, "got 9223372036854775808"),
        ({"epoch": True}, "got True"),
    ],
)
def test_a_state_that_makes_no_sense_is_refused(store: Store, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(store).load_state_dict(make(store).state_dict() | changes)


@pytest.mark.parametrize("state", [None, [], "state"])
def test_what_is_no_state_is_refused(store: Store, state: Any) -> None:
    with pytest.raises(ConfigError, match="a loader state is what state_dict gave; got"):
        make(store).load_state_dict(state)


def stepped(loaders: list[ActivationLoader], steps: int | None) -> list[int]:
    """Rows of all ranks, which take some steps each, or the rest of the epoch."""
    taken = [list(islice(iter(loader), steps)) for loader in loaders]
    assert len({len(batches) for batches in taken}) == 1
    return [row for batches in taken for row in rows_of(batches)]


def ranks(store: Store, world: int, **changes: Any) -> list[ActivationLoader]:
    return [make(store, rank=rank, world=world, **changes) for rank in range(world)]


@pytest.mark.parametrize("sampling", [{}, {"weights": np.arange(50)}, {"reads_per_chunk": 2}], ids=str)
@pytest.mark.parametrize("after", [(1, 7, 0), (3, 2, 2), (4, 5, 0)], ids=str)
@pytest.mark.parametrize("before", [(1, 5), (2, 3), (3, 4)], ids=str)
def test_a_cut_at_any_batch_gives_the_same_multiset_of_rows(
    store: Store, before: tuple[int, int], after: tuple[int, int, int], sampling: dict[str, Any]
) -> None:
    """Whatever the ranks, their batches and their threads are afterwards, and in the epoch behind it too."""
    world, batch_size, num_threads = after
    whole = sorted(make(store, **sampling).plan(0).rows.tolist())
    following = sorted(make(store, **sampling).plan(1).rows.tolist())
    first = ranks(store, before[0], batch_size=before[1], num_threads=0, **sampling)
    for cut in range(len(first[0]) + 1):
        for loader in first:
            loader.load_state_dict(make(store, **sampling).state_dict())
        seen = stepped(first, cut)
        states = [json.loads(json.dumps(loader.state_dict())) for loader in first]
        assert all(state == states[0] for state in states)
        then = ranks(store, world, batch_size=batch_size, num_threads=num_threads, **sampling)
        for loader in then:
            loader.load_state_dict(states[0])
        if cut < len(first[0]):
            seen += stepped(then, None)
        assert sorted(seen) == whole
        assert sorted(stepped(then, None)) == following


def test_a_cut_where_no_whole_batch_is_left_goes_on_in_the_next_epoch(store: Store) -> None:
    first, second = make(store, batch_size=5), make(store, batch_size=40, drop_last=True)
    list(islice(first, 2))
    second.load_state_dict(first.state_dict())
    assert second.epoch == 1
    assert rows_of(second) == make(store).plan(1).rows[:40].tolist()


def test_a_state_of_version_1_is_taken_where_it_means_the_same(store: Store) -> None:
    loader = make(store, shuffle=False)
    old = {field: loader.state_dict()[field] for field in VERSION_1}
    loader.load_state_dict(old | {"version": 1, "epoch": 2, "batch": 3, "batch_size": 7, "drop_last": False})
    assert loader.epoch == 2
    assert rows_of(loader) == store.valid_rows[21:].tolist()

    loader = make(store)
    old = {field: loader.state_dict()[field] for field in VERSION_1}
    loader.load_state_dict(old | {"version": 1, "epoch": 2, "batch": 0, "batch_size": 9, "drop_last": True})
    assert rows_of(loader) == loader.plan(2).rows.tolist()


def test_a_state_of_version_1_amid_a_shuffled_epoch_is_refused(store: Store) -> None:
    loader = make(store)
    old = {field: loader.state_dict()[field] for field in VERSION_1}
    old |= {"version": 1, "epoch": 2, "batch": 1, "batch_size": 9, "drop_last": True}
    with pytest.raises(ConfigError, match="an order that is no longer made; got batch 1 of epoch 2"):
        loader.load_state_dict(old)
    with pytest.raises(ConfigError, match="this loader's reads_per_chunk is 2 and the state's is 1"):
        make(store, reads_per_chunk=2).load_state_dict(old | {"batch": 0})
