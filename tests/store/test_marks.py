"""Marks: one owner a shard, also across processes, and nothing left that could pass for a lost record."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from activault.store import StoreError, StoreWriter, open_store, verify_store
from activault.store import shard_encoding as encoding_module
from activault.store import writer as writer_module
from activault.store.errors import ShardBusyError
from activault.store.marks import own, owned_shards
from activault.store.staging import Staging

from .conftest import Plan

MARK = Path("shards", ".00001.json.tmp")


def files_of(plan: Plan, shard: int) -> list[Path]:
    files = [file for file in plan.path.glob(f"layer_*/*/c/{shard}/0/*") if file.is_file()]
    return files + list(plan.path.glob(f"shards/*{shard:05d}*"))


def fail_at_array(monkeypatch: pytest.MonkeyPatch, number: int, error: BaseException) -> None:
    original, done = encoding_module.write_shard_file, 0

    def failing(*arguments: object) -> object:
        nonlocal done
        done += 1
        if done == number:
            raise error
        return original(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(encoding_module, "write_shard_file", failing)


def test_another_process_is_refused_while_a_shard_has_an_owner(plan: Plan) -> None:
    with plan.open() as writer:
        assert writer.claim(1)
        code = (
            "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path\n"
            "from conftest import Plan, make_manifest\n"
            "from activault.store.errors import ShardBusyError\n"
            "plan = Plan(Path(sys.argv[2]), make_manifest(), frozenset((7, 20)))\n"
            "writer = plan.open()\n"
            "assert not writer.claim(1)\n"
            "try: plan.publish(writer, 1)\n"
            "except ShardBusyError as exc: print(exc)\n"
        )
        command = [sys.executable, "-c", code, str(Path(__file__).parent), str(plan.path)]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        assert "shard 1 is being published by another thread or process" in said
        plan.publish(writer, 1)
    assert open_store(plan.path).finished_rows.tolist() == list(range(16, 32))


def test_a_claim_ends_with_publishing_or_closing(plan: Plan) -> None:
    first, second = plan.open(), plan.open()
    assert first.claim(0)
    assert first.claim(1)
    assert not second.claim(0)
    plan.publish(first, 0)
    assert not second.claim(0)  # it is finished
    first.close()
    assert second.claim(1)
    second.close()
    assert owned_shards(plan.path) == []


@pytest.mark.parametrize("number", [1, 5, 9])
@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), KeyboardInterrupt()], ids=["full", "Ctrl-C"]
)
def test_a_shard_that_failed_leaves_nothing(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, number: int, error: BaseException
) -> None:
    writer = plan.open()
    plan.publish(writer, 0)
    with monkeypatch.context() as patch:
        fail_at_array(patch, number, error)
        with pytest.raises((StoreError, KeyboardInterrupt)):
            plan.publish(writer, 1)
    assert files_of(plan, 1) == []
    assert len(files_of(plan, 0)) == 11
    assert verify_store(plan.path, deep=True).faults == ()
    plan.publish(writer, 1)
    assert writer.unfinished == [2, 3]


def fail_at_name(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Ctrl-C when that many files of a shard have their names in the store but one."""
    original, done = Staging.put, 0

    def failing(self: Staging, path: str) -> None:
        nonlocal done
        done += 1
        if done == number:
            raise KeyboardInterrupt
        original(self, path)

    monkeypatch.setattr(Staging, "put", failing)


def killed_in(plan: Plan, monkeypatch: pytest.MonkeyPatch, shard: int) -> None:
    """What a writer leaves that is killed in the midst of a shard."""
    with monkeypatch.context() as patch, plan.open() as writer:
        patch.setattr(writer_module, "collect_beside", lambda *_: None)
        patch.setattr(StoreWriter, "_give_up", staticmethod(lambda mark: mark.close()))
        fail_at_name(patch, 5)
        with pytest.raises(KeyboardInterrupt):
            plan.publish(writer, shard)


def test_what_a_killed_writer_left_goes_with_its_mark(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    killed_in(plan, monkeypatch, 1)
    assert len(files_of(plan, 1)) > 1
    assert (plan.path / MARK).exists()
    plan.open().close()
    assert files_of(plan, 1) == []


def test_a_mark_beside_a_record_goes_alone(plan: Plan) -> None:
    plan.write([1])
    before = sorted(files_of(plan, 1))
    (plan.path / MARK).touch()
    plan.open().close()
    assert sorted(files_of(plan, 1)) == before


def test_marks_of_the_living_stay_when_leftovers_are_collected(plan: Plan) -> None:
    writer = plan.open()
    mark = own(plan.path, plan.manifest, 1)
    writer.close()
    plan.open().close()
    assert (plan.path / MARK).exists()
    mark.discard()
    assert not (plan.path / MARK).exists()


def test_a_killed_owners_shard_is_taken_over_beside_another_writer(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = plan.open()
    killed_in(plan, monkeypatch, 1)
    assert beside.claim(1)
    plan.publish(beside, 1)
    assert owned_shards(plan.path) == []
    assert beside.unfinished == [0, 2, 3]


def test_the_owner_is_one_thread_too(plan: Plan) -> None:
    plan.open()
    mark = own(plan.path, plan.manifest, 3)
    with pytest.raises(ShardBusyError, match="shard 3 is being published"):
        own(plan.path, plan.manifest, 3)
    mark.close()
    own(plan.path, plan.manifest, 3).discard()
