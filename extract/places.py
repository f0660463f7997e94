"""Which files a source is of: one, several, a brace range, a glob or a folder; here or behind a URL.

    find_files("in1k-{000000..000127}.tar", (".tar",))
    find_files("s3://bucket/train/", (".parquet",))

A path or URL in, `SourceFile`s out, in order: as they are written, those of a folder or glob sorted by name.
A path that is there is taken as it is, whatever signs are in it.
"""

from __future__ import annotations

import fnmatch
import glob
import io
import itertools
import math
import os
import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from activault.store.errors import ConfigError, CorruptStoreError, ImageSourceError, StoreError
from activault.store.places import open_storage
from activault.store.remote import Remote
from activault.store.storage import Folder

__all__ = [
    "RangeReader",
    "SourceFile",
    "expand_braces",
    "find_files",
    "is_url",
    "open_place",
    "read_whole",
    "reading",
    "source_name",
]

Result = TypeVar("Result")
MAX_FILES: Final = 1 << 20
"""Files of one source; a brace range beyond is a slip of the pen."""
_BRACES: Final = re.compile(r"\{([^{}]*)\}")
_SCHEMES: Final = ("http", "https", "s3", "file")
_RANGE: Final = re.compile(r"(\d+)\.\.(\d+)")


@dataclass(frozen=True)
class SourceFile:
    """A file that holds many images, or a table of them."""

    storage: Folder | Remote
    """The folder or URL that it lies in."""
    path: str
    """Its name there."""
    name: str
    """Relative to what all files of the source have in common, with `/`."""

    @property
    def where(self) -> str:
        """Path or URL, for messages."""
        return f"{self.storage.where.rstrip('/')}/{self.path}"


