"""A store on a web server, read through a cache on this machine."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from http_server import Body, Cut, StaticServer
from s3_server import S3

from activault.store import (
    ActivationLoader,
    ConfigError,
    CorruptStoreError,
    Store,
    cached,
    open_store,
    publish,
    remote,
)
from activault.store.cache_folder import CacheFolder
from activault.store.errors import StorageError, UnreachableError
from activault.store.remote import RemoteSettings

from .conftest import Plan

LAYERS = [0, 2, 4]
QUICK = RemoteSettings(num_retries=1, retry_for_s=2, first_wait_s=0.01, longest_wait_s=0.02, read_timeout_s=1)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "DEFAULTS", QUICK)
    monkeypatch.setattr(cached, "BLOCK_BYTES", 512)
    monkeypatch.delenv("ACTIVAULT_CACHE_DIR", raising=False)


@pytest.fixture
def server(written: Plan, serve: Callable[[Path], StaticServer]) -> StaticServer:
    return serve(written.path.parent)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def opened(server: StaticServer, cache: Path, cache_bytes: int = 1 << 20) -> Store:
    return open_store(f"{server.url}/a.zarr", cache_dir=cache, cache_bytes=cache_bytes)


def asked(server: StaticServer) -> list[str]:
    """Array files that were asked for."""
    return [request.path for request in server.requests if "/c/" in request.path]


def entries(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*") if path.is_file()]


def test_what_was_read_is_not_fetched_again(server: StaticServer, cache: Path, written: Plan) -> None:
    np.testing.assert_array_equal(opened(server, cache).read(slice(0, 50), LAYERS), written.stored)
    first = [(request.path, request.range) for request in server.requests if "/c/" in request.path]
    assert len(first) == len(set(first)) > 9
    server.forget()
    np.testing.assert_array_equal(opened(server, cache).read(slice(0, 50), LAYERS), written.stored)
    np.testing.assert_array_equal(
        opened(server, cache).read([49, 3], [4], "cls"), written.stored[[49, 3], 2:, :1]
    )
    assert asked(server) == []


def test_no_byte_is_fetched_twice_by_an_epoch_on_threads(server: StaticServer, cache: Path) -> None:
    store = opened(server, cache)
    for _ in range(2):
        rows = [row for batch in _loader(store) for row in batch.rows.tolist()]
        assert sorted(rows) == store.valid_rows.tolist()
    ranges = [(request.path, request.range) for request in server.requests if "/c/" in request.path]
    seen: dict[str, set[int]] = {}
    for path, span in ranges:
        assert span is not None
        assert seen.setdefault(path, set()).isdisjoint(range(*span))
        seen[path] |= set(range(*span))


def _loader(store: Store) -> ActivationLoader:
    return ActivationLoader(store, layers=LAYERS, batch_size=7, pool_bytes=20_000, num_threads=4)


def test_only_what_is_wanted_is_fetched(server: StaticServer, cache: Path) -> None:
    opened(server, cache).read([17], [2], "patches")
    assert set(asked(server)) == {"a.zarr/layer_02/patches/c/1/0/0"}
    sent = sum(request.sent for request in server.requests if "/c/" in request.path)
    assert sent < (server.folder / asked(server)[0]).stat().st_size


def test_a_cached_store_is_read_without_its_origin(server: StaticServer, cache: Path, written: Plan) -> None:
    store = opened(server, cache)
    store.read(slice(0, 50), LAYERS)
    info = store.info()
    store.samples  # noqa: B018
    server.close()
    far = opened(server, cache)
    assert far.info() == info
    assert far.samples.equals(store.samples)
    np.testing.assert_array_equal(far.read(slice(0, 50), LAYERS), written.stored)


def test_a_bucket_is_read_once_and_then_not_at_all(
    s3: S3, cache: Path, written: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"s3://{s3.make_bucket()}/a.zarr"
    publish(written.path, url)
    first = open_store(url, cache_dir=cache, cache_bytes=1 << 20)
    np.testing.assert_array_equal(first.read(slice(0, 50), LAYERS), written.stored)
    info = first.info()
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # discards: nobody is there
    far = open_store(url, cache_dir=cache, cache_bytes=1 << 20)
    assert far.info() == info
    np.testing.assert_array_equal(far.read(slice(0, 50), LAYERS), written.stored)
    with pytest.raises(UnreachableError):
        open_store(url, cache_dir=cache / "another")


def test_what_was_not_cached_needs_the_origin(server: StaticServer, cache: Path) -> None:
    opened(server, cache).read(slice(0, 16), [0])
    server.close()
    with pytest.raises(UnreachableError, match=r"rows 16 to 19 \(shard 1\)"):
        opened(server, cache).read([17], [0])
    with pytest.raises(UnreachableError):
        opened(server, cache / "another")


def test_another_store_under_the_same_url_is_not_mixed_up(
    server: StaticServer, cache: Path, written: Plan, make_plan: Callable[..., Plan], tmp_path: Path
) -> None:
    """Blocks are named by content: those of the store that was there before are left alone."""
    plan = make_plan(name="b/a.zarr", chunk_rows=8)
    plan.path.parent.mkdir()
    plan.write()
    opened(server, cache).read(slice(0, 50), LAYERS)
    server.folder = plan.path.parent
    np.testing.assert_array_equal(opened(server, cache).read(slice(0, 50), LAYERS), plan.stored)


@pytest.mark.parametrize("place", [0, 9, 20, 60, -1], ids=["magic", "length", "hashes", "data", "end"])
def test_an_altered_entry_is_fetched_again(
    server: StaticServer, cache: Path, written: Plan, place: int
) -> None:
    opened(server, cache).read(slice(0, 50), LAYERS)
    for path in entries(cache):
        data = bytearray(path.read_bytes())
        data[place] ^= 1
        path.write_bytes(data)
    np.testing.assert_array_equal(opened(server, cache).read(slice(0, 50), LAYERS), written.stored)
    server.forget()
    np.testing.assert_array_equal(opened(server, cache).read(slice(0, 50), LAYERS), written.stored)
    assert asked(server) == []


@pytest.mark.parametrize("data", [b"", b"activa01", b"activa01" + b"\xff" * 8, b"x" * 400], ids=len)
def test_an_entry_that_is_cut_or_foreign_is_fetched_again(
    server: StaticServer, cache: Path, written: Plan, data: bytes
) -> None:
    opened(server, cache).read(slice(0, 50), LAYERS)
    for path in entries(cache):
        path.write_bytes(data)
    np.testing.assert_array_equal(opened(server, cache).read(slice(0, 50), LAYERS), written.stored)


def test_what_arrived_wrong_is_fetched_again(server: StaticServer, cache: Path, written: Plan) -> None:
    """Its entry is sound, but its chunks are not: the cache has what a network or a proxy made of them."""
    opened(server, cache)
    file = server.folder / "a.zarr/layer_02/patches/c/1/0/0"
    server.fault(Body(b"\0" * file.stat().st_size), match="layer_02/patches/c/1")
    with pytest.raises((CorruptStoreError, StorageError)):
        opened(server, cache).read([17], [2], "patches")
    server.heal()
    np.testing.assert_array_equal(
        opened(server, cache).read([17], [2], "patches"), written.stored[17:18, 1:2, 3:]
    )


def test_a_damaged_block_in_a_sound_entry_is_fetched_again(
    server: StaticServer, cache: Path, written: Plan
) -> None:
    store = opened(server, cache)
    store.read(slice(16, 32), [2], "patches")
    record = next(file for file in store.chunks.files(1) if "layer_02/patches" in file.path)
    folder = CacheFolder(cache, 1 << 20)
    key = cached._block_key(record, 0)
    data = folder.get(key)
    assert data is not None
    folder.put(key, bytes(len(data)))
    server.forget()
    found = opened(server, cache).read(slice(16, 32), [2], "patches")
    np.testing.assert_array_equal(np.delete(found, 4, 0), np.delete(written.stored[16:32, 1:2, 3:], 4, 0))
    assert asked(server)


def test_a_damaged_origin_is_an_error_that_names_rows_and_shard(
    serve: Callable[[Path], StaticServer], copy: Path, cache: Path
) -> None:
    file = copy / "layer_02" / "patches" / "c" / "1" / "0" / "0"
    data = bytearray(file.read_bytes())
    data[10] ^= 1
    file.write_bytes(data)
    store = open_store(f"{serve(copy.parent).url}/{copy.name}", cache_dir=cache, cache_bytes=1 << 20)
    for _ in range(2):
        with pytest.raises(CorruptStoreError, match=r"rows 16 to 19 \(shard 1\): layer_02/patches/c/1/0/0"):
            store.read([17], [2])


def test_a_dropped_connection_leaves_nothing_behind(server: StaticServer, cache: Path, written: Plan) -> None:
    store = opened(server, cache)
    server.fault(Cut(after=50), match="layer_02/patches/c/1")
    with pytest.raises(UnreachableError):
        store.read([17], [2], "patches")
    server.heal()
    np.testing.assert_array_equal(store.read([17], [2], "patches"), written.stored[17:18, 1:2, 3:])


def test_a_full_disk_is_told_once_and_reading_goes_on(
    server: StaticServer, cache: Path, written: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(server, cache)

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.warns(RuntimeWarning, match=r"takes no more .*going on without it: make room") as told:
        np.testing.assert_array_equal(store.read(slice(0, 50), LAYERS), written.stored)
    assert len(told) == 1
    assert not any(path.name.startswith(".") for path in entries(cache))


def test_the_environment_names_the_cache(
    server: StaticServer, cache: Path, monkeypatch: pytest.MonkeyPatch, written: Plan
) -> None:
    monkeypatch.setenv("ACTIVAULT_CACHE_DIR", str(cache))
    monkeypatch.setenv("ACTIVAULT_CACHE_BYTES", str(1 << 20))
    assert open_store(f"{server.url}/a.zarr").storage.cache.max_bytes == 1 << 20  # type: ignore[attr-defined]
    assert open_store(written.path).storage.folder == written.path
    monkeypatch.setenv("ACTIVAULT_CACHE_BYTES", "much")
    with pytest.raises(ConfigError, match="ACTIVAULT_CACHE_BYTES is a whole number of bytes; got 'much'"):
        open_store(f"{server.url}/a.zarr")


def test_a_cache_that_holds_too_little_is_refused(server: StaticServer, cache: Path) -> None:
    with pytest.raises(ConfigError, match="a cache holds at least 8192 bytes; got 100"):
        opened(server, cache, 100)
    cache.write_text("a file")
    with pytest.raises(StorageError, match=r"the cache folder .* cannot be made"):
        opened(server, cache)


def test_a_cached_store_travels_to_another_process(server: StaticServer, cache: Path, written: Plan) -> None:
    store = pickle.loads(pickle.dumps(opened(server, cache)))
    np.testing.assert_array_equal(store.read([3, 4], [0]), written.stored[3:5, :1])
    assert entries(cache)
