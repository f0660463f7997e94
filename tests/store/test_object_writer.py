"""What a writer of a store in a bucket does beside others, and what it leaves; the bucket is in memory."""

from __future__ import annotations

import json
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

import pytest
from memory_objects import Bucket, MemoryObjects, dump

from activault.store import (
    CorruptStoreError,
    IncompleteStoreError,
    Outcome,
    ShardBusyError,
    StoreMismatchError,
    verify_store,
)
from activault.store import object_shards as shards_module

from .bucket_writers import assert_sound, at_step, finish, kill, killed_at, opened, small
from .conftest import Plan, make_manifest


@pytest.fixture(autouse=True)
def _one_upload(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests in one order, so that each can be counted."""
    monkeypatch.setattr(shards_module, "_UPLOADS", 1)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "int8"])
def test_a_bucket_gets_what_a_folder_gets(tmp_path: Path, dtype: str) -> None:
    plan = Plan(tmp_path / "local.zarr", make_manifest(dtype=dtype), frozenset((7, 20)))
    bucket: Bucket = {}
    finish(plan, bucket)
    plan.write()
    files = {file.relative_to(plan.path).as_posix(): file for file in plan.path.rglob("*") if file.is_file()}
    assert bucket == {name: file.read_bytes() for name, file in files.items() if file.name != ".lock"}


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


@pytest.mark.parametrize("deleted", ["shards/00000.stats.safetensors", "layer_02/cls/c/0/0/0"])
def test_what_verify_names_mends_an_altered_object(tmp_path: Path, deleted: str) -> None:
    """Of its own size, so that nobody sees it who does not read every byte."""
    plan, bucket = small(tmp_path), Bucket()
    finish(plan, bucket)
    whole = dict(bucket)
    path = "layer_02/cls/c/0/0/0"
    bucket[path] = b"\1" * len(whole[path])
    [fault] = verify_store(dump(bucket, tmp_path / "dumped"), deep=True).faults
    assert "or delete shards/00000.stats.safetensors and run again" in fault.detail
    del bucket[deleted]
    finish(plan, bucket)
    assert bucket == whole


def test_an_altered_object_that_cannot_be_made_again_is_named(tmp_path: Path) -> None:
    plan, bucket = small(tmp_path), Bucket()
    finish(plan, bucket)
    path = "layer_02/cls/c/0/0/0"
    bucket[path] = b"\1" * len(bucket[path])
    del bucket["shards/00000.stats.safetensors"]
    with pytest.raises(CorruptStoreError, match=f"{path} is missing or damaged, and cannot be made again"):
        finish(small(tmp_path, 1.01), bucket)


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


def test_a_store_that_is_planned_between_two_looks_is_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, bucket = small(tmp_path), Bucket()

    def listed(objects: MemoryObjects, folder: str) -> list[str] | None:
        monkeypatch.undo()
        opened(plan, bucket).close()  # another planner, that was quicker
        return objects.names(folder)

    monkeypatch.setattr(MemoryObjects, "names", listed)
    with opened(plan, bucket) as writer:
        assert writer.unfinished == [0]


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


def test_a_finished_shard_is_claimed_by_nobody_and_costs_one_request(tmp_path: Path) -> None:
    """As each worker asks for, at the end of a run, whatever others have finished since it began."""
    plan, bucket = small(tmp_path), Bucket()
    finish(plan, bucket)
    asked = list[str]()
    with opened(plan, bucket, asked.append) as writer:
        assert writer.unfinished == []
        begun, fetch = len(asked), writer._objects.fetch

        def counted(path: str, start: int, stop: int) -> tuple[bytes, int]:
            asked.append(path)
            return fetch(path, start, stop)

        writer._objects.fetch = counted  # type: ignore[method-assign]
        assert not writer.claim(0)
    assert asked[begun:] == ["shards/00000.json"]
