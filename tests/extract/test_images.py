"""Which files of a folder are rows, under which keys and labels."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from PIL import Image

from activault.extract.decode import BadImage
from activault.extract.images import ImageFolder
from activault.extract.listing import label_of
from activault.store import ImageSourceError, split_of


def put(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(folder / name, "PNG")
    return folder


def test_keys_are_sorted_relative_paths_of_every_depth(tmp_path: Path) -> None:
    put(tmp_path, "b/2.png", "a/x/y/1.PNG", "B/1.JpEg", "z.webp", "a/a.b.jpg")
    assert ImageFolder(tmp_path).keys == ["B/1.JpEg", "a/a.b.jpg", "a/x/y/1.PNG", "b/2.png", "z.webp"]


def test_files_of_one_stem_are_rows_of_their_own(tmp_path: Path) -> None:
    put(tmp_path, "a/1.png", "a/1.jpg", "b/1.png")
    assert ImageFolder(tmp_path).keys == ["a/1.jpg", "a/1.png", "b/1.png"]


def test_other_files_and_hidden_ones_are_left_out(tmp_path: Path) -> None:
    put(tmp_path, "1.png", "._1.png", ".cache/2.png", "notes.txt", "archive.png.zip", "png")
    assert ImageFolder(tmp_path).keys == ["1.png"]


@pytest.mark.parametrize(
    ("key", "label"),
    [
        ("1.png", None),
        ("cat/1.png", "cat"),
        ("cat/young/1.png", "cat"),
        ("train/cat/1.png", "cat"),
        ("val/cat/young/1.png", "cat"),
        ("test/1.png", None),
        ("validation/dog/1.png", "dog"),
        ("cat/train/1.png", "cat"),
        ("Train/cat/1.png", "cat"),
        ("VAL/cat/1.png", "cat"),
    ],
)
def test_labels(key: str, label: str | None) -> None:
    assert label_of(key) == label


def test_a_split_folder_is_the_same_for_the_label_and_the_split(tmp_path: Path) -> None:
    source = ImageFolder(put(tmp_path, "Train/cat/1.jpg"))
    assert (source.labels, split_of(source.keys[0])) == (["cat"], "train")


def test_links_are_followed_but_not_round_in_circles(tmp_path: Path) -> None:
    put(tmp_path / "elsewhere", "1.png")
    root = put(tmp_path / "root", "a/2.png")
    (root / "linked").symlink_to(tmp_path / "elsewhere")
    (root / "a" / "up").symlink_to(root)
    (root / "self").symlink_to(root / "self")
    (root / "3.png").symlink_to(root / "a" / "2.png")
    assert ImageFolder(root).keys == ["3.png", "a/2.png", "linked/1.png"]


def test_a_link_to_nothing_is_a_row_that_cannot_be_read(tmp_path: Path) -> None:
    put(tmp_path, "1.png")
    (tmp_path / "2.png").symlink_to(tmp_path / "gone.png")
    source = ImageFolder(tmp_path)
    assert source.keys == ["1.png", "2.png"]
    result = source.read(1)
    assert isinstance(result, BadImage)
    assert (result.status, result.reason) == ("unreadable", "the file cannot be read (FileNotFoundError)")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    put(tmp_path, "1.png")
    os.mkfifo(tmp_path / "2.png")
    assert ImageFolder(tmp_path).keys == ["1.png"]


def test_a_name_that_is_not_utf8_gets_a_key_that_can_be_stored(tmp_path: Path) -> None:
    put(tmp_path, "ok.png")
    (tmp_path / "ok.png").rename(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.png"))
    source = ImageFolder(tmp_path)
    assert source.keys == ["caf\\xe9.png"]
    assert isinstance(source.read(0), bytes)


def test_reading_gives_the_file(tmp_path: Path) -> None:
    Image.new("RGB", (7, 5), "red").save(tmp_path / "1.png")
    assert ImageFolder(tmp_path).read(0) == (tmp_path / "1.png").read_bytes()


def test_a_folder_that_is_gone_is_not_a_folder_of_bad_images(tmp_path: Path) -> None:
    source = ImageFolder(put(tmp_path / "photos", "1.png"))
    (tmp_path / "photos").rename(tmp_path / "elsewhere")
    with pytest.raises(ImageSourceError, match=r"photos is gone \(No such file.*\); bring it back"):
        source.read(0)


def test_the_fingerprint_is_over_keys_and_sizes_and_not_over_the_place(tmp_path: Path) -> None:
    here, there = put(tmp_path / "x" / "photos", "1.png"), put(tmp_path / "y" / "photos", "1.png")
    first = ImageFolder(here).info
    assert first == ImageFolder(there).info
    assert first.name == "photos"
    with (there / "1.png").open("ab") as file:
        file.write(b"0")
    grown = ImageFolder(there).info
    (there / "1.png").rename(there / "2.png")
    assert len({first.fingerprint, grown.fingerprint, ImageFolder(there).info.fingerprint}) == 3


def test_a_folder_that_is_not_there_or_a_file(tmp_path: Path) -> None:
    with pytest.raises(ImageSourceError, match=r"images are read from a folder; there is nothing at .*none"):
        ImageFolder(tmp_path / "none")
    (tmp_path / "file").write_text("")
    with pytest.raises(ImageSourceError, match="there is a file at"):
        ImageFolder(tmp_path / "file")


def test_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    with pytest.raises(ImageSourceError, match=r"is empty; images are files that end in \.bmp .*\.webp"):
        ImageFolder(tmp_path)


def test_a_folder_without_images_says_what_it_has(tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / f"{number}.txt").write_text("text")
    with pytest.raises(ImageSourceError, match=r"0 images among 12 files \(\.txt\) in .*; images are files"):
        ImageFolder(tmp_path)


def test_a_folder_that_cannot_be_listed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "1.png", "closed/2.png")
    listed = os.scandir

    def refuse(folder: Path) -> object:
        if Path(folder).name == "closed":
            raise PermissionError(13, "not allowed")
        return listed(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(ImageSourceError, match=r"closed cannot be listed \(PermissionError\)"):
        ImageFolder(tmp_path)
