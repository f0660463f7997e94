"""Images in Parquet as Hugging Face ships them: keys, labels by name, splits, and row groups read once."""

from __future__ import annotations

import multiprocessing
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from activault.extract.decode import BadImage
from activault.extract.options import SourceOptions
from activault.extract.parquet_images import ParquetImages
from activault.extract.row_groups import RowGroupCache
from activault.extract.sources import open_source
from activault.store import ConfigError, ImageSourceError

from .make_sources import picture, write_parquet

NAMES = ["cat", "dog", "eel"]


def make(path: Path, count: int = 10, **options: Any) -> Path:
    rows = [(f"{number:03d}.png", picture(number), number % 3) for number in range(count)]
    return write_parquet(path, rows, **{"names": NAMES, **options})


def test_bytes_keys_and_the_names_of_classes(tmp_path: Path) -> None:
    source = open_source(make(tmp_path / "x.parquet"))
    assert source.keys == [f"{number:03d}.png" for number in range(10)]
    assert source.labels == [NAMES[number % 3] for number in range(10)]
    assert [source.read(row) for row in range(10)] == [picture(number) for number in range(10)]
    assert (source.info.kind, source.info.name, source.rows_at_once) == ("parquet", "x.parquet", 4)


def test_files_of_a_folder_stand_in_the_order_of_their_names(tmp_path: Path) -> None:
    for part in (2, 0, 1):
        write_parquet(
            tmp_path / "data" / f"train-{part:05d}-of-00003.parquet",
            [(f"{part}-{number}.png", picture(3 * part + number), 0) for number in range(3)],
            names=NAMES,
            row_group_size=2,
        )
    source = open_source(tmp_path)
    assert source.keys == [f"{part}-{number}.png" for part in range(3) for number in range(3)]
    assert [source.read(row) for row in range(9)] == [picture(number) for number in range(9)]
    assert set(source.column("split")) == {"train"}


def test_several_splits_are_told_apart_by_their_keys(tmp_path: Path) -> None:
    for split in ("train", "validation", "test"):
        make(tmp_path / f"{split}-00000-of-00001.parquet", 2)
    source = open_source(tmp_path)
    assert source.keys == [
        f"{split}/{number:03d}.png" for split in ("test", "train", "validation") for number in range(2)
    ]


