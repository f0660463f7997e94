"""`extract` into a bucket by the command line, on moto's server and on Ceph's gateway."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import numpy as np
import pytest
from fork_server import command, forked
from PIL import Image
from s3_server import S3

from activault.store.objects import Objects

from .conftest import Command

FLAGS = ("--shard-rows", "4", "--workers", "1", "--batch-size", "4", "--device", "cpu")
KILLS = 5


def files(folder: Path) -> dict[str, bytes]:
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file() and not file.name.startswith(".")
    }


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """48 small images."""
    folder = tmp_path_factory.mktemp("many") / "photos"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(48):
        Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    return folder


@pytest.mark.s3
def test_a_store_in_a_bucket_is_the_store_on_disk(
    images: Path, teacher: tuple[str, ...], activault: Command, tmp_path: Path, ceph: S3
) -> None:
    bucket = ceph.make_bucket()
    url = f"s3://{bucket}/deep/photos.zarr"
    arguments = ("extract", images, url, *teacher, "--dtype", "int8", "--layers", "6", *FLAGS, "--limit", "8")
    made = activault(*arguments, "--json")
    assert made.status == 0, made.err
    assert activault("extract", images, tmp_path / "a.zarr", *arguments[3:], "--json").status == 0
    assert made.json["digest"] == activault("info", tmp_path / "a.zarr", "--json").json["digest"]
    assert activault("info", url, "--json").json["digest"] == made.json["digest"]
    checked = activault("verify", url, "--deep", "--complete", "--json")
    assert (checked.status, checked.json["notes"]) == (0, [])
    assert activault("pull", url, tmp_path / "b.zarr").status == 0
    assert files(tmp_path / "b.zarr") == files(tmp_path / "a.zarr")
    # Again: nothing to do; without a file: that shard alone.
    assert activault(*arguments, "--json").json["num_new"] == 0
    ceph.delete(f"{bucket}/deep/photos.zarr/layer_06/patches/c/1/0/0")
    assert activault("verify", url).status == 1
    assert activault(*arguments, "--json").json["num_new"] == 4
    assert activault("verify", url, "--deep", "--complete").status == 0
    refused = activault(*arguments[:-1], "6")
    assert refused.status == 1
    assert f"{url} was planned differently: rows is 8 there and 6 here" in refused.error_line


def test_what_is_interrupted_is_an_unfinished_store_that_goes_on(
    images: Path, teacher: tuple[str, ...], activault: Command, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"s3://{s3.make_bucket()}/a.zarr"
    arguments = ("extract", images, url, *teacher, "--layers", "6", *FLAGS)
    left = 3
    create = Objects.create

    def interrupted(objects: Objects, path: str, data: bytes) -> str | None:
        nonlocal left
        if path.startswith("shards/0"):
            left -= path.endswith(".json")
            if not left:
                raise KeyboardInterrupt
        return create(objects, path, data)

    with monkeypatch.context() as patch:
        patch.setattr(Objects, "create", interrupted)
        assert activault(*arguments).status == 130
    facts = activault("info", url, "--json").json
    assert (facts["complete"], facts["num_rows"]) == (False, 24)
    checked = activault("verify", url, "--deep", "--json")
    assert checked.status == 0
    assert checked.json["finished_shards"] == 2
    assert activault("verify", url, "--complete").status == 1
    done = activault(*arguments, "--json")
    assert (done.status, done.json["num_new"]) == (0, 16)
    assert activault("verify", url, "--deep", "--complete").status == 0


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("http://localhost/a.zarr", "a store is written to a folder or to s3://bucket/prefix; got http:"),
        ("gs://bucket/a.zarr", "a store is a path, or a URL that begins with"),
        ("s3://bucket", "a store lies below a prefix of a bucket"),
    ],
)
def test_places_that_cannot_be_written_are_wrong_usage(
    images: Path, teacher: tuple[str, ...], activault: Command, place: str, message: str
) -> None:
    answer = activault("extract", images, place, *teacher)
    assert answer.status == 2
    assert message in answer.error_line


@pytest.mark.s3
def test_what_a_server_refuses_is_told_before_a_teacher_is_loaded(
    images: Path, teacher: tuple[str, ...], activault: Command, ceph: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = ceph.make_bucket(public=True)
    absent = activault("extract", images, "s3://no-such-bucket-here/a.zarr", *teacher)
    assert (absent.status, "there is no such bucket" in absent.error_line) == (1, True)
    with monkeypatch.context() as patch:
        patch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        wrong = activault("extract", images, f"s3://{bucket}/a.zarr", *teacher)
    assert wrong.status == 1
    assert "check the credentials" in wrong.error_line
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", "/nowhere")
    nobody = activault("extract", images, f"s3://{bucket}/a.zarr", *teacher)
    assert nobody.status == 1
    assert "no credentials were found: set AWS_ACCESS_KEY_ID" in nobody.error_line


def holders(store: Objects) -> set[int]:
    """Processes that hold a lease of a shard, or one of which died."""
    found = (store.read_tagged(path) for path in store.entries("shards") if path.endswith(".json.tmp"))
    leases = [json.loads(each[0]) for each in found if each is not None]
    return {int(lease["holder"].split()[1]) for lease in leases if lease["owner"] is not None}


@contextlib.contextmanager
def crew(log: Path, *arguments: object) -> Iterator[Callable[[], ForkServerProcess]]:
    """Starts processes of one command; none is left at the end."""
    context, processes = forked(), list[ForkServerProcess]()
    aws = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}

    def start() -> ForkServerProcess:
        process = context.Process(target=command, args=([str(each) for each in arguments], log, aws))
        process.start()
        processes.append(process)
        return process

    try:
        yield start
    finally:
        for process in processes:
            process.kill()
            process.join()


@pytest.mark.s3
def test_three_workers_one_stopped_and_one_killed_again_and_again(
    many: Path, teacher: tuple[str, ...], activault: Command, tmp_path: Path, ceph: S3
) -> None:
    url = f"s3://{ceph.make_bucket()}/a.zarr"
    flags = (*teacher, "--layers", "0,6", *FLAGS, "--json")
    assert activault("extract", many, tmp_path / "a.zarr", *flags).status == 0
    store, rng = Objects(url), random.Random(0)
    with crew(tmp_path / "log", "extract", many, url, *flags, "--lease", "1") as start:
        workers = {worker.pid: worker for worker in (start() for _ in range(3))}
        killed, stopped, end = set[int | None](), 0, time.monotonic() + 300
        while store.find("index.parquet") is None:
            assert time.monotonic() < end
            time.sleep(0.05)
            at_work = sorted(holders(store) - killed - {stopped})
            if at_work and not stopped:
                stopped = at_work[0]
                os.kill(stopped, signal.SIGSTOP)
            elif at_work and len(killed) < KILLS:
                time.sleep(rng.uniform(0, 0.1))
                killed.add(chosen := rng.choice(at_work))
                workers[chosen].kill()
            else:
                continue
            another = start()
            workers[another.pid] = another
        os.kill(stopped, signal.SIGCONT)  # it finds that others have done its work
        for worker in workers.values():
            worker.join()
        failed = {pid for pid, worker in workers.items() if worker.exitcode}
    # One of those that were to be killed may have been done by then.
    assert failed <= killed, (tmp_path / "log").read_text()
    assert failed
    told = activault("info", url, "--json").json
    assert told["digest"] == activault("info", tmp_path / "a.zarr", "--json").json["digest"]
    checked = activault("verify", url, "--deep", "--values", "--complete", "--json")
    assert (checked.status, checked.json["notes"]) == (0, [])
    assert activault("pull", url, tmp_path / "b.zarr").status == 0
    assert files(tmp_path / "b.zarr") == files(tmp_path / "a.zarr")
    assert not [path for path in store.entries() if path.rpartition("/")[2].startswith(".")]
