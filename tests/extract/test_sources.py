"""What a path of images is taken for, and which files it names."""

from __future__ import annotations

import tarfile
from dataclasses import fields
from pathlib import Path
from typing import Literal

import pytest

from activault.extract.images import ImageFolder
from activault.extract.listing import file_split, with_splits
from activault.extract.options import SourceOptions
from activault.extract.parquet_images import ParquetImages
from activault.extract.path_table import PathTable
from activault.extract.places import MAX_FILES, expand_braces, find_files
from activault.extract.sources import open_source
from activault.extract.tar_images import TarImages
from activault.store import ConfigError, ImageSourceError

from .make_sources import picture, write_csv, write_parquet, write_samples


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACTIVAULT_CACHE", str(tmp_path_factory.mktemp("cache")))


def tar(path: Path) -> Path:
    return write_samples(path, [(path.stem, {"png": picture(0)})])


def parquet(path: Path) -> Path:
    return write_parquet(path, [("a.png", picture(0), 0)])


def image(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(picture(0))
    return path


def test_each_kind_is_told_by_its_path(tmp_path: Path) -> None:
    image(tmp_path / "photos" / "a.png")
    tar(tmp_path / "tars" / "x.tar")
    parquet(tmp_path / "data" / "train" / "0.parquet")
    table = write_csv(tmp_path / "list.csv", ("path",), [("photos/a.png",)])
    for path, kind in (
        (tmp_path / "photos", ImageFolder),
        (tmp_path / "tars", TarImages),
        (tmp_path / "tars" / "x.tar", TarImages),
        (tmp_path / "data", ParquetImages),
        (tmp_path / "data" / "train" / "0.parquet", ParquetImages),
        (table, PathTable),
    ):
        assert isinstance(open_source(path), kind)
        assert isinstance(open_source(str(path)), kind)


def test_a_folder_of_two_kinds_is_in_doubt_until_it_is_said(tmp_path: Path) -> None:
    image(tmp_path / "a.png")
    tar(tmp_path / "x.tar")
    with pytest.raises(ConfigError, match="may be folder or tar; say which with --source"):
        open_source(tmp_path)
    assert open_source(tmp_path, SourceOptions(kind="folder")).keys == ["a.png"]
    assert open_source(tmp_path, SourceOptions(kind="tar")).keys == ["x"]
    (tmp_path / "a.png").unlink()
    parquet(tmp_path / "y.parquet")
    with pytest.raises(ConfigError, match="may be tar or parquet; say which"):
        open_source(tmp_path)


OF_KINDS = {
    "folder": "",
    "tar": "keys image_column label_column index",
    "parquet": "keys image_column key_column label_column",
    "table": "path_column key_column label_column image_root",
}
SAID = {"keys": "place", "index": "none"}


@pytest.mark.parametrize("kind", OF_KINDS)
@pytest.mark.parametrize("name", [each.name for each in fields(SourceOptions) if each.name != "kind"])
def test_an_option_that_would_change_nothing_is_refused(tmp_path: Path, kind: str, name: str) -> None:
    places = {"folder": "photos", "tar": "x.tar", "parquet": "x.parquet", "table": "list.csv"}
    image(tmp_path / "photos" / "cat" / "a.png")
    tar(tmp_path / "x.tar")
    parquet(tmp_path / "x.parquet")
    (tmp_path / "list.csv").write_text("path\nphotos/cat/a.png\n")
    options = SourceOptions(**{"kind": kind, name: SAID.get(name, "said")})  # type: ignore[arg-type]
    flag = {"index": "--tar-index"}.get(name, f"--{name.replace('_', '-')}")
    try:
        open_source(tmp_path / places[kind], options)
    except ConfigError as exc:
        refused = f"{flag} would change nothing for " in str(exc)
    except ImageSourceError:  # it was looked for, and is not there
        refused = False
    else:
        refused = False
    assert refused == (name not in OF_KINDS[kind].split())


def test_what_is_refused_names_every_flag_and_the_kind(tmp_path: Path) -> None:
    image(tmp_path / "cat" / "a.png")
    with pytest.raises(
        ConfigError,
        match=r"--label-column and --tar-index would change nothing for a folder of images, .*--source",
    ):
        open_source(tmp_path, SourceOptions(label_column="species", index="none"))


def test_keys_are_places_or_of_a_column(tmp_path: Path) -> None:
    parquet(tmp_path / "x.parquet")
    with pytest.raises(ConfigError, match="got --keys place and --key-column n; leave one"):
        open_source(tmp_path / "x.parquet", SourceOptions(keys="place", key_column="n"))


def test_a_store_among_the_images_is_none_of_them(tmp_path: Path) -> None:
    for kind in ("photos", "tars"):
        parquet(tmp_path / kind / "s.zarr" / "samples.parquet")
        image(tmp_path / kind / "s.zarr" / "report" / "figure.png")
        (tmp_path / kind / "s.zarr" / "zarr.json").write_text("{}")
    image(tmp_path / "photos" / "a.png")
    tar(tmp_path / "tars" / "x.tar")
    assert open_source(tmp_path / "photos").keys == ["a.png"]
    assert open_source(tmp_path / "tars").keys == ["x"]


@pytest.mark.parametrize("name", ["x.tar.gz", "x.tgz", "x.zip", "x.tar.zst"])
def test_packed_files_are_refused_with_what_to_do(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(ImageSourceError, match=r"is packed, .*; unpack it to a folder, or to a plain \.tar"):
        open_source(tmp_path / name)


def test_a_tar_that_is_compressed_under_a_plain_name(tmp_path: Path) -> None:
    image(tmp_path / "a.png")
    with tarfile.open(tmp_path / "x.tar", "w:gz") as packed:
        packed.add(tmp_path / "a.png", "a.png")
    with pytest.raises(ImageSourceError, match=r"x\.tar is compressed \(gzip\)"):
        open_source(tmp_path / "x.tar")


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(ImageSourceError, match=r"there is nothing at .*none"):
        open_source(tmp_path / "none")
    for name in ("none.tar", "none-{0..3}.tar", "*.tar", "none.parquet", "none.csv"):
        with pytest.raises(ImageSourceError, match=r"there is no file .*"):
            open_source(str(tmp_path / name))
    with pytest.raises(ConfigError, match="begins with http, https, s3, file; got ftp://"):
        open_source("ftp://example.org/x.tar")


def test_one_of_a_range_that_is_missing_is_named(tmp_path: Path) -> None:
    tar(tmp_path / "x-0.tar")
    tar(tmp_path / "x-2.tar")
    with pytest.raises(ImageSourceError, match=r"there is no file .*x-1\.tar"):
        open_source(str(tmp_path / "x-{0..2}.tar"))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a.tar", ["a.tar"]),
        ("a-{0..2}.tar", ["a-0.tar", "a-1.tar", "a-2.tar"]),
        ("a-{08..11}.tar", ["a-08.tar", "a-09.tar", "a-10.tar", "a-11.tar"]),
        ("{a,b}/{0..1}.tar", ["a/0.tar", "a/1.tar", "b/0.tar", "b/1.tar"]),
    ],
)
def test_braces(text: str, names: list[str]) -> None:
    assert expand_braces(text) == names


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{a}", "braces hold a range such as"),
        ("{3..1}", "a brace range ascends, to at most"),
        (f"{{0..{MAX_FILES}}}", "to at most 1048576 files"),
        ("{0..1999}{0..1999}", "has at most 1048576 files"),
    ],
)
def test_braces_that_are_none(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        expand_braces(text)


def test_several_paths_are_taken_in_the_order_they_are_written(tmp_path: Path) -> None:
    for name in ("b/2.tar", "a/1.tar", "a/0.tar"):
        tar(tmp_path / name)
    files = find_files(f"{tmp_path}/b/2.tar::{tmp_path}/a/*.tar", (".tar",))
    assert [file.name for file in files] == ["b/2.tar", "a/0.tar", "a/1.tar"]


@pytest.mark.parametrize(
    "images",
    ["{0}/a.tar::{0}/a.tar", "{0}/{{a,b,a}}.tar", "{0}::{0}/a.tar", "{0}/b.tar::{0}/./a.tar::{0}/*.tar"],
)
@pytest.mark.parametrize("keys", ["name", "place"])
def test_a_file_that_is_named_twice_is_refused(
    tmp_path: Path, images: str, keys: Literal["name", "place"]
) -> None:
    for name in "ab":
        tar(tmp_path / f"{name}.tar")
    with pytest.raises(ConfigError, match=r"each of its files once; .*/[ab]\.tar is there twice in "):
        open_source(images.format(tmp_path), SourceOptions(kind="tar", keys=keys))


def test_a_path_with_braces_in_it_that_is_there_is_itself(tmp_path: Path) -> None:
    tar(tmp_path / "x{1,2}.tar")
    assert [file.path for file in find_files(str(tmp_path / "x{1,2}.tar"), (".tar",))] == ["x{1,2}.tar"]


def test_hidden_files_are_left_out(tmp_path: Path) -> None:
    tar(tmp_path / "x.tar")
    tar(tmp_path / ".cache" / "y.tar")
    (tmp_path / "._x.tar").write_bytes(b"")
    assert [file.name for file in find_files(str(tmp_path), (".tar",))] == ["x.tar"]


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("in1k-train-0001.tar", "train"),
        ("data/validation-00000-of-00014.parquet", "validation"),
        ("val/0.tar", "validation"),
        ("train/part-test.tar", "test"),
        ("training.tar", None),
        ("x.train", None),
        ("Train_0.tar", "train"),
    ],
)
def test_the_split_that_a_files_name_tells(name: str, split: str | None) -> None:
    assert file_split(name) == split


def test_keys_get_their_split_only_where_there_are_several() -> None:
    assert with_splits(["a", "b"], ["train", "train"]) == ["a", "b"]
    assert with_splits(["a", "b"], [None, None]) == ["a", "b"]
    assert with_splits(["a", "train/b", "c"], ["train", "train", None]) == ["train/a", "train/b", "c"]
    assert with_splits(["val/b", "c"], ["validation", "test"]) == ["val/b", "test/c"]
