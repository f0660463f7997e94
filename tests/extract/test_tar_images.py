"""Rows of tars: WebDataset's rules, held against webdataset's own reading, and nothing lost in silence."""

from __future__ import annotations

import multiprocessing
import pickle
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import webdataset
from webdataset.tariterators import group_by_keys, tar_file_expander

from activault.extract.decode import EXTENSIONS, BadImage
from activault.extract.listing import ImageSource
from activault.extract.options import SourceOptions
from activault.extract.sources import open_source
from activault.extract.tar_samples import split_name
from activault.store import ImageSourceError

from .make_sources import picture, write_members, write_samples


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACTIVAULT_CACHE", str(tmp_path / "cache"))


def rows(source: ImageSource) -> list[tuple[str, str | None, bytes]]:
    found = []
    for row in range(len(source)):
        data = source.read(row)
        assert isinstance(data, bytes)
        found.append((source.keys[row], source.labels[row], data))
    return found


def theirs(*paths: Path) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Samples as webdataset itself reads them."""
    for path in paths:
        with path.open("rb") as stream:
            members = tar_file_expander([{"url": str(path), "stream": stream}])
            for sample in group_by_keys(members):
                yield sample["__key__"], {name: sample[name] for name in sample if not name.startswith("__")}


def as_theirs(source: ImageSource) -> list[tuple[str, bytes]]:
    return [(key, data) for key, _, data in rows(source)]


def images_of(*paths: Path) -> list[tuple[str, bytes]]:
    return [
        (key, data)
        for key, sample in theirs(*paths)
        for name, data in sample.items()
        if f".{name.rpartition('.')[2]}" in EXTENSIONS
    ]


def test_rows_are_webdatasets_samples_over_many_tars(tmp_path: Path) -> None:
    pattern = str(tmp_path / "part-%03d.tar")
    with webdataset.ShardWriter(pattern, maxcount=7, verbose=0) as writer:
        for number in range(23):
            writer.write({"__key__": f"{number:05d}", "png": picture(number), "cls": number % 4})
    source = open_source(str(tmp_path / "part-{000..003}.tar"))
    assert as_theirs(source) == images_of(*sorted(tmp_path.glob("*.tar")))
    assert source.labels == [str(number % 4) for number in range(23)]
    assert (source.info.kind, source.info.name) == ("tar", "part-{000..003}.tar")
    assert not source.faults


def test_names_with_dots_folders_and_capitals_are_grouped_as_webdataset_does(tmp_path: Path) -> None:
    names = ["a.b.jpg", "a.cls", "n01/x.JPG", "n01/x.cls", "v1.0/y.png", "z.left.PNG", "z.txt", "q.json"]
    path = write_members(tmp_path / "x.tar", [(name, name.encode()) for name in names])
    assert as_theirs(open_source(path)) == images_of(path)
    assert [key for key, _ in images_of(path)] == ["a", "n01/x", "v1.0/y", "z"]


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("a.jpg", ("a", "jpg")),
        ("a.b.JPG", ("a", "b.jpg")),
        ("x/y.z/a.jpg", ("x/y.z/a", "jpg")),
        ("./a.jpg", ("a", "jpg")),
        ("/a.jpg", ("a", "jpg")),
        ("a", None),
        (".a.jpg", None),
        ("x/._a.jpg", None),
        (".x/a.jpg", None),
        ("__meta__/a.jpg", None),
        ("__a.jpg", ("__a", "jpg")),
    ],
)
def test_names(name: str, parts: tuple[str, str] | None) -> None:
    assert split_name(name) == parts


def test_a_sample_without_an_image_is_told(tmp_path: Path) -> None:
    samples = [("a", {"png": picture(0)}), ("b", {"cls": "1"}), ("c", {"txt": "1"})]
    source = open_source(write_samples(tmp_path / "x.tar", samples))
    assert source.keys == ["a"]
    assert [fault.partition(" has ")[2] for fault in source.faults] == [
        "2 samples without an image (first: b)"
    ]


def test_several_images_of_a_sample_are_not_one_row_by_chance(tmp_path: Path) -> None:
    members = [(f"img.{number}.jpg", b"") for number in range(3)]
    path = write_members(tmp_path / "x.tar", members)
    with pytest.raises(
        ImageSourceError, match=r"img of .*x\.tar has the images 0\.jpg, 1\.jpg, 2\.jpg: its key"
    ):
        open_source(path)
    chosen = open_source(path, SourceOptions(image_column="1.jpg"))
    assert chosen.keys == ["img"]


def test_the_plain_image_is_taken_where_a_mask_stands_beside_it(tmp_path: Path) -> None:
    samples = [("a", {"jpg": picture(0), "seg.png": picture(1), "cls": 0})]
    source = open_source(write_samples(tmp_path / "x.tar", samples))
    assert source.read(0) == picture(0)


def test_an_extension_twice_in_a_sample_names_both_places(tmp_path: Path) -> None:
    path = write_members(tmp_path / "x.tar", [("a.jpg", b"1"), ("a.jpg", b"2")])
    with pytest.raises(ImageSourceError, match=r"has a\.jpg twice, at bytes 512 and 1536; write it under"):
        open_source(path)


def test_a_key_in_two_tars_names_both_and_may_be_named_by_place(tmp_path: Path) -> None:
    for tar in "xy":
        write_samples(tmp_path / f"{tar}.tar", [(f"{n}", {"png": picture(n)}) for n in range(2)])
    with pytest.raises(
        ImageSourceError,
        match=r"'0' is in .*x\.tar at byte \d+ and in .*y\.tar at byte \d+; take --keys place",
    ):
        open_source(tmp_path)
    assert open_source(tmp_path, SourceOptions(keys="place")).keys == [
        *("x/0000000", "x/0000001"),
        *("y/0000000", "y/0000001"),
    ]


def test_places_that_two_tars_share_are_told_by_their_names(tmp_path: Path) -> None:
    for name in ("x", "x.tar"):
        write_samples(tmp_path / name, [("a", {"png": picture(0)})])
    with pytest.raises(ImageSourceError, match=r"'x/0000000' is in .*/x at .*x\.tar at .*; rename one of"):
        open_source(f"{tmp_path}/x::{tmp_path}/x.tar", SourceOptions(kind="tar", keys="place"))


def test_members_of_one_key_that_do_not_follow_one_another_are_two_samples(tmp_path: Path) -> None:
    members = [("a.png", b"1"), ("b.png", b"2"), ("a.cls", b"3")]
    path = write_members(tmp_path / "x.tar", members)
    assert [key for key, _ in theirs(path)] == ["a", "b", "a"]
    source = open_source(path)
    assert source.keys == ["a", "b"]
    assert len(source.faults) == 1


def test_empty_members_are_rows(tmp_path: Path) -> None:
    source = open_source(write_members(tmp_path / "x.tar", [("a.jpg", b""), ("b.jpg", b"1")]))
    assert [source.read(row) for row in range(2)] == [b"", b"1"]


def test_a_cut_tar_keeps_what_came_before(tmp_path: Path) -> None:
    path = write_samples(tmp_path / "x.tar", [(f"{n}", {"png": picture(n)}) for n in range(5)])
    data = path.read_bytes()
    with tarfile.open(path) as tar:
        last = tar.getmember("3.png").offset_data + 20
    path.write_bytes(data[:last])
    source = open_source(path)
    assert source.keys == ["0", "1", "2", "3"]
    assert [source.read(row) for row in range(3)] == [picture(row) for row in range(3)]
    assert source.read(3) == BadImage(
        status="truncated", reason="the tar ends early, in the middle of this image"
    )
    (fault,) = source.faults
    assert f"x.tar is cut off at byte {last}, in the middle of a member" in fault


def test_links(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for name, kind, target in (("a.jpg", tarfile.SYMTYPE, "b.jpg"), ("b.jpg", tarfile.LNKTYPE, "z.jpg")):
            header = tarfile.TarInfo(name)
            header.type, header.linkname = kind, target
            tar.addfile(header)
    source = open_source(tmp_path / "x.tar")
    results = [source.read(row) for row in range(2)]
    assert [result.reason for result in results if isinstance(result, BadImage)] == [
        "a symbolic link, which has no bytes of its own in a tar",
        "a hard link to no member before it",
    ]


def test_splits_come_from_the_tars_names(tmp_path: Path) -> None:
    for name in ("in1k-train-0000.tar", "in1k-train-0001.tar", "in1k-validation-0000.tar"):
        write_samples(tmp_path / name, [(name[:-4], {"png": picture(0)})])
    source = open_source(tmp_path)
    assert source.column("split") == ["train", "train", "validation"]
    assert source.keys == [
        "train/in1k-train-0000",
        "train/in1k-train-0001",
        "validation/in1k-validation-0000",
    ]
    one = open_source(str(tmp_path / "in1k-train-*.tar"))
    assert one.keys == ["in1k-train-0000", "in1k-train-0001"]
    assert one.column("split") == ["train", "train"]


def test_tars_without_images_say_what_they_have(tmp_path: Path) -> None:
    path = write_members(tmp_path / "x.tar", [("a.txt", b""), ("b.mp4", b"")])
    with pytest.raises(ImageSourceError, match=r"0 images among 2 members \(\.txt, \.mp4\) of .*x\.tar"):
        open_source(path)


def test_the_fingerprint_is_over_keys_and_sizes(tmp_path: Path) -> None:
    def fingerprint(name: str, *samples: tuple[str, bytes]) -> str:
        (tmp_path / name).mkdir()
        path = write_samples(tmp_path / name / "x.tar", [(key, {"png": data}) for key, data in samples])
        return open_source(path).info.fingerprint

    first = fingerprint("1", ("a", b"12"), ("b", b"3"))
    assert fingerprint("2", ("a", b"34"), ("b", b"5")) == first
    assert fingerprint("3", ("a", b"1"), ("b", b"23")) != first
    assert fingerprint("4", ("a", b"12"), ("c", b"3")) != first


def test_a_spawned_process_opens_it_again_by_its_path(tmp_path: Path) -> None:
    path = write_samples(tmp_path / "x.tar", [(f"{n}", {"png": picture(n)}) for n in range(200)])
    source = open_source(path)
    assert len(pickle.dumps(source)) < 1000
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(source.read, range(0, 200, 50)) == [source.read(row) for row in range(0, 200, 50)]


def test_a_process_that_finds_other_images_is_refused(tmp_path: Path) -> None:
    path = write_samples(tmp_path / "x.tar", [("a", {"png": picture(0)})])
    pickled = pickle.dumps(open_source(path))
    write_samples(path, [("b", {"png": picture(0)})])
    with pytest.raises(ImageSourceError, match=r"keys or sizes in x\.tar have; start again"):
        pickle.loads(pickled)


def test_a_tar_that_is_another_now_is_an_error_and_no_bad_row(tmp_path: Path) -> None:
    path = write_samples(tmp_path / "x.tar", [("a", {"png": picture(0)})])
    source = open_source(path)
    path.write_bytes(path.read_bytes() + bytes(512))
    with pytest.raises(ImageSourceError, match=r"x\.tar has changed since it was listed"):
        source.read(0)
    path.unlink()
    with pytest.raises(ImageSourceError, match=r"there is no file .*x\.tar"):
        source.read(0)


def test_many_threads_read_at_once(tmp_path: Path) -> None:
    path = write_samples(tmp_path / "x.tar", [(f"{n:03d}", {"png": picture(n)}) for n in range(100)])
    source = open_source(path)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(source.read, list(range(100)) * 3))
    assert found == [picture(n) for n in range(100)] * 3