def test_rows_without_a_path_are_named_by_file_and_number(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", [(None, picture(0), 0), ("x.png", picture(1), 1)])
    assert open_source(tmp_path / "a.parquet").keys == ["a/0000000", "a/0000001"]


def test_paths_that_repeat_name_both_places(tmp_path: Path) -> None:
    for name in "ab":
        write_parquet(
            tmp_path / f"{name}.parquet",
            [("other.png" + name, b"", 0), ("image.png", b"", 0)],
            row_group_size=1,
        )
    with pytest.raises(
        ImageSourceError,
        match=r"'image\.png' is in .*a\.parquet, row 1 and in .*b\.parquet, row 1; take --keys",
    ):
        open_source(tmp_path)
    assert open_source(tmp_path, SourceOptions(keys="place")).keys[1::2] == ["a/0000001", "b/0000001"]


def test_a_path_of_somebodys_disk_is_cut_to_its_name(tmp_path: Path) -> None:
    write_parquet(tmp_path / "x.parquet", [("/home/someone/a.png", b"", 0), ("n01/b.png", b"", 0)])
    assert open_source(tmp_path / "x.parquet").keys == ["a.png", "n01/b.png"]


def test_a_key_column(tmp_path: Path) -> None:
    path = make(tmp_path / "x.parquet", 3, number=[7, 8, 9], hole=["a", None, "c"])
    assert open_source(path, SourceOptions(key_column="number")).keys == ["7", "8", "9"]
    with pytest.raises(ImageSourceError, match=r"the column 'hole' has none in .*x\.parquet, row 1"):
        open_source(path, SourceOptions(key_column="hole"))


def test_keys_of_a_column_that_repeat(tmp_path: Path) -> None:
    path = make(tmp_path / "x.parquet", 3, number=[7, 8, 7])
    with pytest.raises(ImageSourceError, match=r"'7' is in .*row 0 and in .*row 2; name another column with"):
        open_source(path, SourceOptions(key_column="number"))


def test_plain_bytes_and_other_columns(tmp_path: Path) -> None:
    table = pa.table({"jpg": pa.array([picture(0), picture(1)], pa.large_binary()), "hue": [0.5, None]})
    pq.write_table(table, tmp_path / "x.parquet")
    source = open_source(tmp_path / "x.parquet")
    assert [source.read(row) for row in range(2)] == [picture(0), picture(1)]
    assert (source.keys, source.labels) == (["x/0000000", "x/0000001"], [None, None])
    assert source.column("hue") == ["0.5", None]


def test_several_columns_of_images_and_labels_have_to_be_chosen(tmp_path: Path) -> None:
    table = pa.table({"image": [b"1"], "mask": [b"2"], "fine": [0], "coarse": [1]})
    note = (
        '{"info": {"features": {"fine": {"names": ["a", "b"], "_type": "ClassLabel"}, '
        '"coarse": {"names": ["x", "y"], "_type": "ClassLabel"}}}}'
    )
    pq.write_table(table.replace_schema_metadata({"huggingface": note}), tmp_path / "x.parquet")
    path = tmp_path / "x.parquet"
    with pytest.raises(ConfigError, match="choose one of image, mask with --image-column"):
        open_source(path)
    with pytest.raises(ConfigError, match="there is no column of images 'img'; there are image, mask"):
        open_source(path, SourceOptions(image_column="img"))
    with pytest.raises(ConfigError, match="choose one of fine, coarse with --label-column"):
        open_source(path, SourceOptions(image_column="image"))
    source = open_source(path, SourceOptions(image_column="mask", label_column="coarse"))
    assert (source.read(0), source.labels) == (b"2", ["y"])


def test_labels_without_names_and_without_a_class(tmp_path: Path) -> None:
    rows: list[Any] = [("a", b"", 3), ("b", b"", None)]
    assert open_source(write_parquet(tmp_path / "x.parquet", rows)).labels == ["3", None]
    rows = [("a", b"", -1), ("b", b"", 2)]
    assert open_source(write_parquet(tmp_path / "y.parquet", rows, names=NAMES)).labels == [None, "eel"]
    rows = [("a", b"", "cat"), ("b", b"", "dog")]
    assert open_source(write_parquet(tmp_path / "z.parquet", rows)).labels == ["cat", "dog"]
    with pytest.raises(ImageSourceError, match="a class is one of 3 by the file's own list; got 3"):
        open_source(write_parquet(tmp_path / "w.parquet", [("a", b"", 3)], names=NAMES))


def test_a_row_without_bytes_is_a_bad_row(tmp_path: Path) -> None:
    source = open_source(write_parquet(tmp_path / "x.parquet", [("a", None, 0), ("b", b"", 0)]))
    assert source.read(0) == BadImage(status="unreadable", reason="the row has no bytes")
    assert source.read(1) == b""


def test_damage_is_bad_rows_and_another_file_an_error(tmp_path: Path) -> None:
    path = make(tmp_path / "x.parquet")
    source = open_source(path)
    data = bytearray(path.read_bytes())
    place = data.find(picture(9))
    assert place > 0
    start = data.rfind(b"PAR1", 0, place) + 4
    data[start : start + 40] = b"\xff" * 40
    path.write_bytes(data)
    results = [source.read(row) for row in range(10)]
    bad = [result for result in results if isinstance(result, BadImage)]
    assert {result.status for result in bad} == {"unreadable"}
    assert all("its row group is damaged" in result.reason for result in bad)
    assert len(bad) == 4
    path.unlink()
    with pytest.raises(ImageSourceError, match=r"there is no file .*x\.parquet"):
        open_source(path, SourceOptions(kind="parquet"))


def test_what_is_no_parquet_file(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(ImageSourceError, match=r"x\.parquet is no Parquet file, or a damaged one"):
        open_source(tmp_path / "x.parquet")


def test_files_with_other_columns_are_refused(tmp_path: Path) -> None:
    make(tmp_path / "a.parquet", 2)
    pq.write_table(pa.table({"other": [1]}), tmp_path / "b.parquet")
    with pytest.raises(ImageSourceError, match=r"the same columns; .*b\.parquet has no 'image\.path'"):
        open_source(tmp_path)


def test_kept_order_reads_each_row_group_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source(make(tmp_path / "x.parquet", 20))
    assert isinstance(source, ParquetImages)
    loaded: list[int] = []
    load = source._load
    source._groups = RowGroupCache(lambda group: loaded.append(group) or load(group))
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(source.read, range(20))) == [picture(number) for number in range(20)]
    assert sorted(loaded) == [0, 1, 2, 3, 4]


def test_the_cache_forgets_the_oldest_and_what_failed() -> None:
    loaded: list[int] = []

    def load(number: int) -> Any:
        loaded.append(number)
        if number == 9:
            raise OSError("gone")
        return memoryview(bytes(40))

    cache = RowGroupCache(load, max_bytes=100)
    for number in (0, 1, 0, 2, 0, 1):
        cache.get(number)
    assert loaded == [0, 1, 2, 1]
    for _ in range(2):
        with pytest.raises(OSError, match="gone"):
            cache.get(9)
    assert loaded[-2:] == [9, 9]


def test_a_spawned_process_opens_it_again_by_its_path(tmp_path: Path) -> None:
    source = open_source(make(tmp_path / "x.parquet"))
    assert len(pickle.dumps(source)) < 1000
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(source.read, range(3)) == [picture(number) for number in range(3)]


def test_the_fingerprint_is_over_keys_and_sizes(tmp_path: Path) -> None:
    first = open_source(make(tmp_path / "1" / "x.parquet")).info
    assert open_source(make(tmp_path / "2" / "x.parquet")).info == first
    rows = [(f"{number:03d}.png", picture(number) + b"0", number % 3) for number in range(10)]
    (tmp_path / "3").mkdir()
    other = write_parquet(tmp_path / "3" / "x.parquet", rows, names=NAMES)
    assert open_source(other).info.fingerprint != first.fingerprint
