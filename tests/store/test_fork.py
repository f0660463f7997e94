"""A child that is forked while its parent's threads read can read itself: nothing that it needs is held."""

from __future__ import annotations

import multiprocessing
import threading
from concurrent.futures import Future
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

from activault.store import ActivationLoader, Store, open_store
from activault.store.chunk_index import ChunkIndex, IndexCache

from .conftest import MakePlan

SECONDS = 30
NUM_CHILDREN = 8
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def answer(store: Store, path: Path, row: int, end: Connection) -> None:
    """In the child: rows by the parent's own store, and by one that is opened anew."""
    rows = [row, (row + 200) % store.num_rows]
    end.send((store.read(rows, store.layers), open_store(path).read(rows, store.layers)))


def read_in_child(store: Store, path: Path, row: int) -> tuple[np.ndarray, np.ndarray]:
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe()
    child = fork.Process(target=answer, args=(store, path, row, there), daemon=True)
    child.start()
    try:
        assert here.poll(SECONDS), "the child hangs"
        found: tuple[np.ndarray, np.ndarray] = here.recv()
    finally:
        child.kill()
        child.join()
    return found


def test_a_child_reads_while_the_parents_threads_do(make_plan: MakePlan) -> None:
    plan = make_plan(num_rows=400, shard_rows=8)
    store = plan.write()
    done = threading.Event()
    faults: list[BaseException] = []

    def load() -> None:
        try:
            while not done.is_set():
                # A new store: its indices are read, and its records parsed, again and again.
                loader = ActivationLoader(
                    open_store(plan.path), layers=store.layers, batch_size=16, num_threads=4
                )
                for _ in loader:
                    store.read(slice(0, 400, 7), store.layers)
        except BaseException as exc:
            faults.append(exc)
            raise

    parents = threading.Thread(target=load)
    parents.start()
    try:
        for number in range(NUM_CHILDREN):
            row = number * 31
            for values in read_in_child(store, plan.path, row):
                assert np.array_equal(values, plan.stored[[row, (row + 200) % 400]])
    finally:
        done.set()
        parents.join()
    assert faults == []


def in_child(cache: IndexCache, index: ChunkIndex, end: Connection) -> None:
    end.send(cache.get(index.record, lambda: index).entries.shape)


def test_a_child_does_not_wait_for_a_thread_that_it_has_not(store: Store) -> None:
    """The very moment: a thread of the parent is reading an index when the child is forked."""
    record = store.chunks.files(0)[0]
    index = ChunkIndex(record, np.zeros((4, 2), np.uint64))
    cache, reading, go_on = IndexCache(), threading.Event(), Future[ChunkIndex]()

    def slow() -> ChunkIndex:
        reading.set()
        return go_on.result()

    thread = threading.Thread(target=cache.get, args=(record, slow))
    thread.start()
    reading.wait()
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe()
    child = fork.Process(target=in_child, args=(cache, index, there), daemon=True)
    child.start()
    try:
        assert here.poll(SECONDS), "the child hangs"
        assert here.recv() == (4, 2)
    finally:
        child.kill()
        child.join()
        go_on.set_result(index)
        thread.join()
    assert cache.get(record, slow) is index  # the parent's is as it was
