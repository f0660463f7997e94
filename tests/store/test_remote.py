"""A store on a static web server, sound and misbehaving; the server is real, on loopback."""

from __future__ import annotations

import multiprocessing
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from http_server import Body, Cut, Fault, Headers, Short, Stall, StaticServer, Status, Whole

from activault.store import (
    CorruptStoreError,
    IncompleteStoreError,
    NotAStoreError,
    Store,
    open_store,
    remote,
)
from activault.store.errors import AccessDeniedError, StorageError, UnreachableError
from activault.store.remote import Remote, RemoteSettings

from .conftest import MakePlan, Plan

QUICK = RemoteSettings(
    connect_timeout_s=1,
    read_timeout_s=0.4,
    num_retries=2,
    retry_for_s=5,
    first_wait_s=0.01,
    longest_wait_s=0.05,
)
LAYERS = [0, 2, 4]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "DEFAULTS", QUICK)


@pytest.fixture
def server(written: Plan, serve: Callable[[Path], StaticServer]) -> StaticServer:
    """Serves the written store as /a.zarr."""
    return serve(written.path.parent)


@pytest.fixture
def far(server: StaticServer) -> Store:
    store = open_store(f"{server.url}/a.zarr")
    assert len(store.valid_rows) == 48  # the statuses are read once, before the first chunk
    server.forget()
    return store


def paths(server: StaticServer) -> list[str]:
    return [request.path.removeprefix("a.zarr/") for request in server.requests]


def test_a_complete_store_reads_as_from_disk(server: StaticServer, written: Plan, store: Store) -> None:
    far = open_store(f"{server.url}/a.zarr/")
    assert far.path == f"{server.url}/a.zarr"
    assert far.info() == store.info()
    assert far.samples.equals(store.samples)
    np.testing.assert_array_equal(far.read(slice(0, 50), LAYERS), written.stored)
    np.testing.assert_array_equal(far.read([49, 3, 3], [4], "patches"), written.stored[[49, 3, 3], 2:, 3:])
    np.testing.assert_array_equal(far.label_ids, store.label_ids)


def test_opening_asks_for_each_file_once(server: StaticServer) -> None:
    """zarr.json first, then the 9 arrays' and the index, side by side."""
    open_store(f"{server.url}/a.zarr")
    asked = paths(server)
    assert asked[0] == "zarr.json"
    assert len(asked) == len(set(asked)) == 11
    assert all(request.method == "GET" for request in server.requests)


def test_one_chunk_of_one_array_brings_its_index_and_itself_alone(far: Store, server: StaticServer) -> None:
    far.read([17], [2], "patches")
    index, chunk = server.requests
    assert index.path == chunk.path == "a.zarr/layer_02/patches/c/1/0/0"
    size = (server.folder / index.path).stat().st_size
    assert index.range == (size - 16 * 4 - 4, size)
    assert chunk.range is not None
    assert chunk.sent < size / 3
    server.forget()
    far.read([18, 19], [2], "patches")  # of the same chunk: the index is known
    assert [request.range for request in server.requests] == [chunk.range]


def test_chunks_that_lie_close_come_by_one_request(far: Store, server: StaticServer, written: Plan) -> None:
    x = far.read(slice(0, 16), [0], "cls")
    np.testing.assert_array_equal(x[:, 0], written.stored[:16, 0, :1])
    assert len(server.requests) == 2
    used = (server.folder / server.requests[0].path).stat().st_size
    assert sum(request.sent for request in server.requests) <= used


def test_many_requests_are_under_way_at_once_but_no_more_than_allowed(
    server: StaticServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "DEFAULTS", RemoteSettings(num_requests=8))
    far = open_store(f"{server.url}/a.zarr")
    server.forget()
    server.fault(Stall(0.03))
    with ThreadPoolExecutor(2) as users:
        list(users.map(lambda _: far.read(slice(0, 50), LAYERS), range(2)))
    # A handler that has sent its last byte is counted until it is gone: hence two more than were allowed.
    assert 6 <= server.most_at_once <= 8 + 2


