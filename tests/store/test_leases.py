"""Leases: who gives a sign of life keeps its shard; who does not is found out without comparing clocks."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from activault.store import ShardTakenError, open_store, verify_store
from activault.store import leases as leases_module
from activault.store import writer as writer_module
from activault.store.errors import ShardBusyError
from activault.store.leases import Heartbeat, Watch, read_holder, write_holder
from activault.store.marks import own
from activault.store.writer import StoreWriter

from .conftest import Plan


class Clock:
    """A monotonic clock that is put forward by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(leases_module.time, "monotonic", clock.monotonic)
    return clock


@pytest.fixture
def mark(tmp_path: Path) -> int:
    handle = os.open(tmp_path / "mark", os.O_RDWR | os.O_CREAT)
    write_holder(handle, 60.0)
    return handle


def looks(watch: Watch, clock: Clock, mark: int, seconds: float, every: float = 5.0) -> bool:
    """Look at the mark again and again for so long; what the last look said."""
    expired, until = watch.is_expired(0, mark), clock.now + seconds
    while clock.now < until and not expired:
        clock.now += every
        expired = watch.is_expired(0, mark)
    return expired


def test_an_owner_without_a_sign_of_life_loses_its_shard_after_its_lease(clock: Clock, mark: int) -> None:
    watch = Watch(60.0)
    assert not looks(watch, clock, mark, 55)
    assert looks(watch, clock, mark, 10)


def test_every_sign_of_life_begins_the_lease_anew(clock: Clock, mark: int) -> None:
    watch = Watch(60.0)
    for sign in range(5):
        assert not looks(watch, clock, mark, 50)
        os.utime(mark, ns=(sign, sign))  # whatever its clock says


def test_the_longer_lease_holds(clock: Clock, mark: int) -> None:
    assert not looks(Watch(10.0), clock, mark, 55)
    assert not looks(Watch(300.0), clock, mark, 290)


def test_time_in_which_the_looker_was_stopped_itself_does_not_count(clock: Clock, mark: int) -> None:
    watch = Watch(60.0)
    assert not looks(watch, clock, mark, 20)
    clock.now += 3600
    assert not looks(watch, clock, mark, 20)
    assert looks(watch, clock, mark, 20)


@pytest.mark.parametrize(
    "said", [b"", b"{", b'{"lease":-1}', b'{"lease":1e999,"process":1,"host":"a"}', b"[1]", b'"x"']
)
def test_a_mark_that_says_no_lease_is_left_to_its_owner(clock: Clock, tmp_path: Path, said: bytes) -> None:
    (tmp_path / "mark").write_bytes(said)
    handle = os.open(tmp_path / "mark", os.O_RDWR)
    assert read_holder(handle).lease is None
    assert not looks(Watch(1.0), clock, handle, 1000)


def test_a_living_owner_keeps_its_shard(plan: Plan) -> None:
    with StoreWriter(plan.path, plan.open()._root, plan.samples, 0.3) as writer, plan.open() as other:
        other._watch = Watch(0.3)
        assert writer.claim(1)
        until = time.monotonic() + 0.9
        while time.monotonic() < until:
            assert not other.claim(1)
            time.sleep(0.02)
        plan.publish(writer, 1)


def test_a_heartbeat_ends_when_nobody_has_it_any_more() -> None:
    class Renewed:
        count = 0

        def renew(self) -> None:
            self.count += 1

    heartbeat, mark = Heartbeat(0.06), Renewed()
    heartbeat.add(mark)
    thread = heartbeat._thread
    assert thread is not None
    time.sleep(0.1)
    assert mark.count > 0
    del heartbeat
    thread.join(5)
    assert not thread.is_alive()


def test_a_late_owner_is_told_and_its_shard_is_the_other_ones(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, other = plan.open(), plan.open()
    assert late.claim(1)
    monkeypatch.setattr(Watch, "is_expired", lambda *_: True)
    assert other.claim(1)
    with pytest.raises(ShardTakenError, match=r"shard 1 of .* was taken over by process .* nothing is lost"):
        plan.publish(late, 1)
    plan.publish(other, 1)
    assert late.is_finished(1)
    assert verify_store(plan.path, values=True).faults == ()


def test_file_systems_without_hard_links_do(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with plan.open() as writer, plan.open() as other:
        assert writer.claim(1)
        assert not other.claim(1)
    assert plan.write().complete


def test_an_owner_that_never_gives_a_sign_is_told_apart_by_its_lock_alone(plan: Plan) -> None:
    """A copy: its files have their names by themselves, so that nobody may take its shards over."""
    plan.open()
    mark = own(plan.path, plan.manifest, 1)
    watch = Watch(1e-9)
    for _ in range(3):
        with pytest.raises(ShardBusyError):
            own(plan.path, plan.manifest, 1, 1.0, watch)
    mark.discard()


def test_the_last_writer_clears_up_after_those_that_died_beside_it(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = plan.open()
    with monkeypatch.context() as patch:
        patch.setattr(writer_module, "collect_beside", lambda *_: None)
        patch.setattr(StoreWriter, "_give_up", staticmethod(lambda mark: mark.close()))
        with plan.open() as killed:
            assert killed.claim(2)
    for shard in (0, 1, 3):
        plan.publish(last, shard)
    assert open_store(plan.path).finished_rows.size == 34
    last.close()
    assert not list(plan.path.glob("shards/.*.tmp"))
