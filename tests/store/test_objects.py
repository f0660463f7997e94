"""Conditional writes on S3 servers: what is there stays, lost answers are read back, leases change hands."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import obstore
import pytest
from memory_objects import Bucket, MemoryObjects
from obstore.exceptions import GenericError
from s3_server import S3

from activault.store import ConfigError, StorageError, UnreachableError
from activault.store.answers import translated
from activault.store.object_leases import Leases
from activault.store.objects import Objects
from activault.store.remote import DEFAULTS

QUICK = replace(DEFAULTS, num_retries=2, first_wait_s=0.01, longest_wait_s=0.01)


@pytest.fixture
def objects(s3: S3) -> Objects:
    made = Objects(f"s3://{s3.make_bucket()}/a.zarr", QUICK)
    made.check_conditions()
    return made


def losing(
    monkeypatch: pytest.MonkeyPatch,
    times: int,
    *,
    before: bool = False,
    then: Callable[[], object] | None = None,
) -> None:
    """Have the connection drop at the next puts, before they are done or when they are."""
    original, left = obstore.put, [times]

    def put(*arguments: Any, **options: Any) -> Any:
        if not left[0]:
            return original(*arguments, **options)
        left[0] -= 1
        if not before:
            original(*arguments, **options)
        if then is not None:
            then()
        raise GenericError("HTTP error: error sending request")

    monkeypatch.setattr(obstore, "put", put)


def test_what_is_there_stays(objects: Objects, tmp_path: Path) -> None:
    tag = objects.create("c/0", b"one")
    assert tag is not None
    assert objects.create("c/0", b"two") is None
    assert objects.create("c/0", b"one") == tag  # the very bytes count as written
    (tmp_path / "file").write_bytes(b"one")
    (tmp_path / "empty").write_bytes(b"")
    assert objects.create_file("c/0", tmp_path / "file") == tag
    assert objects.create_file("c/1", tmp_path / "empty") is not None
    assert objects.replace("c/0", b"two", '"0"') is None
    assert objects.replace("c/2", b"two", tag) is None  # nothing is there
    newer = objects.replace("c/0", b"two", tag)
    assert objects.read_tagged("c/0") == (b"two", newer)
    assert objects.replace("c/0", b"three", tag) is None
    assert {path: entry.size for path, entry in objects.entries("c").items()} == {"c/0": 3, "c/1": 0}
    objects.remove("c/0")
    objects.remove("c/0")
    assert objects.find("c/0") is objects.read_tagged("c/0") is None
    assert list(objects.entries()) == ["c/1"]  # the probe is gone


def test_an_answer_that_was_lost_is_read_back(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        losing(patch, 1)
        tag = objects.create("a", b"one")
        assert tag is not None
    with monkeypatch.context() as patch:
        losing(patch, 1)
        newer = objects.replace("a", b"two", tag)
        assert objects.read_tagged("a") == (b"two", newer)
    with monkeypatch.context() as patch:
        losing(patch, 2, before=True)
        assert objects.create("b", b"one") is not None
    with monkeypatch.context() as patch:  # meanwhile somebody else was there
        losing(patch, 1, before=True, then=lambda: other.create("c", b"theirs"))
        other = Objects(objects.where)
        patch.setattr(other, "_put", lambda path, data, tag: put_directly(other, path, data))
        assert objects.create("c", b"ours") is None
    with monkeypatch.context() as patch:
        losing(patch, 9, before=True)
        with pytest.raises(UnreachableError, match="does not answer, or not to the end"):
            objects.create("d", b"one")


def put_directly(objects: Objects, path: str, data: bytes) -> str:
    Objects(objects.where)._tried(path, lambda client: client.put(path, data))
    return ""


@pytest.mark.parametrize(
    ("careless", "what"),
    [
        ("create", "it replaced an object that was to be created"),
        ("replace", "it replaced an object that was not the one meant"),
        ("never", "it does not replace the very object that was meant"),
    ],
)
def test_a_server_without_conditions_is_refused(careless: str, what: str) -> None:
    class Careless(MemoryObjects):
        def _put(self, path: str, data: Any, tag: str | None) -> str:
            if careless == "never" and tag is not None:
                tag = "other"
            if (tag is None and careless == "create") or (tag is not None and careless == "replace"):
                self.bucket[path] = data
                return str(tag)
            return super()._put(path, data, tag)

    bucket: Bucket = {}
    with pytest.raises(StorageError, match="keep apart by conditional requests") as caught:
        Careless(bucket).check_conditions()
    assert what in str(caught.value)
    assert bucket == {}


def test_quotes_of_tags_are_as_the_server_wants_them(objects: Objects, s3: S3) -> None:
    """Ceph takes none; both servers of these tests take tags without."""
    assert objects.strip_quotes


def test_no_room_is_told_from_no_right() -> None:
    answer = (
        "Server returned non-2xx status code: 403 Forbidden: <?xml?><Error><Code>QuotaExceeded</Code></Error>"
    )
    told = translated(GenericError(answer), "c/0", "s3://bucket/a.zarr")
    assert type(told) is StorageError
    assert "there is no room, or a quota is used up" in str(told)


def test_an_object_is_removed_by_several_at_once(s3: S3) -> None:
    """Ceph may answer one of them that it was not there."""
    objects = Objects(f"s3://{s3.make_bucket()}/a.zarr")
    with ThreadPoolExecutor(8) as pool:
        for number in range(5):
            objects.create(f"x{number}", b"1")
            list(pool.map(objects.remove, [f"x{number}"] * 8))
    assert objects.entries() == {}


def test_what_is_gone_when_it_is_read_back_was_anothers() -> None:
    """A lease of the same length, which its owner removed at that moment."""

    class Vanishing(MemoryObjects):
        def fetch(self, path: str, start: int, stop: int) -> tuple[bytes, int]:
            self.bucket.pop(path, None)
            return super().fetch(path, start, stop)

    assert Vanishing({"x": b"theirs"}).create("x", b"mine..") is None


@pytest.mark.parametrize("url", ["https://host/a.zarr", "s3://bucket", "s3://bucket/"])
def test_a_place_that_nothing_can_be_written_to_is_wrong_usage(url: str) -> None:
    with pytest.raises(ConfigError):
        Objects(url)


def test_leases_change_hands_by_the_observers_clock() -> None:
    bucket, now = Bucket(), [0.0]
    ours, theirs = (Leases(MemoryObjects(bucket), 60.0, clock=lambda: now[0]) for _ in range(2))
    assert ours.take("x")
    assert ours.take("x")
    assert not theirs.take("x")
    now[0] = 59.0
    assert not theirs.take("x")
    assert ours.renew("x")
    now[0] = 61.0  # it was seen unchanged since 59 at the most
    assert not theirs.take("x")
    now[0] = 120.0
    assert not theirs.take("x")
    now[0] = 121.0
    assert theirs.take("x")
    assert not ours.renew("x")
    ours.give_up("x")
    assert theirs.renew("x")
    theirs.close()
    assert ours.take("x")  # given up, so at once
    ours.close()


def test_the_time_out_is_the_owners_own() -> None:
    """A writer with a longer one renews less often."""
    bucket, now = Bucket(), [0.0]
    slow = Leases(MemoryObjects(bucket), 600.0, clock=lambda: now[0])
    quick = Leases(MemoryObjects(bucket), 6.0, clock=lambda: now[0])
    assert slow.take("x")
    assert not quick.take("x")
    now[0] = 599.0
    assert not quick.take("x")
    now[0] = 600.0
    assert quick.take("x")
    slow.close()
    quick.close()


def test_a_lease_that_says_nothing_is_taken_over_after_our_time_out() -> None:
    bucket, now = {"x": b"what?"}, [0.0]
    leases = Leases(MemoryObjects(bucket), 60.0, clock=lambda: now[0])
    assert not leases.take("x")
    now[0] = 60.0
    assert leases.take("x")
    leases.close()


def test_leases_are_renewed_while_their_owner_lives() -> None:
    bucket: Bucket = {}
    ours, theirs = Leases(MemoryObjects(bucket), 0.2), Leases(MemoryObjects(bucket), 0.2)
    assert ours.take("x")
    end = time.monotonic() + 10
    while json.loads(bucket["x"])["beat"] < 3:
        assert time.monotonic() < end
        time.sleep(0.02)
    ours._stopped.set()  # as if it had been stopped
    end = time.monotonic() + 10
    while not theirs.take("x"):
        assert time.monotonic() < end
        time.sleep(0.02)
    ours.close()
    theirs.close()
    assert b'"owner":null' in bucket["x"]


def test_only_one_of_many_gets_a_lease(s3: S3) -> None:
    url = f"s3://{s3.make_bucket()}/a.zarr"
    leases = [Leases(Objects(url), 60.0) for _ in range(8)]
    won: list[bool] = []
    threads = [threading.Thread(target=lambda each=each: won.append(each.take("x"))) for each in leases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [False] * 7 + [True]
    for each in leases:
        each.close()
