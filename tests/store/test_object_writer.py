"""Writers of one store in a bucket, stopped and woken at every request; the bucket is in memory.

Every writer here computes other values, as machines of different kinds do: whatever one puts in the place of
another's, or takes for another's, shows.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain, count
from pathlib import Path

import numpy as np
import pytest
from memory_objects import Bucket, MemoryObjects, dump

from activault.store import (
    CorruptStoreError,
    IncompleteStoreError,
    NotAStoreError,
    Outcome,
    ShardBusyError,
    StoreMismatchError,
    open_store,
    verify_store,
)
from activault.store import object_shards as shards_module
from activault.store.creation import write_teacher_files
from activault.store.object_leases import Leases
from activault.store.object_planning import plan_objects
from activault.store.object_writer import ObjectWriter
from activault.store.scratch import Scratch

from .conftest import Plan, make_manifest, write_teacher


class Killed(BaseException):
    """The writer is gone without a word."""


@pytest.fixture(autouse=True)
def _one_upload(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests in one order, so that each can be counted."""
    monkeypatch.setattr(shards_module, "_UPLOADS", 1)


def small(tmp_path: Path, scale: float = 1.0, **changes: object) -> Plan:
    """A store of one shard of three arrays, of values times `scale`."""
    fields = {"num_rows": 6, "layers": (2,), "shard_rows": 8, "chunk_rows": 4} | changes
    plan = Plan(tmp_path / "local.zarr", make_manifest(**fields), frozenset((1,)))
    plan.values = plan.values * np.float32(scale)
    return plan


def opened(plan: Plan, bucket: Bucket, at_put: Callable[[str], object] = lambda path: None) -> ObjectWriter:
    """A writer for whom a lease that does not change is over at once."""
    objects = MemoryObjects(bucket, at_put)
    leases, scratch = Leases(objects, 500.0, clock=count(step=1000).__next__), Scratch()

    def teacher(folder: Path) -> object:
        return write_teacher_files(folder, write_teacher)

    folder = scratch.folder("plan")
    root = plan_objects(objects, leases, plan.manifest, plan.samples, teacher, folder)  # type: ignore[arg-type]
    writer = ObjectWriter(objects, root, plan.samples, leases, scratch)
    writer._uploads = objects
    return writer


@contextmanager
def killed_at(writer: ObjectWriter) -> Iterator[None]:
    """What is left of a writer that dies: no lease is given up."""
    writer._leases.give_up = lambda path: None  # type: ignore[method-assign]
    with pytest.raises(Killed):
        yield
    writer._scratch.close()


def finish(plan: Plan, bucket: Bucket, at_put: Callable[[str], object] = lambda path: None) -> None:
    with opened(plan, bucket, at_put) as writer:
        for shard in writer.unfinished:
            assert writer.claim(shard)
            plan.publish(writer, shard)  # type: ignore[arg-type]
        writer.complete()


def at_step(step: int, what: Callable[[], object]) -> Callable[[str], object]:
    """Do `what` before the put of that number."""
    left = [step]

    def at_put(path: str) -> None:
        left[0] -= 1
        if left[0] == 0:
            what()

    return at_put


def kill() -> None:
    raise Killed


def assert_sound(bucket: Bucket, folder: Path) -> None:
    report = verify_store(dump(bucket, folder), values=True, complete=True)
    assert report.faults == ()
    assert report.notes == ()
    assert not [path for path in bucket if path.rpartition("/")[2].startswith(".")]


