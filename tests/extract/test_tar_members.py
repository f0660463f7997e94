"""Names and places in tars of every dialect, held against Python's own reader; damage is told."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from activault.extract.tar_members import Member, TarScan
from activault.store import ImageSourceError

from .make_sources import write_members

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
LONG = "/".join(["folder" * 5] * 7) + "/" + "n" * 20 + ".jpg"
MEMBERS = [
    ("a.jpg", b"x" * 700),
    ("b/c.cls", b"3"),
    ("b/empty.jpg", b""),
    (LONG, b"y" * 513),
    ("z.jpg", b"z"),
]


def scanned(data: bytes) -> tuple[list[Member], str | None]:
    scan = TarScan(lambda offset, length: data[offset : offset + length], len(data), "x.tar")
    return list(scan), scan.fault


def theirs(path: Path) -> list[tuple[str, int, int]]:
    with tarfile.open(path) as tar:
        return [(each.name, each.offset_data, each.size) for each in tar if each.isreg()]


def places(members: list[Member]) -> list[tuple[str, int, int]]:
    return [(each.name, each.offset, each.size) for each in members]


@pytest.mark.parametrize("kind", FORMATS.values(), ids=FORMATS)
def test_names_and_places_are_those_of_pythons_reader(tmp_path: Path, kind: int) -> None:
    path = write_members(tmp_path / "x.tar", MEMBERS, kind)
    members, fault = scanned(path.read_bytes())
    assert places(members) == theirs(path)
    assert [each.name for each in members] == [name for name, _ in MEMBERS]
    assert fault is None


@pytest.mark.parametrize("kind", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT], ids=["gnu", "pax"])
def test_names_of_any_length_and_alphabet(tmp_path: Path, kind: int) -> None:
    names = ["é" * 120 + ".jpg", "d/" * 200 + "x.png", "日本/写真.jpg"]
    path = write_members(tmp_path / "x.tar", [(name, b"1") for name in names], kind)
    assert [each.name for each in scanned(path.read_bytes())[0]] == names


def test_bytes_that_are_not_utf8_are_spelled_out(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT, encoding="latin-1") as tar:
        tar.addfile(tarfile.TarInfo("caf\xe9.jpg"), io.BytesIO())
    assert [each.name for each in scanned(path.read_bytes())[0]] == ["caf\\xe9.jpg"]


def test_folders_and_devices_are_no_members_and_links_say_so(tmp_path: Path) -> None:
    (tmp_path / "in" / "sub").mkdir(parents=True)
    (tmp_path / "in" / "1.jpg").write_bytes(b"one")
    os.link(tmp_path / "in" / "1.jpg", tmp_path / "in" / "2.jpg")
    (tmp_path / "in" / "3.jpg").symlink_to("1.jpg")
    os.mkfifo(tmp_path / "in" / "pipe")
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        tar.add(tmp_path / "in", "in")
    found = {each.name: (each.kind, each.target) for each in scanned((tmp_path / "x.tar").read_bytes())[0]}
    whole = {name for name, (kind, _) in found.items() if kind == "file"}
    linked = {name: target for name, (kind, target) in found.items() if kind == "hard link"}
    assert whole | linked.keys() == {"in/1.jpg", "in/2.jpg"}
    assert set(linked.values()) == whole
    assert found["in/3.jpg"] == ("symbolic link", "1.jpg")
    assert len(found) == 3


@pytest.mark.parametrize("kind", ["gnu", "posix"])
def test_sparse_members_are_known_and_what_follows_them_is_found(tmp_path: Path, kind: str) -> None:
    with (tmp_path / "a.jpg").open("wb") as file:
        for place in range(0, 1 << 20, 1 << 16):  # more holes than the first header has room for
            file.seek(place)
            file.write(b"x")
        file.truncate(1 << 21)
    (tmp_path / "b.jpg").write_bytes(b"after")
    subprocess.run(
        ["tar", f"--format={kind}", "--sparse", "-cf", "x.tar", "a.jpg", "b.jpg"], cwd=tmp_path, check=True
    )
    data = (tmp_path / "x.tar").read_bytes()
    members, fault = scanned(data)
    assert fault is None
    assert (members[0].name, members[0].kind) == ("a.jpg", "sparse")
    assert members[1].name == "b.jpg"
    assert data[members[1].offset :][:5] == b"after"


def test_sizes_beyond_eight_octal_gigabytes(tmp_path: Path) -> None:
    header = tarfile.TarInfo("big.jpg")
    header.size = 1 << 36
    gnu, pax = (header.tobuf(kind) for kind in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT))
    for data in (gnu, pax):
        members, fault = scanned(data)
        assert [each.size for each in members] == [1 << 36]
        assert fault is not None
        assert "in the middle of a member" in fault


@pytest.mark.parametrize("kind", FORMATS.values(), ids=FORMATS)
def test_wherever_a_tar_is_cut_what_stood_before_is_found_and_the_cut_is_told(
    tmp_path: Path, kind: int
) -> None:
    path = write_members(tmp_path / "x.tar", MEMBERS, kind)
    data, whole = path.read_bytes(), theirs(path)
    end = data.rfind(b"z") // 512 * 512 + 512  # of the last member
    for cut in range(512, end + 1, 37):
        members, fault = scanned(data[:cut])
        assert places(members) == whole[: len(members)]
        assert len(members) >= sum(offset + size <= cut for _, offset, size in whole)
        assert fault is not None
        assert "cut off" in fault


def test_a_tar_without_its_end_marker_may_lack_members(tmp_path: Path) -> None:
    path = write_members(tmp_path / "x.tar", [("a.jpg", b"x" * 512)])
    members, fault = scanned(path.read_bytes()[:1024])
    assert len(members) == 1
    assert fault == "x.tar is cut off at byte 1024 without an end marker: members may be missing"


def test_a_damaged_header_ends_it_and_says_where(tmp_path: Path) -> None:
    path = write_members(tmp_path / "x.tar", [("a.jpg", b"x" * 512), ("b.jpg", b"y")])
    data = bytearray(path.read_bytes())
    data[1024 + 3] ^= 1
    members, fault = scanned(bytes(data))
    assert [each.name for each in members] == ["a.jpg"]
    assert fault == (
        "x.tar is damaged at byte 1024 (a header's checksum is wrong): members after it are not read"
    )


def test_tars_that_were_joined_are_told(tmp_path: Path) -> None:
    path = write_members(tmp_path / "x.tar", [("a.jpg", b"x")])
    members, fault = scanned(path.read_bytes() * 2)
    assert len(members) == 1
    assert fault is not None
    assert "goes on after its end marker at byte 1024, and what follows is not read" in fault


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"x\.tar is no tar: it has 0 bytes"),
        (b"hello", r"x\.tar is no tar: it has 5 bytes"),
        (b"\x1f\x8b" + bytes(600), r"is compressed \(gzip\), .*; unpack it to a plain \.tar"),
        (b"<html>" * 200, r"x\.tar is no tar: a header's number is none"),
    ],
    ids=["empty", "short", "gzip", "html"],
)
def test_what_is_no_tar(data: bytes, message: str) -> None:
    with pytest.raises(ImageSourceError, match=message):
        scanned(data)


def test_an_empty_tar_has_no_members_and_no_fault() -> None:
    assert scanned(bytes(10240)) == ([], None)


def test_no_flipped_byte_of_a_header_raises_anything_else(tmp_path: Path) -> None:
    data = write_members(tmp_path / "x.tar", MEMBERS).read_bytes()
    for place in range(0, len(data), 11):
        damaged = bytearray(data)
        damaged[place] ^= 0x55
        try:
            members, fault = scanned(bytes(damaged))
        except ImageSourceError:
            continue
        assert members or fault