def is_url(text: str) -> bool:
    """Whether it begins with a scheme of at least two letters: a Windows drive is none."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", text) is not None


def open_place(where: str) -> Folder | Remote:
    """The folder or URL of a path or URL; nothing is read yet.

    Raises:
        ConfigError: a URL of another scheme, or one that names no place.
    """
    if is_url(where) and where.partition("://")[0].lower() not in _SCHEMES:
        raise ConfigError(
            f"images lie at a path, or at a URL that begins with {', '.join(_SCHEMES)}; got {where}"
        )
    place = open_storage(where)
    assert isinstance(place, Folder | Remote), "there are no other places"
    return place


def reading(what: str, action: Callable[[], Result]) -> Result:
    """What `action` returns; the errors of the store's places become the source's.

    Raises:
        ImageSourceError: the file is absent, forbidden, out of reach, or another one than before.
    """
    try:
        return action()
    except FileNotFoundError as exc:
        raise ImageSourceError(f"there is no file {what}") from exc
    except CorruptStoreError as exc:
        raise ImageSourceError(f"{what} has changed since it was listed ({exc}); start again") from exc
    except StoreError as exc:
        # Most of them name it; here nobody knows whether there is a store yet.
        raise ImageSourceError(str(exc) if what in str(exc) else f"{what}: {exc}") from exc


def read_whole(storage: Folder | Remote, path: str, max_bytes: int) -> bytes:
    """All of one file, also from a server that gives no parts of files; raises as `Storage.read`."""
    if isinstance(storage, Remote):
        return storage.read_whole(path, max_bytes)
    return storage.read(path, max_bytes)


def find_files(images: str, endings: Sequence[str]) -> list[SourceFile]:
    """The files that `images` names.

    Args:
        images: a folder, or paths or URLs with `{000..127}`, `{a,b}` or globs in them, joined by `::`.
        endings: of the files to take from a folder.

    Raises:
        ImageSourceError: there is no such file, or the place cannot list.
        ConfigError: a brace range is none, or a file is named twice.
    """
    storages: dict[str, Folder | Remote] = {}
    found: list[tuple[Folder | Remote, str, str]] = []
    for written in images.split("::"):
        for each in [written] if _is_there(written) else expand_braces(written):
            for parent, name in _files_of(each, endings):
                storage = storages.get(parent) or storages.setdefault(parent, open_place(parent))
                found.append((storage, name, posixpath.join(parent, name)))
    if not found:
        raise ImageSourceError(f"no file that ends in {' or '.join(endings)} is at {images}")
    _refuse_repeats([whole for *_, whole in found], images)
    shared = _shared_folder([whole for *_, whole in found])
    return [SourceFile(storage, name, whole[len(shared) :]) for storage, name, whole in found]


def _refuse_repeats(wholes: Sequence[str], images: str) -> None:
    seen = set[str]()
    for whole in wholes:
        place = whole if is_url(whole) else os.path.abspath(whole)  # noqa: PTH100  (a Path keeps `..`)
        if place in seen:
            raise ConfigError(f"a source has each of its files once; {whole} is there twice in {images}")
        seen.add(place)


def source_name(images: str) -> str:
    """The last part of a path or URL, as the name of a source."""
    return images.rstrip("/").replace("\\", "/").rpartition("/")[2] or "root"


def expand_braces(text: str) -> list[str]:
    """`a-{00..02}-{x,y}` as its six names, the last brace turning fastest.

    Raises:
        ConfigError: a brace has neither a range nor a comma, or there are too many names.
    """
    parts = _BRACES.split(text)  # plain text and what stands in braces, in turn
    choices = [_choices(part, text) for part in parts[1::2]]
    if math.prod(len(each) for each in choices) > MAX_FILES:
        raise ConfigError(f"a source has at most {MAX_FILES} files; {text!r} names more")
    return [
        "".join(part for pair in zip(parts[::2], (*chosen, ""), strict=True) for part in pair)
        for chosen in itertools.product(*choices)
    ]


def _choices(inside: str, text: str) -> list[str]:
    span = _RANGE.fullmatch(inside)
    if span is None:
        if "," not in inside:
            raise ConfigError(f"braces hold a range such as {{000..127}} or names with commas; got {text!r}")
        return inside.split(",")
    width, first, last = len(span[1]), int(span[1]), int(span[2])
    if last < first or last - first >= MAX_FILES:
        raise ConfigError(f"a brace range ascends, to at most {MAX_FILES} files; got {text!r}")
    return [f"{number:0{width}d}" for number in range(first, last + 1)]


def _is_there(path: str) -> bool:
    return not is_url(path) and os.path.lexists(path)


def _files_of(each: str, endings: Sequence[str]) -> list[tuple[str, str]]:
    """Folder or URL, and name, of every file that one path stands for."""
    if is_url(each):
        return _remote_files(each, endings)
    path = Path(each)
    if path.is_dir():
        return _below(path, endings)
    if path.exists():
        return [(str(path.parent), path.name)]
    matches = sorted(glob.glob(each, recursive=True)) if glob.has_magic(each) else []  # noqa: PTH207  (paths may be absolute)
    files = [match for match in matches if os.path.isfile(match)]  # noqa: PTH113  (strings all along)
    if not files:
        raise ImageSourceError(f"there is no file {each}")
    return [(os.path.dirname(file) or ".", os.path.basename(file)) for file in files]  # noqa: PTH119, PTH120


def _below(folder: Path, endings: Sequence[str]) -> list[tuple[str, str]]:
    found = []
    for parent, folders, names in os.walk(folder):
        if "zarr.json" in names:  # a store, whose tables are not images
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [
            (parent, name) for name in names if name.endswith(tuple(endings)) and not name.startswith(".")
        ]
        if len(found) > MAX_FILES:
            raise ImageSourceError(f"a source has at most {MAX_FILES} files; {folder} has more")
    return sorted(found, key=lambda pair: posixpath.join(*pair))


def _remote_files(url: str, endings: Sequence[str]) -> list[tuple[str, str]]:
    parent, _, name = url.rpartition("/")
    has_magic = glob.has_magic(name)
    if glob.has_magic(parent):
        raise ConfigError(f"of a URL the last part alone may be a glob; got {url}")
    if name.endswith(tuple(endings)) and not has_magic:
        return [(parent, name)]
    folder, pattern = (parent, name) if has_magic else (url.rstrip("/"), "*")
    names = reading(folder, lambda: open_place(folder).names(""))
    if names is None:
        raise ImageSourceError(
            f"{folder} cannot be listed: web servers cannot, buckets with the right to; name the files, for "
            "example as part-{000..127}.tar"
        )
    wanted = re.compile(fnmatch.translate(pattern))
    return [(folder, each) for each in names if each.endswith(tuple(endings)) and wanted.match(each)]


def _shared_folder(wholes: Sequence[str]) -> str:
    """What all paths begin with, up to and with a slash."""
    first, last = min(wholes), max(wholes)
    alike = next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return first[: first.rfind("/", 0, alike) + 1]


class RangeReader(io.RawIOBase):
    """One file as Python's own are, read by ranges; for libraries that want one."""

    def __init__(self, file: SourceFile) -> None:
        super().__init__()
        self._what, self._at = file.where, 0
        self._file = reading(self._what, lambda: file.storage.open(file.path))

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to an offset from the start, from here, or from the end."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._file.size}[whence]
        self._at = max(start + offset, 0)
        return self._at

    def tell(self) -> int:
        """Where the next read begins."""
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """Up to `size` bytes; what is left by default."""
        left = max(self._file.size - self._at, 0)
        count = left if size is None or size < 0 else min(size, left)
        data = reading(self._what, lambda: self._file.read(self._at, count)) if count else b""
        self._at += count
        return data

    def close(self) -> None:
        """Give the file back."""
        if not self.closed:
            self._file.__exit__(None, None, None)
        super().close()

    def readinto(self, buffer: Any) -> int:
        """Fill as much of `buffer` as there is."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
