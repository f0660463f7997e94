"""An owner that was taken for dead and wakes, at any step: no file but the record's, nothing left over.

In one process, another owner does its work at each call by which a writer changes the disk, between what the
writer has looked at and what it then does; its values differ, so that files of two owners never pass for one
shard's. And with real processes, stopped by SIGSTOP at such calls.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from activault.store import CorruptStoreError, ShardTakenError, open_store, verify_store
from activault.store.leases import Watch
from activault.store.locks import LOCK
from activault.store.writer import StoreWriter

from .conftest import MakePlan, Plan

CHANGES = ("replace", "rename", "unlink", "mkdir", "rmdir", "link", "open")
STOPS = CHANGES[:-1]
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


class Killed(BaseException):
    """What ends a writer at once, in a test."""


@contextmanager
def before_change(number: int, act: Callable[[], None]) -> Iterator[list[str]]:
    """Do something right before the call of that number that changes the disk; gives the calls' names."""
    calls = list[str]()

    def hooked(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            calls.append(name)
            if len(calls) == number:
                act()
            return original(*arguments, **options)

        return call

    originals = {name: getattr(os, name) for name in CHANGES}
    for name, original in originals.items():
        setattr(os, name, hooked(name, original))
    try:
        yield calls
    finally:
        for name, original in originals.items():
            setattr(os, name, original)


@pytest.fixture
def small(make_plan: MakePlan, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """One shard of four arrays; every owner looks as if it were dead."""
    monkeypatch.setattr(Watch, "is_expired", lambda *_: True)
    return make_plan(num_rows=4, shard_rows=4, layers=(0, 4), kinds=("cls", "patches"))


@contextmanager
def values_of(plan: Plan, factor: float) -> Iterator[None]:
    """Another owner's device gives other values."""
    before = plan.values
    plan.values = before * factor
    try:
        yield
    finally:
        plan.values = before


def work(writer: StoreWriter, plan: Plan, factor: float) -> str:
    """Claim and publish the shard, as an owner does that goes on to other shards if it is late."""
    with values_of(plan, factor):
        if not writer.claim(0):
            return "another's"
        try:
            plan.publish(writer, 0)
        except ShardTakenError:
            return "late"
    return "done"


def num_changes(plan: Plan) -> int:
    writer = plan.open()
    with before_change(-1, lambda: None) as calls:
        assert work(writer, plan, 1.0) == "done"
    writer.close()
    return len(calls)


def assert_sound(plan: Plan) -> None:
    """Whatever happened, the store is finished by whoever comes next, right and tidy."""
    before = verify_store(plan.path, values=True)
    assert before.faults == (), "no file of one owner beside the record of another"
    assert plan.write().complete
    assert verify_store(plan.path, deep=True).faults == ()
    left = [path for path in plan.path.rglob(".*") if path.name != LOCK]
    assert left == []


def test_another_finishes_the_shard_at_every_step_of_its_owner(small: Plan, make_plan: MakePlan) -> None:
    ends = set[str]()
    for step in range(1, num_changes(small) + 1):
        plan = make_plan(f"{step}.zarr", num_rows=4, shard_rows=4, layers=(0, 4), kinds=("cls", "patches"))
        owner, other = plan.open(), plan.open()
        with before_change(step, lambda plan=plan, other=other: work(other, plan, 2.0)):  # type: ignore[misc]
            ends.add(work(owner, plan, 1.0))
        owner.close()
        other.close()
        assert owner.is_finished(0)
        assert_sound(plan)
    assert ends == {"done", "late", "another's"}


@pytest.mark.parametrize("seed", range(2))
def test_others_are_stopped_and_killed_on_top_of_it(small: Plan, make_plan: MakePlan, seed: int) -> None:
    """The owner sleeps at one step, who takes over at another, or dies there; a third does all or dies."""
    steps, moments = num_changes(small), random.Random(seed)
    for trial in range(20):
        plan = make_plan(f"{trial}.zarr", num_rows=4, shard_rows=4, layers=(0, 4), kinds=("cls", "patches"))
        writers = [plan.open() for _ in range(3)]
        first, second, third = (moments.randint(1, steps) for _ in range(3))
        dies, last_dies = moments.random() < 0.4, moments.random() < 0.5

        def last(
            plan: Plan = plan, writer: StoreWriter = writers[2], third: int = third, dies: bool = last_dies
        ) -> None:
            with before_change(third if dies else -1, killed):
                dying(writer, plan, 3.0)

        def middle(
            plan: Plan = plan,
            writer: StoreWriter = writers[1],
            second: int = second,
            dies: bool = dies,
            last: Callable[[], None] = last,
        ) -> None:
            def act() -> None:
                last()
                if dies:
                    killed()

            with before_change(second, act):
                dying(writer, plan, 2.0)

        with before_change(first, middle):
            work(writers[0], plan, 1.0)
        for writer in writers:
            writer.close()
        assert_sound(plan)


def killed() -> None:
    raise Killed


def dying(writer: StoreWriter, plan: Plan, factor: float) -> None:
    """Work that may end at once, and leaves then what a killed process leaves."""
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Killed):
        patch.setattr(StoreWriter, "_give_up", staticmethod(lambda mark: mark.close()))
        work(writer, plan, factor)


@pytest.mark.parametrize(
    "error",
    [OSError(28, os.strerror(28)), OSError(116, os.strerror(116)), CorruptStoreError("other bytes")],
    ids=str,
)
def test_an_error_of_a_late_owner_removes_nothing_of_the_other(small: Plan, error: Exception) -> None:
    """It would have removed what it wrote: something fails in the very moment in which it wakes."""
    owner, other = small.open(), small.open()

    def check(_: object) -> None:
        assert work(other, small, 2.0) == "done"
        raise error

    assert owner.claim(0)
    buffer = owner.buffer(0)
    for place, layer in enumerate(small.manifest.layers):
        buffer.write(layer, 0, small.values[0:4, place])
    with pytest.raises(ShardTakenError):
        owner.publish(buffer, small.outcomes(range(4)), check=check)
    owner.close()
    assert other.is_finished(0)
    assert_sound(small)


def stop_at(step: int) -> None:
    """Stop this process before that many calls that change the disk; it goes on when it is continued."""
    done = 0

    def hooked(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal done
            done += 1
            if done == step:
                os.kill(os.getpid(), signal.SIGSTOP)
            return original(*arguments, **options)

        return call

    for name in STOPS:
        setattr(os, name, hooked(getattr(os, name)))


def write_and_stop(plan: Plan, step: int, said: Path) -> None:
    """In a child: write the store as others do, and stop at a step of the first shard."""
    with StoreWriter(plan.path, plan.open()._root, plan.samples, 0.6) as writer:
        stop_at(step)
        for shards in writer.rounds(writer.unfinished):
            for shard in shards:
                try:
                    if writer.claim(shard):
                        plan.publish(writer, shard)
                except ShardTakenError as exc:
                    said.write_text(str(exc))
        writer.complete()


def test_processes_that_are_stopped_are_taken_over_and_come_back(
    make_plan: MakePlan, written: Plan, tmp_path: Path
) -> None:
    """At once, each at another step: one goes on alone, then all the others wake."""
    plan = make_plan("stopped.zarr", bad_rows=(7, 20))
    fork, told = multiprocessing.get_context("fork"), [tmp_path / f"{step}.txt" for step in (2, 9, 14, 20)]
    processes = [fork.Process(target=write_and_stop, args=(plan, int(each.stem), each)) for each in told]
    for process in processes:
        process.start()
    for process in processes:
        assert process.pid is not None
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
    with StoreWriter(plan.path, plan.open()._root, plan.samples, 0.6) as writer:
        for shards in writer.rounds(writer.unfinished):
            for shard in shards:
                if writer.claim(shard):
                    plan.publish(writer, shard)
        writer.complete()
    assert open_store(plan.path).digest == open_store(written.path).digest
    for process in processes:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGCONT)
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * len(processes)
    assert len([each for each in told if each.exists() and "taken over" in each.read_text()]) >= 2
    store = open_store(plan.path)
    assert store.complete
    assert store.digest == open_store(written.path).digest
    assert verify_store(plan.path, deep=True, values=True).faults == ()
    assert [path for path in plan.path.rglob(".*") if path.name != LOCK] == []