PUTS = 5
"""Of a shard of three arrays: their files, the statistics, the record."""


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "int8"])
def test_a_bucket_gets_what_a_folder_gets(tmp_path: Path, dtype: str) -> None:
    plan = Plan(tmp_path / "local.zarr", make_manifest(dtype=dtype), frozenset((7, 20)))
    bucket: Bucket = {}
    finish(plan, bucket)
    plan.write()
    files = {file.relative_to(plan.path).as_posix(): file for file in plan.path.rglob("*") if file.is_file()}
    assert bucket == {name: file.read_bytes() for name, file in files.items() if file.name != ".lock"}


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("step", range(1, PUTS + 1))
def test_a_late_owner_wakes_when_all_is_done(tmp_path: Path, dtype: str, step: int) -> None:
    late, quick = small(tmp_path, dtype=dtype), small(tmp_path, 1.01, dtype=dtype)
    bucket: Bucket = {}
    opened(late, bucket).close()
    with opened(late, bucket) as writer:
        assert writer.claim(0)
        writer._objects.at_put = at_step(step, lambda: finish(quick, bucket))  # type: ignore[attr-defined]
        late.publish(writer, 0)  # type: ignore[arg-type]
        assert writer.unfinished == []
        before = dict(bucket)
        writer.complete()
    assert bucket == before
    assert_sound(bucket, tmp_path / "dumped")


@pytest.mark.parametrize("second", range(1, PUTS + 1))
@pytest.mark.parametrize("first", range(1, PUTS + 1))
def test_a_late_owner_wakes_in_the_midst_of_another(tmp_path: Path, first: int, second: int) -> None:
    """It goes on beside one that dies after some puts; a third one ends what is left."""
    plans = [small(tmp_path, scale) for scale in (1.0, 1.01, 0.99)]
    bucket: Bucket = {}
    opened(plans[0], bucket).close()

    def another() -> None:
        writer = opened(plans[1], bucket)
        assert writer.claim(0)
        writer._objects.at_put = at_step(second, kill)  # type: ignore[attr-defined]
        with killed_at(writer):
            plans[1].publish(writer, 0)  # type: ignore[arg-type]

    with opened(plans[0], bucket) as writer:
        assert writer.claim(0)
        writer._objects.at_put = at_step(first, another)  # type: ignore[attr-defined]
        plans[0].publish(writer, 0)  # type: ignore[arg-type]
    finish(plans[2], bucket)
    assert_sound(bucket, tmp_path / "dumped")


@pytest.mark.parametrize("step", range(1, 26))
def test_a_store_is_finished_whenever_its_writer_dies(tmp_path: Path, step: int) -> None:
    """From the first request of planning to the last of completion; the next is of the same machine."""
    bucket: Bucket = {}
    try:
        finish(small(tmp_path), bucket, at_step(step, kill))
    except Killed:
        assert "index.parquet" not in bucket
    else:
        assert step > 19
    finish(small(tmp_path), bucket)
    local = small(tmp_path)
    local.write()
    assert open_store(dump(bucket, tmp_path / "dumped")).digest == open_store(local.path).digest
    assert_sound(bucket, tmp_path / "dumped")


def test_threads_share_a_store(tmp_path: Path) -> None:
    plans = [Plan(tmp_path / "a.zarr", make_manifest(num_rows=100, layers=(2,))) for _ in range(4)]
    bucket: Bucket = {}

    def work(plan: Plan) -> list[int]:
        done = []
        with opened(plan, bucket) as writer:
            writer._leases._clock = lambda: 0.0  # nobody's time runs out
            writer._wait_s = 0.01
            for wanted in writer.rounds(writer.unfinished):
                for shard in wanted:
                    if writer.claim(shard):
                        plan.publish(writer, shard)  # type: ignore[arg-type]
                        done.append(shard)
            writer.complete()
        return done

    opened(plans[0], bucket).close()
    with ThreadPoolExecutor(4) as pool:
        assert sorted(chain.from_iterable(pool.map(work, plans))) == list(range(7))
    assert_sound(bucket, tmp_path / "dumped")


