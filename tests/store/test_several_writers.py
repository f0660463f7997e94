"""Several writers at once: 64 rows in shards of 32, by threads and by processes, and planning at once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pydantic
import pytest

from activault.store import open_store, verify_store
from activault.store import writer as writer_module
from activault.store.locks import LOCK

from .conftest import MakePlan, Plan, make_manifest

SCRIPT = Path(__file__).parent / "share_store.py"
Work = Callable[[Plan, int], None]


def by_threads(plan: Plan, count: int) -> None:
    from share_store import share  # type: ignore[import-not-found]

    with ThreadPoolExecutor(count) as pool:
        for done in [pool.submit(share, plan) for _ in range(count)]:
            done.result()


def by_processes(plan: Plan, count: int) -> None:
    manifest = plan.manifest
    command = [sys.executable, str(SCRIPT), str(plan.path), str(manifest.num_rows), str(manifest.shard_rows)]
    processes = [subprocess.Popen(command) for _ in range(count)]
    assert [process.wait() for process in processes] == [0] * count


@pytest.mark.parametrize(
    ("work", "count"),
    [pytest.param(by_threads, 8, id="threads"), pytest.param(by_processes, 4, id="processes")],
)
def test_nothing_is_lost_or_refused(
    make_plan: MakePlan, monkeypatch: pytest.MonkeyPatch, work: Work, count: int
) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    plan = make_plan(num_rows=64, shard_rows=32)
    work(plan, count)
    store = open_store(plan.path)
    assert store.complete
    assert np.array_equal(store.read(slice(None), store.layers), plan.stored)
    assert verify_store(plan.path, deep=True).faults == ()
    assert store.digest == make_plan("b.zarr", num_rows=64, shard_rows=32).write().digest
    assert not [file for file in plan.path.rglob(".*") if file.is_file() and file.name != LOCK]


def test_a_shard_that_is_no_multiple_of_chunks_is_refused() -> None:
    with pytest.raises(pydantic.ValidationError, match="shard_rows 32 is not a multiple of chunk_rows 5"):
        make_manifest(shard_rows=32, chunk_rows=5)


def test_a_finished_shard_is_asked_for_without_a_mark(written: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """As each worker asks for, at the end of a run, whatever others have finished since it began."""

    def owned(*_: object) -> None:
        raise AssertionError("a mark, a staging folder and a fence for nothing")

    monkeypatch.setattr(writer_module, "own", owned)
    with written.open() as writer:
        assert not writer.claim(0)
