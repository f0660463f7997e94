"""Stores that are planned in a bucket, and that are found there; the bucket is in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from memory_objects import Bucket, MemoryObjects

from activault.store import (
    NotAStoreError,
    StoreMismatchError,
)
from activault.store.reader import _open

from .bucket_writers import finish, opened, small


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


@pytest.mark.parametrize("lost", [None, "layer_02/cls/c/0/0/0", "shards/00000.json", "index.parquet"])
def test_a_whole_store_is_known_by_listings(tmp_path: Path, lost: str | None) -> None:
    """And not by a request a file: a shard of a real teacher has dozens."""
    plan, bucket = small(tmp_path), Bucket()
    finish(plan, bucket)
    store, asked = _open(MemoryObjects(bucket)), list[str]()
    if lost is not None:
        del bucket[lost]
    stamp = store.storage.stamp  # type: ignore[attr-defined]

    def counted(path: str) -> tuple[int, str]:
        asked.append(path)
        return stamp(path)  # type: ignore[no-any-return]

    store.storage.stamp = counted  # type: ignore[attr-defined]
    assert store.is_whole == (lost is None)
    assert not [path for path in asked if path.startswith("layer_")]
    bucket["shards/00000.json"] = b"{}"
    assert not store.is_whole