def test_a_shard_of_another_writer_is_left_to_it(tmp_path: Path) -> None:
    plan, bucket = small(tmp_path), Bucket()
    with opened(plan, bucket) as writer, opened(plan, bucket) as other:
        other._leases._clock = lambda: 0.0
        assert writer.claim(0)
        assert not other.claim(0)
        with pytest.raises(ShardBusyError, match=r"shard 0 of s3://memory/a.zarr is finished, or another"):
            plan.publish(other, 0)  # type: ignore[arg-type]
        with pytest.raises(IncompleteStoreError, match="1 of 1 are not"):
            other.complete()
        holder = json.loads(bucket["shards/.00000.json.tmp"])["holder"]
        assert holder.startswith("process ")
        writer._leases.give_up("shards/.00000.json.tmp")
        assert other._left([0]) == [0]
        assert other.claim(0)  # at once, whatever the time-out


def test_an_unfinished_store_is_sound(tmp_path: Path) -> None:
    """What a dead writer has uploaded stands beside its lease, which tells it from a lost record."""
    plan, bucket = small(tmp_path), Bucket()
    writer = opened(plan, bucket)
    assert writer.claim(0)
    writer._objects.at_put = at_step(3, kill)  # type: ignore[attr-defined]
    with killed_at(writer):
        plan.publish(writer, 0)  # type: ignore[arg-type]
    (dump(bucket, tmp_path / "dumped") / "shards").mkdir(exist_ok=True)
    report = verify_store(tmp_path / "dumped", deep=True)
    assert report.faults == ()
    assert list(report.shards_at_work) == [0]


def test_a_file_that_was_lost_or_cut_is_put_again(tmp_path: Path) -> None:
    plan, bucket = small(tmp_path), Bucket()
    finish(plan, bucket)
    whole = dict(bucket)
    del bucket["layer_02/cls/c/0/0/0"]
    bucket["layer_02/patches/c/0/0/0"] = whole["layer_02/patches/c/0/0/0"][:-1]
    finish(plan, bucket)
    assert bucket == whole
    del bucket["layer_02/cls/c/0/0/0"]
    with pytest.raises(CorruptStoreError, match="cannot be made again as it was"):
        finish(small(tmp_path, 1.01), bucket)
    assert bucket["shards/00000.json"] == whole["shards/00000.json"]


def test_records_come_back_from_the_index(tmp_path: Path) -> None:
    plan, bucket = small(tmp_path), Bucket()
    finish(plan, bucket)
    whole = dict(bucket)
    del bucket["shards/00000.json"]
    finish(small(tmp_path, 1.01), bucket)
    assert bucket == whole


def test_a_damaged_record_is_named_and_stays(tmp_path: Path) -> None:
    plan, bucket = small(tmp_path), Bucket()
    finish(plan, bucket)
    del bucket["index.parquet"]
    bucket["shards/00000.json"] += b" "
    with pytest.raises(CorruptStoreError, match=r"shards/00000.json is not what was written"):
        finish(plan, bucket)


def test_writers_that_see_other_images_are_told(tmp_path: Path) -> None:
    plan, other = small(tmp_path), small(tmp_path)
    other.bad_rows = frozenset((2,))
    bucket: Bucket = {}
    with opened(plan, bucket) as writer:
        assert writer.claim(0)
        writer._objects.at_put = at_step(2, kill)  # type: ignore[attr-defined]
        with killed_at(writer):
            plan.publish(writer, 0)  # type: ignore[arg-type]
    with pytest.raises(StoreMismatchError, match=r"see the same images; s3://memory/a.zarr/layer_02/cls/c/0"):
        finish(other, bucket)
    assert "shards/00000.json" not in bucket


def test_completers_with_other_libraries_end_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one's samples.parquet stands, in whatever bytes, and the index names it."""
    plan, bucket = small(tmp_path), Bucket()
    with opened(plan, bucket) as writer, opened(plan, bucket) as other:
        assert writer.claim(0)
        plan.publish(writer, 0)  # type: ignore[arg-type]
        with monkeypatch.context() as patch:
            patch.setattr("activault.store.sealed._UNIQUE", frozenset({"row", "key", "record", "source"}))
            other._objects.at_put = at_step(3, kill)  # type: ignore[attr-defined]
            with killed_at(other):
                other.complete()
        theirs = bucket["samples.parquet"]
        writer.complete()
        assert bucket["samples.parquet"] == theirs
        writer.complete()  # nothing to do
    assert_sound(bucket, tmp_path / "dumped")


