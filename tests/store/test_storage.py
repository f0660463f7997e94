from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from activault.store.errors import AccessDeniedError, ConfigError, CorruptStoreError
from activault.store.places import open_storage
from activault.store.remote import Remote
from activault.store.storage import Folder, gather


@pytest.mark.parametrize(
    "where", ["a.zarr", "folder/a.zarr", "C:/stores/a.zarr", "c:\\a.zarr", "s3:/a", "a:b"]
)
def test_what_is_no_url_is_a_path(where: str) -> None:
    storage = open_storage(where)
    assert isinstance(storage, Folder)
    assert storage.where == where
    assert storage.folder == Path.cwd() / where


@pytest.mark.parametrize(
    "url", ["file://{}/a%20b.zarr", "FILE://{}/a b.zarr/", "file://localhost{}/a b.zarr"]
)
def test_a_file_url_is_a_path(url: str, tmp_path: Path) -> None:
    assert open_storage(url.format(tmp_path)).folder == tmp_path / "a b.zarr"


@pytest.mark.parametrize(
    ("url", "where", "name"),
    [
        ("http://host/a/b.zarr/", "http://host/a/b.zarr", "b.zarr"),
        ("HTTPS://host:81/a%20b.zarr//", "HTTPS://host:81/a%20b.zarr", "a b.zarr"),
        ("http://host", "http://host", "host"),
        ("s3://bucket/x/a b.zarr/", "s3://bucket/x/a b.zarr", "a b.zarr"),
        ("s3://bucket", "s3://bucket", "bucket"),
    ],
)
def test_urls_have_a_name(url: str, where: str, name: str) -> None:
    storage = open_storage(url)
    assert isinstance(storage, Remote)
    assert (storage.where, storage.name, storage.folder) == (where, name, None)
    assert pickle.loads(pickle.dumps(storage)).where == where


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("gs://bucket/a", r"begins with file://, http://, https:// or s3://; got gs://bucket/a"),
        ("ftp://host/a", r"or s3://; got ftp://host/a"),
        (
            "http://host/a.zarr?sig=SECRET",
            r"no query and no fragment.* behind http://host/a.zarr; leave it out",
        ),
        ("s3://bucket/a#b", r"no fragment.* behind s3://bucket/a;"),
        ("https://user:SECRET@host/a", r"holds no user name or password.* for host; leave it out"),
        ("http:///a", r"names a host or a bucket after //; got http:///a"),
        ("s3://", r"names a host or a bucket"),
        ("file://server/share", r"a file:// URL is file:///PATH; got file://server/share"),
    ],
)
def test_urls_that_name_no_store_are_refused(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        open_storage(url)
    assert "SECRET" not in str(caught.value)


def test_a_folder_reads_ranges_blocks_and_names(tmp_path: Path) -> None:
    data = os.urandom(5 << 20)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "f").write_bytes(data)
    folder = Folder(tmp_path)
    assert folder.size("sub/f") == len(data)
    assert b"".join(folder.blocks("sub/f")) == folder.read("sub/f") == data
    assert folder.names("sub") == ["f"]
    assert folder.names("nowhere") == []
    with folder.open("sub/f", len(data)) as file:
        assert file.read(100, 50) == data[100:150]
        with pytest.raises(CorruptStoreError, match="sub/f ended 10 bytes early"):
            file.read(len(data) - 5, 15)
    with pytest.raises(CorruptStoreError, match=f"sub/f must have 7 bytes; it has {len(data)}"):
        folder.open("sub/f", 7)
    with pytest.raises(CorruptStoreError, match="sub/f holds at most 10 bytes"):
        folder.read("sub/f", 10)
    for path in ("sub/g", "sub/f/g"):
        with pytest.raises(FileNotFoundError):
            folder.read(path)


def test_a_folder_tells_what_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """chmod does not stop root, so the system's answer is given here."""
    (tmp_path / "f").write_bytes(b"x")

    def refuse(*args: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(AccessDeniedError, match=r"f cannot be read \(Permission denied\); grant the right"):
        Folder(tmp_path).open("f")


def test_gather_keeps_the_order_and_raises_the_first_fault() -> None:
    remote = open_storage("http://host/a")
    assert gather(remote, lambda item: item * 2, range(100)) == list(range(0, 200, 2))

    def fail_from_five(item: int) -> int:
        if item >= 5:
            raise ValueError(str(item))
        return item

    for storage in (remote, Folder("a")):
        with pytest.raises(ValueError, match=r"^5$"):
            gather(storage, fail_from_five, range(100))


def test_importing_the_store_brings_no_heavy_library() -> None:
    heavy = ("obstore", "timm", "torch", "zarr")
    code = f"import sys, activault.store; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