def test_a_store_in_a_folder_with_an_odd_name(written: Plan, tmp_path: Path, serve: Callable) -> None:
    shutil.copytree(written.path, tmp_path / "a b" / "ü+%.zarr")
    url = serve(tmp_path).url
    assert open_store(f"{url}/a b/%C3%BC+%25.zarr").digest == open_store(written.path).digest


def test_an_unfinished_store_finds_its_records_by_asking(make_plan: MakePlan, serve: Callable) -> None:
    plan = make_plan()
    plan.write(shards=[1, 3])
    server = serve(plan.path.parent)
    far = open_store(f"{server.url}/a.zarr")
    assert not far.complete
    assert far.digest == open_store(plan.path).digest
    np.testing.assert_array_equal(far.read([16, 48], LAYERS), plan.stored[[16, 48]])
    with pytest.raises(IncompleteStoreError, match="rows 0 to 15 are not written yet"):
        far.read([0], [0])


def test_an_unfinished_store_of_too_many_shards_is_not_asked_through(
    make_plan: MakePlan, serve: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan()
    plan.write(shards=[1])
    monkeypatch.setattr("activault.store.shards.MOST_ASKED", 3)
    with pytest.raises(
        StorageError, match=r"at most 3 shards where nothing can be listed; http.* has 4; read"
    ):
        open_store(f"{serve(plan.path.parent).url}/a.zarr")


def test_a_missing_root_is_told(server: StaticServer) -> None:
    url = f"{server.url}/nothing.zarr"
    with pytest.raises(NotAStoreError, match=rf"{url} .*no {url}/zarr.json\); check the URL"):
        open_store(url)


PASSING = [
    Status(503, 1),
    Status(429, 1),
    Status(500),
    Cut(-1),
    Cut(10),
    Short(3),
    Stall(2),
    Stall(2, after=5),
]


@pytest.mark.parametrize("fault", PASSING, ids=repr)
def test_what_passes_is_not_seen(far: Store, server: StaticServer, written: Plan, fault: Fault) -> None:
    server.fault(fault, times=1)
    server.fault(fault, times=1, match="/c/")
    np.testing.assert_array_equal(far.read(slice(0, 20), [0, 4]), written.stored[:20, [0, 2]])


REFUSED = [
    (Status(401), AccessDeniedError, r"may not be read \(401\); no credentials are sent over http"),
    (Status(403), AccessDeniedError, r"may not be read \(403\); no credentials are sent over http"),
    (
        Status(404),
        CorruptStoreError,
        r"c/1/0/0 is missing; its shard's record says that it is there; restore",
    ),
    (Status(410), CorruptStoreError, r"c/1/0/0 is missing"),
    (Status(400), StorageError, r"cannot be read \(.*400 Bad Request.*\); check the URL"),
    (Status(429), UnreachableError, r"does not answer, or not to the end \(.*429.*\); try again later"),
    (Status(503), UnreachableError, r"does not answer, or not to the end \(.*after 2 retries.*503"),
    (Cut(-1), UnreachableError, r"does not answer, or not to the end \(.*error sending request"),
    (Cut(1), UnreachableError, r"does not answer, or not to the end \(.*body error"),
    (Short(1), UnreachableError, r"does not answer, or not to the end \(\d+ bytes of \d+\)"),
    (Stall(3), UnreachableError, r"does not answer, or not to the end"),
    (Whole(), StorageError, r"this server ignores Range requests"),
    (Body(b"<html>log in</html>"), StorageError, r"this server ignores Range requests"),
    (Headers((("Content-Encoding", "gzip"),)), StorageError, r"this server encodes files \(.*: gzip\)"),
    (Headers((("Content-Range", "bytes 0-1/*"),)), StorageError, r"must tell .* \(.*bytes 0-1/\*.*\); use"),
    (Headers((("Content-Range", None),)), StorageError, r"must tell .* \(.*not present.*\); use"),
    (Headers((("Content-Range", "bytes 0-1/999999"),)), StorageError, r"must tell .* \(.*got 0\.\.2\); use"),
    (Headers((("Location", "?"),), 302), StorageError, r"this server redirects .*; give the URL"),
]


@pytest.mark.parametrize(("fault", "error", "message"), REFUSED, ids=lambda value: repr(value)[:24])
def test_what_stays_is_told_apart(
    far: Store, server: StaticServer, fault: Fault, error: type[Exception], message: str
) -> None:
    server.fault(fault, match="/c/")
    with pytest.raises(error, match=rf"^rows 16 to 19 \(shard 1\): .*{message}") as caught:
        far.read([16], [2], "patches")
    assert type(caught.value) is error
    server.heal()
    far.read([16], [2], "patches")  # nothing of the failure is kept


def test_a_server_that_is_gone(server: StaticServer, far: Store) -> None:
    server.close()
    with pytest.raises(UnreachableError, match="does not answer"):
        far.read([0], [0])
    with pytest.raises(UnreachableError, match="does not answer"):
        open_store(f"{server.url}/a.zarr")


def test_no_such_host() -> None:
    with pytest.raises(UnreachableError, match=r"http://nowhere\.invalid/a\.zarr/zarr\.json does not answer"):
        open_store("http://nowhere.invalid/a.zarr")


@pytest.mark.parametrize("change", [-4, 4], ids=["shorter", "longer"])
def test_a_file_of_another_size_than_its_record_says(copy: Path, serve: Callable, change: int) -> None:
    far = open_store(f"{serve(copy.parent).url}/copy.zarr")
    file = copy / "layer_00/cls/c/0/0/0"
    data = file.read_bytes()
    file.write_bytes(data[:change] if change < 0 else data + bytes(change))
    with pytest.raises(CorruptStoreError, match=rf"must have {len(data)} bytes; it has {len(data) + change}"):
        far.read([0], [0], "cls")


def test_a_file_that_ends_before_its_index(copy: Path, serve: Callable) -> None:
    far = open_store(f"{serve(copy.parent).url}/copy.zarr")
    (copy / "layer_00/cls/c/0/0/0").write_bytes(b"abc")
    with pytest.raises(CorruptStoreError, match=r"must have more than \d+ bytes; it ends before"):
        far.read([0], [0], "cls")


def test_a_large_file_is_read_by_ranges_and_goes_on_after_a_cut(
    tmp_path: Path, serve: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_BLOCK_BYTES", 1 << 16)
    data = np.random.default_rng(0).bytes(300_000)
    (tmp_path / "f").write_bytes(data)
    (tmp_path / "empty").write_bytes(b"")
    server = serve(tmp_path)
    place = Remote(server.url)
    for fault in (Cut(20_000), Short(9), Status(503)):
        server.fault(fault, times=1)
        assert place.read("f") == data
        server.fault(fault, times=1)
        assert b"".join(place.blocks("f")) == data
    assert place.read("empty") == b"".join(place.blocks("empty")) == b""
    assert (place.size("f"), place.size("empty")) == (300_000, 0)
    assert place.names("") is None
    with pytest.raises(CorruptStoreError, match="f holds at most 100000 bytes; it has 300000"):
        place.read("f", 100_000)


def test_a_forked_child_is_told_to_be_spawned(far: Store) -> None:
    """obstore's threads are gone in it, and a request would wait for ever."""
    far.read([0], [0])
    receive, send = multiprocessing.Pipe(duplex=False)

    def child() -> None:
        try:
            far.read([0], [0])
        except StorageError as exc:
            send.send(str(exc))

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(20)
    assert receive.poll(1)
    assert "start workers with the method 'spawn'" in receive.recv()


def test_a_spawned_child_reads(far: Store, written: Plan) -> None:
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer).read([1], [0]).tobytes().hex())"
    done = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(far), capture_output=True, check=True
    )
    assert bytes.fromhex(done.stdout.decode()) == written.stored[[1], :1].tobytes()
