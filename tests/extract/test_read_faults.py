"""A file that cannot be read is a bad row; a disk, a mount or a process that cannot read is not."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from activault.extract.decode import BadImage
from activault.extract.listing import ImageSource
from activault.extract.sources import open_source
from activault.store import ImageSourceError

from .conftest import MakeFolder
from .make_sources import as_csv

OF_THE_FILE = ["ENOENT", "ENOTDIR", "EISDIR", "ELOOP", "ENAMETOOLONG", "EACCES", "EPERM", "EIO"]
GONE = ["ESTALE", "ETIMEDOUT", "ENOTCONN", "ENODEV", "ENXIO", "EHOSTDOWN", "EREMOTEIO"]
SHORT = ["EMFILE", "ENFILE", "ENOMEM", "EAGAIN", "EBUSY"]


@pytest.fixture(params=["folder", "table"])
def source(request: pytest.FixtureRequest, make_folder: MakeFolder) -> ImageSource:
    folder = open_source(photos := make_folder(3))
    return folder if request.param == "folder" else open_source(as_csv(folder, photos / "list.csv"))


def fail(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Every image that is opened fails so."""
    code = getattr(errno, name)
    opened, read = os.open, Path.read_bytes

    def failing_open(path: Any, *args: Any, **options: Any) -> int:
        if str(path).endswith(".png"):
            raise OSError(code, os.strerror(code))
        return opened(path, *args, **options)

    def failing_read(path: Path) -> bytes:
        if path.suffix == ".png":
            raise OSError(code, os.strerror(code))
        return read(path)

    monkeypatch.setattr(os, "open", failing_open)
    monkeypatch.setattr(Path, "read_bytes", failing_read)


@pytest.mark.parametrize("name", OF_THE_FILE)
def test_a_fault_of_the_file_is_a_bad_row(
    source: ImageSource, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(monkeypatch, name)
    found = source.read(1)
    assert isinstance(found, BadImage)
    assert found.status == "unreadable"


@pytest.mark.parametrize("name", GONE + SHORT)
def test_a_fault_of_the_place_or_the_process_ends_the_run(
    source: ImageSource, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(monkeypatch, name)
    reason = os.strerror(getattr(errno, name))
    with pytest.raises(ImageSourceError, match=rf"photos cannot be read, .* \({reason}\); mend that"):
        source.read(1)


def test_the_folder_of_a_class_that_is_gone_ends_the_run(make_folder: MakeFolder) -> None:
    photos = make_folder(2)
    (photos / "cat").mkdir()
    (photos / "cat" / "a.png").write_bytes(next(photos.rglob("*.png")).read_bytes())
    source = open_source(photos)
    (photos / "cat").rename(photos.parent / "elsewhere")
    with pytest.raises(ImageSourceError, match=r"the folder .*cat is gone .*bring it back"):
        source.read(source.keys.index("cat/a.png"))
