"""Tables of paths: columns, keys, and which paths are allowed."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from activault.extract.decode import BadImage
from activault.extract.options import SourceOptions
from activault.extract.sources import open_source
from activault.store import ConfigError, ImageSourceError

from .make_sources import picture, write_csv


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for number in range(4):
        path = tmp_path / "photos" / f"class{number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(number))
    return tmp_path / "photos"


def test_paths_are_relative_to_the_table(photos: Path) -> None:
    table = write_csv(photos / "list.csv", ("path",), [("class1/3.png",), ("./class0/0.png",)])
    source = open_source(table)
    assert source.keys == ["class1/3.png", "class0/0.png"]
    assert source.labels == ["class1", "class0"]
    assert [source.read(row) for row in range(2)] == [picture(3), picture(0)]
    assert (source.info.kind, source.info.name) == ("table", "list.csv")


def test_columns_by_name_and_values_as_they_stand(photos: Path) -> None:
    header = ("img", "id", "class", "split")
    rows = [("class0/0.png", "007", "01", "train"), ("class1/1.png", "7", "1", "val")]
    options = SourceOptions(path_column="img", key_column="id", label_column="class")
    for table in (
        write_csv(photos / "list.csv", header, rows),
        write_csv(photos / "list.tsv", header, rows, delimiter="\t"),
    ):
        source = open_source(table, options)
        assert source.keys == ["train/007", "validation/7"]
        assert source.labels == ["01", "1"]
        assert source.column("split") == ["train", "validation"]
        assert source.column("img") == ["class0/0.png", "class1/1.png"]


def test_a_parquet_table(photos: Path) -> None:
    table = pa.table({"file_name": ["class0/0.png", "class1/1.png"], "label": [3, None], "box": [[1], [2]]})
    pq.write_table(table, photos / "list.parquet")
    source = open_source(photos / "list.parquet")
    assert (source.keys, source.labels) == (["class0/0.png", "class1/1.png"], ["3", None])
    assert source.read(1) == picture(1)


def test_an_image_root_elsewhere(photos: Path, tmp_path: Path) -> None:
    rows = [("class0/0.png",), (str(photos / "class1" / "1.png"),)]
    table = write_csv(tmp_path / "lists" / "list.csv", ("path",), rows)
    source = open_source(table, SourceOptions(image_root=str(photos)))
    assert source.keys == ["class0/0.png", "class1/1.png"]
    assert source.read(1) == picture(1)


@pytest.mark.parametrize(
    "path",
    [
        "../photos/class0/0.png",
        "class0/../../x.png",
        "/etc/hosts",
        "http://example.org/1.png",
        "",
        "a\tb.png",
        "..",
    ],
)
def test_a_path_out_of_the_root_is_refused(photos: Path, path: str) -> None:
    table = write_csv(photos / "list.csv", ("path", "n"), [("class0/0.png", 0), (path, 1)])
    with pytest.raises(
        ImageSourceError, match=r"without '\.\.'; row 1 of .*list\.csv has .*; set --image-root"
    ):
        open_source(table)


def test_a_file_that_is_not_there_is_a_bad_row(photos: Path) -> None:
    (photos / "folder.png").mkdir()
    table = write_csv(photos / "list.csv", ("path",), [("none.png",), ("folder.png",), ("class0/0.png",)])
    source = open_source(table)
    results = [source.read(row) for row in range(3)]
    assert results[0] == BadImage(status="unreadable", reason="there is no such file")
    assert isinstance(results[1], BadImage)
    assert results[2] == picture(0)


def test_a_root_that_is_gone_is_an_error(photos: Path) -> None:
    source = open_source(write_csv(photos / "list.csv", ("path",), [("class0/0.png",)]))
    photos.rename(photos.with_name("elsewhere"))
    with pytest.raises(ImageSourceError, match=r"photos is gone \(No such file.*\); bring it back"):
        source.read(0)


def test_keys_that_repeat_name_both_rows(photos: Path) -> None:
    rows = [("class0/0.png", "a"), ("class1/1.png", "b"), ("class0/0.png", "c")]
    table = write_csv(photos / "list.csv", ("path", "id"), rows)
    with pytest.raises(
        ImageSourceError, match=r"'class0/0\.png' is in row 0 of .* and in row 2 of .*; leave one out, or"
    ):
        open_source(table)
    assert open_source(table, SourceOptions(key_column="id")).keys == ["a", "b", "c"]


def test_several_tables_are_refused(photos: Path) -> None:
    tables = [write_csv(photos / f"{name}.csv", ("path",), [(f"class0/{name}.png",)]) for name in "01"]
    with pytest.raises(ConfigError, match=r"a table of paths is one file; .*1\.csv names 2; join them"):
        open_source("::".join(map(str, tables)))


@pytest.mark.parametrize(
    ("header", "options", "error", "message"),
    [
        (
            ("image_id",),
            {},
            ConfigError,
            r"a column of paths \(path, file_name, .*list\.csv has image_id; name",
        ),
        (("path",), {"label_column": "klass"}, ConfigError, "has no column 'klass'; it has path"),
        (("path",), {"key_column": "id"}, ConfigError, "has no column 'id'; it has path"),
        (("path", "path"), {}, ImageSourceError, "has a column twice in its first line"),
    ],
)
def test_columns_that_are_not_there(
    photos: Path, header: tuple[str, ...], options: dict[str, str], error: type[Exception], message: str
) -> None:
    table = write_csv(photos / "list.csv", header, [["class0/0.png"] * len(header)])
    with pytest.raises(error, match=message):
        open_source(table, SourceOptions(**options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "message"),
    [("path\n", "has no rows"), ("", "is no table of csv"), ("path,n\na\n", "is no table of csv")],
)
def test_tables_that_are_none(photos: Path, text: str, message: str) -> None:
    (photos / "list.csv").write_text(text)
    with pytest.raises(ImageSourceError, match=message):
        open_source(photos / "list.csv")


def test_an_empty_key_names_its_row(photos: Path) -> None:
    table = write_csv(photos / "list.csv", ("path", "id"), [("class0/0.png", "a"), ("class1/1.png", "")])
    with pytest.raises(ImageSourceError, match=r"row 1 of .* has none in 'id'"):
        open_source(table, SourceOptions(key_column="id"))


def test_commas_quotes_and_other_alphabets(photos: Path) -> None:
    name = 'wörld, "x" 日.png'
    (photos / name).write_bytes(picture(9))
    source = open_source(write_csv(photos / "list.csv", ("path", "label"), [(name, 'a "b", c')]))
    assert (source.keys, source.labels, source.read(0)) == ([name], ['a "b", c'], picture(9))


def test_the_fingerprint_sees_sizes_and_files_that_are_gone(photos: Path) -> None:
    table = write_csv(photos / "list.csv", ("path",), [("class0/0.png",), ("class1/1.png",)])
    first = open_source(table).info.fingerprint
    assert open_source(table).info.fingerprint == first
    with (photos / "class1" / "1.png").open("ab") as file:
        file.write(b"0")
    grown = open_source(table).info.fingerprint
    (photos / "class1" / "1.png").unlink()
    assert len({first, grown, open_source(table).info.fingerprint}) == 3


def test_a_pickle_holds_the_path_and_sees_changes(photos: Path) -> None:
    table = write_csv(photos / "list.csv", ("path",), [("class0/0.png",), ("class1/1.png",)])
    data = pickle.dumps(open_source(table))
    assert len(data) < 1000
    assert pickle.loads(data).keys == ["class0/0.png", "class1/1.png"]
    write_csv(table, ("path",), [("class1/1.png",), ("class0/0.png",)])
    with pytest.raises(ImageSourceError, match="start again"):
        pickle.loads(data)
