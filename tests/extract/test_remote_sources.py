"""Sources behind a URL: tars streamed once and then read by ranges, Parquet, tables of paths."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from http_server import Cut, Headers, StaticServer, Status, Whole
from s3_server import S3

from activault.extract.decode import BadImage
from activault.extract.options import ExtractOptions, SourceOptions
from activault.extract.run import extract
from activault.extract.sources import open_source
from activault.store import ConfigError, ImageSourceError, open_store

from .make_sources import picture, write_csv, write_parquet, write_samples

Serve = Callable[[Path], StaticServer]


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACTIVAULT_CACHE", str(tmp_path_factory.mktemp("cache")))


def tars(folder: Path, count: int = 3) -> list[bytes]:
    """`x-0.tar` and on, four images each; all images."""
    for tar in range(count):
        samples = [
            (f"{tar}{n}", {"png": picture(4 * tar + n, size=(120, 90)), "cls": n % 2}) for n in range(4)
        ]
        write_samples(folder / f"x-{tar}.tar", samples)
    return [picture(number, size=(120, 90)) for number in range(4 * count)]


def test_a_tar_is_streamed_once_and_then_read_by_ranges(serve: Serve, tmp_path: Path) -> None:
    images, server = tars(tmp_path / "data"), serve(tmp_path / "data")
    told: list[tuple[int, int]] = []
    source = open_source(
        f"{server.url}/x-{{0..2}}.tar", progress=lambda done, total: told.append((done, total))
    )
    size = sum(file.stat().st_size for file in (tmp_path / "data").iterdir())
    assert told[-1] == (size, size)
    assert sum(request.sent for request in server.requests) == size
    server.requests.clear()
    assert [source.read(row) for row in range(12)] == images
    assert len(server.requests) == 12
    assert sum(request.sent for request in server.requests) == sum(map(len, images))
    assert source.labels == ["0", "1"] * 6
    assert (source.info.kind, source.info.name) == ("tar", "x-{0..2}.tar")


def test_the_index_is_kept_until_the_tar_is_another(serve: Serve, tmp_path: Path) -> None:
    tars(tmp_path / "data", 1)
    server = serve(tmp_path / "data")
    first = open_source(f"{server.url}/x-0.tar")
    server.requests.clear()
    assert open_source(f"{server.url}/x-0.tar").keys == first.keys
    assert pickle.loads(pickle.dumps(first)).keys == first.keys
    assert {request.method for request in server.requests} == {"HEAD"}
    write_samples(tmp_path / "data" / "x-0.tar", [("new", {"png": picture(0)})])
    assert open_source(f"{server.url}/x-0.tar").keys == ["new"]


def test_the_same_rows_as_from_the_disk(serve: Serve, tmp_path: Path, options: ExtractOptions) -> None:
    tars(tmp_path / "data")
    server = serve(tmp_path / "data")
    digests = set()
    for number, where in enumerate((f"{tmp_path}/data", f"{server.url}/x-{{0..2}}.tar")):
        store = tmp_path / f"{number}.zarr"
        extract(where, store, options)
        digests.add(open_store(store).arrays_digest)
    assert len(digests) == 1


def test_a_dropped_connection_is_tried_again_and_a_missing_file_named(serve: Serve, tmp_path: Path) -> None:
    images, server = tars(tmp_path / "data", 1), serve(tmp_path / "data")
    server.fault(Cut(after=600), times=1)
    source = open_source(f"{server.url}/x-0.tar")
    server.fault(Status(503), times=1)
    assert source.read(0) == images[0]
    with pytest.raises(ImageSourceError, match=r"there is no file http://.*/none\.tar"):
        open_source(f"{server.url}/none.tar")
    (tmp_path / "data" / "x-0.tar").unlink()
    with pytest.raises(ImageSourceError, match=r"there is no file http://.*/x-0\.tar"):
        source.read(1)


def test_what_may_not_be_read_ends_the_run_and_is_no_bad_row(serve: Serve, tmp_path: Path) -> None:
    tars(tmp_path / "data", 1)
    server = serve(tmp_path / "data")
    source = open_source(f"{server.url}/x-0.tar")
    server.fault(Status(403))
    with pytest.raises(
        ImageSourceError, match=r"x-0\.tar.* may not be read \(403\); no credentials are sent over http"
    ):
        source.read(0)


def test_a_web_server_cannot_list(serve: Serve, tmp_path: Path) -> None:
    tars(tmp_path / "data", 1)
    server = serve(tmp_path)
    for url in (f"{server.url}/data", f"{server.url}/data/*.tar"):
        with pytest.raises(
            ImageSourceError, match=r"cannot be listed: .*; name the files, for example as part-"
        ):
            open_source(url)
    with pytest.raises(ConfigError, match="the last part alone may be a glob"):
        open_source(f"{server.url}/*/x.tar")


def test_an_index_beside_a_tar_that_is_far_away(serve: Serve, tmp_path: Path) -> None:
    tars(tmp_path / "data", 1)
    server = serve(tmp_path / "data")
    with pytest.raises(ImageSourceError, match="kept beside tars on this machine alone"):
        open_source(f"{server.url}/x-0.tar", SourceOptions(index="beside"))
    assert len(open_source(f"{server.url}/x-0.tar", SourceOptions(index="none"))) == 4


def test_parquet_is_read_by_its_footer_and_row_groups(serve: Serve, tmp_path: Path) -> None:
    noise = [picture(number, "BMP", (100, 100)) + bytes([number]) * 9 for number in range(20)]
    rows = [(f"{number}.bmp", data, number % 2) for number, data in enumerate(noise)]
    write_parquet(tmp_path / "data" / "x.parquet", rows, names=["a", "b"])
    server = serve(tmp_path / "data")
    source = open_source(f"{server.url}/x.parquet")
    assert source.labels == ["a", "b"] * 10
    assert [source.read(row) for row in (9, 8, 11)] == [noise[9], noise[8], noise[11]]
    assert pickle.loads(pickle.dumps(source)).read(3) == noise[3]


def test_a_table_of_urls(serve: Serve, tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data" / f"{number}.png").write_bytes(picture(number))
    server = serve(tmp_path / "data")
    table = write_csv(
        tmp_path / "data" / "list.csv", ("path",), [("0.png",), (f"{server.url}/1.png",), ("none.png",)]
    )
    for source in (
        open_source(f"{server.url}/list.csv"),
        open_source(table, SourceOptions(image_root=server.url)),
    ):
        assert source.keys == ["0.png", "1.png", "none.png"]
        assert [source.read(row) for row in range(2)] == [picture(0), picture(1)]
        assert source.read(2) == BadImage(status="unreadable", reason="there is no such file")
    with pytest.raises(ImageSourceError, match="a path is one below http"):
        open_source(
            write_csv(table, ("path",), [("https://elsewhere.org/1.png",)]),
            SourceOptions(image_root=server.url),
        )


def test_a_server_without_ranges_gives_tables_and_images(serve: Serve, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for number in range(3):
        (data / f"{number}.png").write_bytes(picture(number))
    (data / "empty.png").touch()
    write_csv(data / "list.csv", ("path",), [("0.png",), ("1.png",), ("2.png",), ("empty.png",), ("no.png",)])
    server = serve(data)
    server.fault(Whole())
    source = open_source(f"{server.url}/list.csv")
    assert [source.read(row) for row in range(4)] == [picture(0), picture(1), picture(2), b""]
    assert source.read(4) == BadImage(status="unreadable", reason="there is no such file")
    assert len(server.requests) == 8, "a range is asked for once of each place"
    server.heal()
    server.fault(Cut(20), times=1)
    assert source.read(0) == picture(0)
    server.fault(Headers((("Content-Encoding", "gzip"),)))
    with pytest.raises(ImageSourceError, match=r"0\.png: this server encodes files"):
        source.read(0)


def test_a_tar_on_a_server_without_ranges_is_refused_in_one_line(serve: Serve, tmp_path: Path) -> None:
    tars(tmp_path / "data", 1)
    server = serve(tmp_path / "data")
    server.fault(Whole())
    url = f"{server.url}/x-0.tar"
    with pytest.raises(ImageSourceError, match="this server ignores Range requests") as caught:
        open_source(url)
    assert str(caught.value).count(url) == 1
    assert "shards" not in str(caught.value)


@pytest.mark.s3
def test_tars_parquet_and_tables_in_a_bucket(s3: S3, tmp_path: Path) -> None:
    images = tars(tmp_path / "tars")
    write_parquet(tmp_path / "parquet" / "x.parquet", [("a.png", picture(0), 0), ("b.png", picture(1), 1)])
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "1.png").write_bytes(picture(1))
    write_csv(tmp_path / "files" / "list.csv", ("path",), [("1.png",)])
    bucket = s3.make_bucket("images")
    for name in ("tars", "parquet", "files"):
        s3.put_folder(bucket, name, tmp_path / name)
    for where in ("tars", "tars/*.tar", "tars/x-{0..2}.tar"):
        source = open_source(f"s3://{bucket}/{where}")
        assert [source.read(row) for row in range(12)] == images
    source = open_source(f"s3://{bucket}/parquet")
    assert (source.keys, source.read(1)) == (["a.png", "b.png"], picture(1))
    assert open_source(f"s3://{bucket}/files/list.csv").read(0) == picture(1)
