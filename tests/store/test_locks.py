"""Locks that cannot be had are errors: on a file system without them two writers would own one shard."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from activault.store import StoreError, open_store, verify_store
from activault.store.errors import ShardBusyError
from activault.store.locks import lock_shared, locked_alone, locked_by_one, nobody_at_work
from activault.store.marks import own

from .conftest import Plan

WITHOUT = [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF]
REFUSED = r"writers keep apart by flock; .* cannot be locked \(.*\); .*-o flock.*local disk"


def by_number(number: int) -> str:
    return errno.errorcode[number]


def without_locks(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def failing(handle: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", failing)


def own_one(plan: Plan) -> None:
    plan.path.mkdir()
    own(plan.path, plan.manifest, 1)


def lock_by_one(folder: Path) -> None:
    with locked_by_one(folder):
        pass


TAKES: dict[str, Callable[[Plan], object]] = {
    "plan": lambda plan: plan.open(),
    "own": own_one,
    "share": lambda plan: lock_shared(plan.path.parent),
    "by one": lambda plan: lock_by_one(plan.path.parent),
}


@pytest.mark.parametrize("number", WITHOUT, ids=by_number)
@pytest.mark.parametrize("take", TAKES.values(), ids=TAKES)
def test_a_lock_that_cannot_be_had_is_an_error(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, take: Callable[[Plan], object], number: int
) -> None:
    handles = len(list(Path("/proc/self/fd").iterdir()))
    without_locks(monkeypatch, number)
    with pytest.raises(StoreError, match=REFUSED):
        take(plan)
    assert len(list(Path("/proc/self/fd").iterdir())) == handles


@pytest.mark.parametrize("number", WITHOUT, ids=by_number)
def test_a_writer_without_locks_touches_nothing(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    plan.write([0])
    before = {file: file.read_bytes() for file in plan.path.rglob("*") if file.is_file()}
    without_locks(monkeypatch, number)
    with pytest.raises(StoreError, match=REFUSED):
        plan.open()
    assert {file: file.read_bytes() for file in plan.path.rglob("*") if file.is_file()} == before


def test_reading_and_verifying_need_no_locks(written: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    without_locks(monkeypatch, errno.ENOLCK)
    assert open_store(written.path).read([0], [0]).shape[0] == 1
    assert verify_store(written.path, deep=True).faults == ()
    assert not nobody_at_work(written.path)


def test_a_lock_that_somebody_holds_is_no_error(plan: Plan) -> None:
    writer = plan.open()
    mark = own(plan.path, plan.manifest, 1)
    with pytest.raises(ShardBusyError):
        own(plan.path, plan.manifest, 1)
    handle = lock_shared(plan.path)
    with locked_alone(handle, plan.path) as alone:
        assert not alone
    assert not nobody_at_work(plan.path)
    os.close(handle)
    mark.close()
    writer.close()
    assert nobody_at_work(plan.path)
