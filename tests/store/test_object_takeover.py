"""Writers of one store in a bucket, stopped and woken at every request; the bucket is in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from memory_objects import Bucket, dump

from activault.store import object_shards as shards_module
from activault.store import open_store

from .bucket_writers import Killed, assert_sound, at_step, finish, kill, killed_at, opened, small


@pytest.fixture(autouse=True)
def _one_upload(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests in one order, so that each can be counted."""
    monkeypatch.setattr(shards_module, "_UPLOADS", 1)


PUTS = 5
"""Of a shard of three arrays: their files, the statistics, the record."""


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
