"""Publishing to an S3 server, and what is refused before anything is uploaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from s3_server import S3

from activault.store import (
    ConfigError,
    CorruptStoreError,
    IncompleteStoreError,
    NotAStoreError,
    StoreMismatchError,
    open_store,
)
from activault.store import bucket as bucket_room
from activault.store.bucket import Bucket
from activault.store.fetching import FileToFetch
from activault.store.files import file_sha256
from activault.store.publishing import plan_publish, publish
from activault.store.storage import Folder
from activault.store.targets import Listed
from activault.store.transfer import pull

from .conftest import MakePlan, Plan
from .test_pull import tree


class Memory:
    """A place in memory that fails after so many files."""

    where = "memory://"
    at_once = 4
    foreign: Sequence[str] = ()

    def __init__(self, fail_after: int = 10**9) -> None:
        self.files: dict[str, bytes] = {}
        self.order: list[str] = []
        self.left = fail_after

    def make(self) -> None:
        pass

    def listing(self) -> Mapping[str, Listed]:
        return {path: Listed(len(data)) for path, data in self.files.items()}

    def read_small(self, path: str) -> bytes | None:
        return self.files.get(path)

    def has(self, listed: Listed, file: FileToFetch) -> bool:
        return listed.size == file.bytes

    def put(self, files: Sequence[FileToFetch], progress: Callable[[int], None]) -> None:
        for file in files:
            if not self.left:
                raise ConnectionError("the line is dead")
            self.left -= 1
            self.files[file.path] = file.storage.read(file.path)
            self.order.append(file.path)
            progress(file.bytes)

    def create(self, path: str, data: bytes) -> bool:
        if path in self.files:
            return False
        self.files[path] = data
        self.order.append(path)
        return True

    def remove(self, path: str) -> None:
        self.files.pop(path, None)

    def check(self, file: FileToFetch) -> bool:
        return self.files[file.path] == file.storage.read(file.path)


def test_the_root_comes_last_and_the_marker_goes(written: Plan) -> None:
    place = Memory()
    publish(written.path, place)
    assert place.order[0] == ".planning"
    assert place.order[-2:] == ["index.parquet", "zarr.json"]
    assert place.files == tree(written.path)


def test_what_is_told_is_what_is_uploaded(written: Plan) -> None:
    told: list[tuple[int, int]] = []
    planned = plan_publish(written.path, Memory())
    assert planned.num_files == len(tree(written.path))
    assert planned.num_bytes == sum(map(len, tree(written.path).values()))
    planned.run(progress=lambda *step: told.append(step))
    assert told[0] == (0, planned.num_bytes)
    assert told[-1] == (planned.num_bytes, planned.num_bytes)


def test_an_interrupted_publication_goes_on(written: Plan) -> None:
    place = Memory(fail_after=20)
    with pytest.raises(ConnectionError):
        publish(written.path, place)
    assert "zarr.json" not in place.files
    place.left = 10**9
    planned = plan_publish(written.path, place)
    assert len(planned.there) == 20
    planned.run(deep=True)
    assert place.files == tree(written.path)
    assert len(place.order) == len(set(place.order))  # nothing went up twice


def test_publishing_again_uploads_nothing(written: Plan) -> None:
    place = Memory()
    publish(written.path, place)
    place.order.clear()
    publish(written.path, place)
    assert place.order == []


def test_another_store_is_refused(written: Plan, make_plan: MakePlan) -> None:
    other = make_plan("other.zarr", row_seed=3)
    other.write()
    place = Memory()
    publish(other.path, place)
    before = dict(place.files)
    with pytest.raises(StoreMismatchError, match="row_seed is 3 there and 0 here"):
        publish(written.path, place)
    half = Memory(fail_after=5)
    with pytest.raises(ConnectionError):
        publish(other.path, half)
    with pytest.raises(StoreMismatchError, match="another store is being published"):
        publish(written.path, half)
    assert place.files == before


@pytest.mark.parametrize("name", ["holiday.jpg", "sub/zarr.json"])
def test_something_else_is_refused(written: Plan, name: str) -> None:
    place = Memory()
    place.files[name] = b"x"
    with pytest.raises(NotAStoreError, match=f"holds something else .{name}"):
        publish(written.path, place)
    place.files["zarr.json"] = b"{}"
    with pytest.raises(StoreMismatchError, match="holds something with a zarr"):
        publish(written.path, place)


def test_a_damaged_file_is_not_published(copy: Path) -> None:
    name = "layer_02/patches/c/1/0/0"
    data = bytearray((copy / name).read_bytes())
    data[50] ^= 1
    (copy / name).write_bytes(data)
    place = Memory()
    with pytest.raises(CorruptStoreError, match=f"{name} of .* is not published"):
        publish(copy, place)
    assert name not in place.files
    assert "zarr.json" not in place.files


@pytest.mark.parametrize("name", ["layer_02/patches/zarr.json", "layer_02/zarr.json", "zarr.json"])
def test_altered_metadata_are_not_published(copy: Path, name: str) -> None:
    """A value that no reader of ours looks at, or spaces alone: plain Zarr readers would get it."""
    file, place = copy / name, Memory()
    altered = file.read_text().replace('"attributes": {}', '"attributes": {"more": 1}')
    file.write_text(altered if name == "layer_02/zarr.json" else altered + "\n")
    with pytest.raises(CorruptStoreError, match=f"{name} of .* must be what the manifest implies"):
        publish(copy, place)
    file.unlink()
    if name != "zarr.json":
        with pytest.raises(CorruptStoreError, match=f"{name} of .* is missing"):
            publish(copy, place)
    assert place.files == {}


def test_an_unfinished_store_is_refused(make_plan: MakePlan) -> None:
    plan = make_plan("growing.zarr")
    plan.write([0])
    with pytest.raises(IncompleteStoreError, match="published when it is complete"):
        publish(plan.path, Memory())


@pytest.mark.parametrize(
    "place",
    ["ftp://host/a.zarr", "/some/folder", "hf://models/me/a", "hf://datasets/me", "hf://datasets//a"],
)
def test_places_that_are_none_are_refused(written: Plan, place: str) -> None:
    with pytest.raises(ConfigError, match="hf://datasets/OWNER/NAME"):
        publish(written.path, place)


def test_a_store_in_a_bucket(written: Plan, make_plan: MakePlan, s3: S3, tmp_path: Path) -> None:
    url = f"s3://{s3.make_bucket()}/some where/a.zarr"
    publish(written.path, url, deep=True)
    assert open_store(url).digest == open_store(written.path).digest
    pull(url, tmp_path / "b.zarr")
    assert tree(tmp_path / "b.zarr") == tree(written.path)
    assert plan_publish(written.path, url).bytes_there == plan_publish(written.path, url).num_bytes
    other = make_plan("other.zarr", row_seed=3)
    other.write()
    with pytest.raises(StoreMismatchError, match="row_seed is 0 there and 3 here"):
        publish(other.path, url)


def test_a_half_published_store_in_a_bucket(
    written: Plan, s3: S3, monkeypatch: pytest.MonkeyPatch, copy: Path
) -> None:
    bucket = s3.make_bucket()
    url = f"s3://{bucket}/a.zarr"
    with monkeypatch.context() as patch:
        put, done = Bucket._put, list[str]()

        def failing(self: Bucket, file: FileToFetch) -> None:
            if len(done) == 10:
                raise ConnectionError
            done.append(file.path)
            put(self, file)

        patch.setattr(Bucket, "_put", failing)
        with pytest.raises(ConnectionError):
            publish(written.path, url)
    with pytest.raises(NotAStoreError):
        open_store(url)
    # An object of the right size with other bytes is known by its ETag and put again.
    name = "layer_00/cls/c/0/0/0"
    s3.put(f"{bucket}/a.zarr/{name}", bytes((written.path / name).stat().st_size))
    planned = plan_publish(written.path, url)
    assert 0 < len(planned.there) <= 10
    assert name not in {file.path for file in planned.there}
    planned.run(deep=True)
    assert open_store(url).digest == open_store(written.path).digest
    assert ".planning" not in Bucket(url).listing()


def test_large_files_go_up_in_parts(
    written: Plan, s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_room, "_PART_BYTES", 5 << 20)
    file = tmp_path / "large"
    file.write_bytes(bytes(range(256)) * (44 << 10))  # 11 MiB
    bucket = Bucket(f"s3://{s3.make_bucket()}")
    large = FileToFetch(Folder(tmp_path), "large", file.stat().st_size, file_sha256(file), "sha256")
    bucket.put([large], lambda size: None)
    assert bucket.check(large)
    assert bucket.listing()["large"] == Listed(large.bytes, None)  # the ETag of parts is no MD5
