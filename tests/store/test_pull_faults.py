"""Pulls that are killed, run out of disk, or read from places that misbehave."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from http_server import Body, Cut, Headers, Short, StaticServer, Status
from s3_server import S3

from activault.store import (
    CorruptStoreError,
    NotAStoreError,
    StorageError,
    StoreError,
    open_store,
    verify_store,
)
from activault.store.errors import UnreachableError
from activault.store.fetching import Retries
from activault.store.merging import merge
from activault.store.remote import Remote, RemoteSettings
from activault.store.transfer import plan_pull, pull

from .conftest import MakePlan, Plan
from .test_pull import tree

SCRIPT = Path(__file__).parent / "pull_store.py"
Serve = Callable[[Path], StaticServer]
QUICK = RemoteSettings(num_retries=2, first_wait_s=0.02, longest_wait_s=0.05, read_timeout_s=2.0)
AT_ONCE = Retries(times=2, first_s=0.0)

# Files that get their names: 17 in planning, then 11 a shard (9 arrays, statistics, record), 3 at completion.
STEPS = {"in planning": (5, 0), "in the midst of shards": (30, 0), "after records": (18, 1), "again": (14, 2)}


def test_a_killed_pull_goes_on(written: Plan, tmp_path: Path) -> None:
    path = tmp_path / "b.zarr"
    for moment, (step, finished) in STEPS.items():
        command = [sys.executable, str(SCRIPT), str(written.path), str(path), str(step)]
        done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True)
        assert done.returncode == -signal.SIGKILL, (moment, done.stderr)
        with contextlib.suppress(NotAStoreError):
            report = verify_store(path, deep=True)
            assert report.faults == (), moment
            assert report.finished_shards >= finished, moment
    pull(written.path, path)
    assert tree(path) == tree(written.path)


def test_files_of_a_killed_pull_are_kept(written: Plan, tmp_path: Path) -> None:
    path = tmp_path / "b.zarr"
    command = [sys.executable, str(SCRIPT), str(written.path), str(path), "23"]
    subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)
    there = {file: file.stat().st_ino for file in path.glob("layer_*/*/c/*/0/0")}
    assert there
    pull(written.path, path)
    assert {file: file.stat().st_ino for file in there} == there


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Mounts of a few pages each, until the test ends."""
    made: list[Path] = []

    def mount(num_bytes: int) -> Path:
        folder = tmp_path / f"disk{len(made)}"
        folder.mkdir()
        options = ["-t", "tmpfs", "-o", f"size={num_bytes}", "tmpfs", str(folder)]
        done = subprocess.run(["mount", *options], capture_output=True, text=True)
        if done.returncode:
            reason = f"a small disk cannot be mounted here: {done.stderr.strip()}"
            if os.environ.get("CI") == "true" and os.geteuid() == 0:
                pytest.fail(reason)
            pytest.skip(reason)
        made.append(folder)
        return folder

    yield mount
    for folder in made:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.mount
def test_a_disk_that_fills_up(written: Plan, small_disk: Callable[[int], Path]) -> None:
    """Room for what is told but not for what a file system adds: pages, and files of a page each."""
    disk = small_disk(160 << 10)
    with pytest.raises(StoreError, match=r"could not be written \(No space left on device\); free at least"):
        pull(written.path, disk / "b.zarr")
    subprocess.run(["mount", "-o", "remount,size=8m", str(disk)], check=True)
    assert verify_store(disk / "b.zarr", deep=True).faults == ()
    pull(written.path, disk / "b.zarr")
    assert tree(disk / "b.zarr") == tree(written.path)


@pytest.mark.mount
def test_a_disk_without_room_is_told_before_anything_is_copied(
    written: Plan, small_disk: Callable[[int], Path]
) -> None:
    disk = small_disk(16 << 10)
    with pytest.raises(StoreError, match=r"b.zarr needs 0.0 MB more; 0.0 MB are free there"):
        pull(written.path, disk / "b.zarr")
    assert not (disk / "b.zarr").exists()


