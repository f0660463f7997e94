"""The index of a tar: made once, and never believed where the tar or the index is not what it was."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from activault.extract import tar_index
from activault.extract.places import find_files
from activault.extract.tar_index import TarIndex, index_tar
from activault.store import ImageSourceError

from .make_sources import picture, write_members, write_samples


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the tars that were gone through."""
    names: list[str] = []
    real = tar_index._made

    def noted(file: Any, *arguments: Any) -> Any:
        names.append(file.path)
        return real(file, *arguments)

    monkeypatch.setattr(tar_index, "_made", noted)
    return names


@pytest.fixture
def tar(tmp_path: Path) -> Path:
    samples = [
        (f"{number}", {"png": picture(number), "cls": number, "npy": b"\0" * 50}) for number in range(5)
    ]
    return write_samples(tmp_path / "tars" / "x.tar", samples)


def indexed(path: Path, keep: str = "cache") -> TarIndex:
    (file,) = find_files(str(path), (".tar",))
    return index_tar(file, keep, lambda count: None)


def kept(cache: Path) -> Path:
    (found,) = (cache / "tar-index").iterdir()
    return found


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ACTIVAULT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_it_is_made_once_and_says_the_same_the_next_time(tar: Path, cache: Path, made: list[str]) -> None:
    first, second = indexed(tar), indexed(tar)
    assert made == ["x.tar"]
    assert first.members.equals(second.members)
    assert (first.size, first.fault) == (second.size, second.fault) == (tar.stat().st_size, None)


def test_labels_are_in_it_and_other_members_are_not(tar: Path, cache: Path) -> None:
    rows = indexed(tar).members.to_pylist()
    assert {row["name"]: row["text"] for row in rows if row["text"] is not None} == {
        f"{number}.cls": str(number).encode() for number in range(5)
    }
    for row in rows:
        if row["name"].endswith(".png"):
            assert tar.read_bytes()[row["offset"] :][: row["size"]] == picture(int(row["name"][0]))


def test_a_tar_that_was_written_again_is_gone_through_again(tar: Path, cache: Path, made: list[str]) -> None:
    indexed(tar)
    data = tar.read_bytes()
    tar.write_bytes(data)
    os.utime(tar, (1, 1))
    indexed(tar)
    tar.write_bytes(data + bytes(512))
    os.utime(tar, (1, 1))
    indexed(tar)
    assert len(made) == 3


def test_another_tar_at_the_same_place_in_another_cache_line(tar: Path, cache: Path, made: list[str]) -> None:
    indexed(tar)
    other = tar.with_name("y.tar")
    tar.rename(other)
    kept(cache).rename(cache / "tar-index" / tar_index._place(find_files(str(other), ())[0], "cache").name)  # type: ignore[union-attr]
    indexed(other)
    assert made == ["x.tar", "y.tar"]


def test_no_damaged_index_is_believed(tar: Path, cache: Path, made: list[str]) -> None:
    right = indexed(tar)
    file = kept(cache)
    data = file.read_bytes()
    for place in range(0, len(data), max(1, len(data) // 40)):
        file.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        assert indexed(tar).members.equals(right.members)
    for cut in (0, 10, len(data) // 2, len(data) - 1):
        file.write_bytes(data[:cut])
        assert indexed(tar).members.equals(right.members)
    assert len(made) == 1 + len(range(0, len(data), max(1, len(data) // 40))) + 4
    assert file.read_bytes() == data


def test_beside_the_tar_it_moves_with_it(tar: Path, made: list[str], tmp_path: Path) -> None:
    indexed(tar, "beside")
    assert (tar.parent / "x.tar.activault-index").is_file()
    tar.parent.rename(tmp_path / "moved")
    indexed(tmp_path / "moved" / "x.tar", "beside")
    assert made == ["x.tar"]


def test_nowhere(tar: Path, cache: Path, made: list[str]) -> None:
    indexed(tar, "none")
    indexed(tar, "none")
    assert len(made) == 2
    assert not cache.exists()


def test_a_cache_that_cannot_be_written_costs_time_alone(tar: Path, cache: Path, made: list[str]) -> None:
    cache.write_text("a file")
    assert len(indexed(tar).members) == len(indexed(tar).members) == 15
    assert len(made) == 2


def test_a_cut_is_kept_with_it(tar: Path, cache: Path, made: list[str]) -> None:
    tar.write_bytes(tar.read_bytes()[:2000])
    first, second = indexed(tar), indexed(tar)
    assert first.fault == second.fault
    assert first.fault is not None
    assert "x.tar is cut off" in first.fault
    assert len(made) == 1


def test_a_tar_that_grows_meanwhile_is_refused(
    tar: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tar_index._made

    def growing(file: Any, *arguments: Any) -> Any:
        found = real(file, *arguments)
        with tar.open("ab") as more:
            more.write(bytes(512))
        return found

    monkeypatch.setattr(tar_index, "_made", growing)
    with pytest.raises(ImageSourceError, match=r"x\.tar is being written; try again when it is whole"):
        indexed(tar)
    assert not cache.exists()


def test_hard_links_are_the_member_that_they_stand_for(tmp_path: Path) -> None:
    (tmp_path / "1.png").write_bytes(picture(1))
    os.link(tmp_path / "1.png", tmp_path / "2.png")
    import tarfile

    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for name in ("1.png", "2.png"):
            tar.add(tmp_path / name, name)
    first, second = indexed(tmp_path / "x.tar", "none").members.to_pylist()
    assert (first.pop("name"), second.pop("name")) == ("1.png", "2.png")
    assert first == second


def test_progress_reaches_the_size(tar: Path) -> None:
    told: list[int] = []
    (file,) = find_files(str(tar), (".tar",))
    index_tar(file, "none", told.append)
    assert sum(told) == tar.stat().st_size
    assert all(count >= 0 for count in told)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    write_members(tmp_path / "x.tar", [("a.png", b"")])
    (file,) = find_files(str(tmp_path / "x.tar"), (".tar",))
    (tmp_path / "x.tar").unlink()
    with pytest.raises(ImageSourceError, match=r"x\.tar cannot be read \(No such file"):
        index_tar(file, "none", lambda count: None)
