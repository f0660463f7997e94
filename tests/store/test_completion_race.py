"""A shard that is written again while another writer completes the store: the index is of what is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from activault.store import CorruptStoreError, completion, open_store, verify_store
from activault.store.marks import begin_again

from .conftest import Plan


def once_gathered(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object]) -> None:
    """Have `meanwhile` happen once, when the first completion has gathered all records."""
    pending = [meanwhile]
    original = completion.refuse_imprecise_store

    def wait(*arguments: Any) -> None:
        original(*arguments)
        while pending:
            pending.pop()()

    monkeypatch.setattr(completion, "refuse_imprecise_store", wait)


@pytest.mark.parametrize("completed", [False, True], ids=["shard alone", "completed as well"])
def test_a_shard_written_again_meanwhile_is_in_the_index(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, completed: bool
) -> None:
    plan.write([0, 1, 2, 3])
    other = Plan(plan.path, plan.manifest, plan.bad_rows)
    other.values[16:32] *= 1.25  # as another machine may compute it

    def write_again() -> None:
        (plan.path / "shards/00001.stats.safetensors").unlink()
        with other.open() as writer:
            assert writer.unfinished == [1]
            other.publish(writer, 1)
            if completed:
                writer.complete()

    once_gathered(monkeypatch, write_again)
    with plan.open() as writer:
        writer.complete()
    assert verify_store(plan.path, deep=True, complete=True).faults == ()
    assert np.array_equal(open_store(plan.path).read([16, 17], [0, 2, 4]), other.stored[16:18])


def test_a_shard_begun_again_meanwhile_leaves_the_store_unfinished(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan.write([0, 1, 2, 3])
    once_gathered(monkeypatch, lambda: begin_again(plan.path, [2]))
    with plan.open() as writer, pytest.raises(CorruptStoreError, match="the record of shard 2 vanished"):
        writer.complete()
    assert not (plan.path / "index.parquet").exists()
    plan.write()
    assert verify_store(plan.path, deep=True, complete=True).faults == ()