def test_an_error_of_the_disk_names_the_copy(
    written: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(handle: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(StoreError, match=r"b.zarr could not be written \(Input/output error\)"):
        pull(written.path, tmp_path / "b.zarr")


def test_a_pull_from_a_web_server(written: Plan, tmp_path: Path, serve: Serve) -> None:
    server = serve(written.path.parent)
    pull(f"{server.url}/a.zarr", tmp_path / "b.zarr")
    assert tree(tmp_path / "b.zarr") == tree(written.path)
    # 36 arrays' files, 4 statistics, 2 of the teacher, zarr.json, index, samples.
    assert len(server.requests) <= 36 + 4 + 2 + 3
    assert {request.method for request in server.requests} == {"GET"}


def test_a_part_from_a_web_server_asks_for_no_more(written: Plan, tmp_path: Path, serve: Serve) -> None:
    server = serve(written.path.parent)
    planned = plan_pull(f"{server.url}/a.zarr", layers="2", tokens="cls", rows="0:16")
    assert len(server.requests) <= 3
    planned.run(tmp_path / "b.zarr")
    arrays = [request.path for request in server.requests if "/c/" in request.path]
    assert arrays == ["a.zarr/layer_02/cls/c/0/0/0"]
    assert verify_store(tmp_path / "b.zarr", deep=True, complete=True).faults == ()


def test_an_unfinished_store_on_a_web_server(make_plan: MakePlan, tmp_path: Path, serve: Serve) -> None:
    plan = make_plan("growing.zarr")
    plan.write([1])
    copy = pull(f"{serve(plan.path.parent).url}/growing.zarr", tmp_path / "b.zarr")
    assert open_store(copy).finished_rows.tolist() == list(range(16, 32))


FAULTS = {
    "dropped before the answer": Cut(after=-1),
    "dropped in the body": Cut(after=40),
    "503": Status(503),
    "429": Status(429, retry_after=1),
    "a body that ends early": Short(),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_server_that_recovers(written: Plan, tmp_path: Path, serve: Serve, fault: object) -> None:
    server = serve(written.path.parent)
    server.fault(fault, times=6, match="/c/")  # type: ignore[arg-type]
    server.fault(fault, times=1, match="stats")  # type: ignore[arg-type]
    pull(Remote(f"{server.url}/a.zarr", QUICK), tmp_path / "b.zarr", retries=AT_ONCE)
    assert tree(tmp_path / "b.zarr") == tree(written.path)


@pytest.mark.parametrize("fault", [Cut(after=40), Status(503)], ids=["dropped", "503"])
def test_a_server_that_does_not_recover(
    written: Plan, tmp_path: Path, serve: Serve, fault: Cut | Status
) -> None:
    server, path = serve(written.path.parent), tmp_path / "b.zarr"
    server.fault(fault, match="layer_04/patches/c/3")
    with pytest.raises(UnreachableError, match="layer_04/patches/c/3/0/0 does not answer, or not to the end"):
        pull(Remote(f"{server.url}/a.zarr", QUICK), path, retries=AT_ONCE)
    assert verify_store(path, deep=True).faults == ()
    server.heal()
    server.forget()
    pull(f"{server.url}/a.zarr", path)
    assert tree(path) == tree(written.path)
    arrays = [request for request in server.requests if "/c/" in request.path]
    assert 1 <= len(arrays) < 12  # what had arrived was not asked for again


REFUSED = {
    "416": Status(416),
    "an absurd length": Headers((("Content-Length", "99999999999999"),)),
}


@pytest.mark.parametrize("fault", REFUSED.values(), ids=REFUSED)
def test_a_server_that_gives_no_byte_of_a_file(
    written: Plan, tmp_path: Path, serve: Serve, fault: Status | Headers
) -> None:
    server = serve(written.path.parent)
    server.fault(fault, match="layer_02/cls/c/1")
    with pytest.raises(
        StorageError, match=r"c/1/0/0 must have \d+ bytes; .*this place misbehaves; try again"
    ):
        pull(Remote(f"{server.url}/a.zarr", QUICK), tmp_path / "b.zarr", retries=AT_ONCE)


def test_an_empty_file_on_the_server_is_damaged(copy: Path, tmp_path: Path, serve: Serve) -> None:
    (copy / "layer_02/cls/c/1/0/0").write_bytes(b"")
    server = serve(copy.parent)
    with pytest.raises(CorruptStoreError, match=r"it has 0; so it is damaged in .*copy from another source"):
        pull(Remote(f"{server.url}/copy.zarr", QUICK), tmp_path / "b.zarr", retries=AT_ONCE)


def test_bytes_that_change_on_the_way_are_asked_for_again(
    written: Plan, tmp_path: Path, serve: Serve
) -> None:
    name = "layer_02/cls/c/1/0/0"
    server = serve(written.path.parent)
    remote = Remote(f"{server.url}/a.zarr", QUICK)
    original, spoilt = remote.fetch, []

    def fetch(path: str, start: int, stop: int) -> tuple[bytes, int]:
        data, size = original(path, start, stop)
        if path == name and len(spoilt) < 2:
            spoilt.append(path)
            data = bytes(len(data))
        return data, size

    remote.fetch = fetch  # type: ignore[method-assign]
    pull(remote, tmp_path / "b.zarr", retries=AT_ONCE)
    assert len(spoilt) == 2
    assert tree(tmp_path / "b.zarr") == tree(written.path)


def test_a_log_in_page_is_no_store(written: Plan, tmp_path: Path, serve: Serve) -> None:
    server = serve(written.path.parent)
    server.fault(Body(b"<html>log in</html>" * 1000))
    with pytest.raises(StoreError):
        pull(Remote(f"{server.url}/a.zarr", QUICK), tmp_path / "b.zarr", retries=AT_ONCE)
    assert not (tmp_path / "b.zarr").exists()


def test_a_larger_file_on_the_server_is_refused(copy: Path, tmp_path: Path, serve: Serve) -> None:
    with (copy / "layer_00/cls/c/3/0/0").open("ab") as file:
        file.write(b"more")
    server = serve(copy.parent)
    with pytest.raises(CorruptStoreError, match="layer_00/cls/c/3/0/0 must have"):
        pull(Remote(f"{server.url}/copy.zarr", QUICK), tmp_path / "b.zarr", retries=AT_ONCE)


def test_a_body_without_an_end_is_not_read_to_its_end(tmp_path: Path) -> None:
    """It took 4 GB of memory and then the process, where the answer was taken whole."""
    lines = ("HTTP/1.1 206 Partial Content", "Content-Range: bytes 0-99/100", "Content-Length: 1099511627776")
    head = "".join(f"{line}\r\n" for line in (*lines, "")).encode()
    sent: list[int] = []

    def serve(listener: socket.socket) -> None:
        with listener, listener.accept()[0] as connection, contextlib.suppress(OSError):
            connection.recv(1 << 16)
            connection.sendall(head)
            while len(sent) < 200:
                connection.sendall(bytes(1 << 20))
                sent.append(1)

    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=serve, args=(listener,), daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/a.zarr"
    with pytest.raises(StoreError, match="sends more than the 100 bytes that it was asked for"):
        pull(Remote(url, QUICK), tmp_path / "b.zarr")
    thread.join()
    assert len(sent) < 50  # MiB, most of them in the sockets' buffers


def test_parts_on_a_web_server_are_merged(written: Plan, tmp_path: Path, serve: Serve) -> None:
    for name, layers in (("one.zarr", "0"), ("two.zarr", "2,4")):
        pull(written.path, tmp_path / "www" / name, layers=layers)
    server = serve(tmp_path / "www")
    out = merge([f"{server.url}/one.zarr", tmp_path / "www/two.zarr"], tmp_path / "all.zarr")
    assert tree(out) == tree(written.path)


def test_a_pull_from_a_bucket(written: Plan, tmp_path: Path, s3: S3) -> None:
    bucket = s3.make_bucket()
    s3.put_folder(bucket, "some/a.zarr", written.path)
    pull(f"s3://{bucket}/some/a.zarr", tmp_path / "b.zarr")
    assert tree(tmp_path / "b.zarr") == tree(written.path)
    part = open_store(pull(f"s3://{bucket}/some/a.zarr", tmp_path / "c.zarr", tokens="cls"))
    assert (part.complete, part.kinds) == (True, ("cls",))


def test_a_pull_of_a_part_from_a_bucket_goes_on(written: Plan, tmp_path: Path, s3: S3) -> None:
    bucket, lost = s3.make_bucket(), "layer_04/patches/c/2/0/0"
    s3.put_folder(bucket, "a.zarr", written.path)
    s3.delete(f"{bucket}/a.zarr/{lost}")
    planned, out = plan_pull(f"s3://{bucket}/a.zarr", layers="2,4", rows="0:48"), tmp_path / "b.zarr"
    with pytest.raises(CorruptStoreError, match=f"{lost} .*is missing"):
        planned.run(out, num_threads=1)
    there = {file: file.stat().st_ino for file in out.glob("layer_*/*/c/*/0/0")}
    assert there
    s3.put(f"{bucket}/a.zarr/{lost}", (written.path / lost).read_bytes())
    part = open_store(planned.run(out))
    assert {file: file.stat().st_ino for file in there} == there
    assert (list(part.layers), part.complete) == ([2, 4], True)
    assert verify_store(out, deep=True, complete=True).ok