def test_what_others_left_goes_when_it_is_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease of a shard that is finished, the planner's, and the object that conditions were tried on."""
    plan, bucket = small(tmp_path), Bucket()
    opened(plan, bucket).close()
    left = {".probe-0": b"1", ".planning": b"{}", "shards/.00000.json.tmp": b"{}"}
    bucket |= left
    monkeypatch.setattr("activault.store.object_writer._OLD_S", -1.0)
    with opened(plan, bucket) as writer:
        list(writer.rounds([]))
        writer.claim(0)
        writer.claim(0)
        plan.publish(writer, 0)  # type: ignore[arg-type]
        bucket |= left
        writer.complete()
    assert not left.keys() & bucket.keys()


def test_planners_join_the_first_or_are_refused(tmp_path: Path) -> None:
    bucket: Bucket = {}
    opened(small(tmp_path), bucket).close()
    opened(small(tmp_path, 2.0), bucket).close()
    with pytest.raises(StoreMismatchError, match=r"a.zarr was planned differently: row_seed is 0"):
        opened(small(tmp_path, row_seed=3), bucket)
    assert ".planning" not in bucket


def test_a_place_of_something_else_is_refused(tmp_path: Path) -> None:
    for there, message in (
        ({"holiday.jpg": b""}, "holds something else than a store"),
        ({".planning": b"0123\n"}, "a store is being published to s3://memory/a.zarr"),
        ({".planning": b"{}", "holiday.jpg": b""}, "and holiday.jpg, which this plan does not make"),
        ({".planning": b"{}", "teacher/config.json": b"[]"}, "teacher/config.json is not this one's"),
        ({".planning": b"{}", "samples.parquet": b"x"}, "samples.parquet is not this one's"),
    ):
        bucket = dict(there)
        with pytest.raises((NotAStoreError, StoreMismatchError), match=message):
            opened(small(tmp_path), bucket)
        assert there.keys() <= bucket.keys()
        assert "zarr.json" not in bucket


def test_nothing_stays_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    plan, bucket = small(tmp_path), Bucket()
    writer = opened(plan, bucket)
    left = writer._scratch.path
    assert writer.claim(0)
    plan.publish(writer, 0)  # type: ignore[arg-type]
    assert [file.name for file in left.rglob("*") if file.is_file() and "plan" not in file.parts] == ["lock"]
    killed = writer._scratch.close.detach()
    assert killed is not None
    os.close(killed[2][1])  # its lock goes with its handle
    finish(plan, bucket)
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_lost_lease_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plan, bucket = small(tmp_path), Bucket()
    path = "shards/.00000.json.tmp"
    with opened(plan, bucket) as writer, opened(plan, bucket) as other, caplog.at_level(logging.WARNING):
        assert writer.claim(0)
        assert writer._leases.renew(path)
        assert other.claim(0)
        assert "is taken over from process" in caplog.text
        assert not writer._leases.renew(path)
        assert "was taken over by another writer, as this one gave no sign for 500 s" in caplog.text
        assert not writer._leases.holds(path)
        writer._leases.give_up(path)  # nothing: it is another's
        assert other._leases.renew(path)


def test_outcomes_are_of_every_writer(tmp_path: Path) -> None:
    """An outcome without a content hash is another record, of the same values; the first stands."""
    plan, bucket = small(tmp_path), Bucket()
    with opened(plan, bucket) as writer, opened(plan, bucket) as late:
        assert late.claim(0)
        assert writer.claim(0)
        plan.publish(writer, 0)  # type: ignore[arg-type]
        first = bucket["shards/00000.json"]
        plan.outcomes = lambda rows: [Outcome(status="ok")] * len(list(rows))  # type: ignore[method-assign]
        plan.publish(late, 0)  # type: ignore[arg-type]
    assert bucket["shards/00000.json"] == first
