"""Images out of a folder, as rows: a key, a label, and the file's bytes or the reason why there are none.

    source = ImageFolder(Path("photos"))
    source.keys[7], source.labels[7], source.read(7)

Keys are POSIX paths relative to the folder, sorted by code point. Sub-folders are followed, symbolic links
too, except back into a folder that contains them. Names that begin with a dot are left out (editors' and
archivers' leftovers such as `._photo.jpg`), as are files whose extension is not an image's.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from activault.store.errors import ImageSourceError
from activault.store.provenance import SourceInfo

from .decode import EXTENSIONS, BadImage
from .listing import Listed, fingerprint_of, folder_split, label_of, reopened, unreadable

__all__ = ["ImageFolder"]


class ImageFolder(Listed):
    """All images under one folder, listed once; nothing is read before `read`.

    Raises:
        ImageSourceError: the path is not a folder, cannot be listed, or has no image.
    """

    others: Mapping[str, int]
    """How many other files there are, by extension."""

    def __init__(self, path: Path) -> None:
        try:
            is_folder, is_there = path.is_dir(), path.exists()
        except OSError as exc:
            raise ImageSourceError(
                f"the folder {path} cannot be looked into ({exc.strerror}); grant the right to read it"
            ) from exc
        if not is_folder:
            found = "a file" if is_there else "nothing"
            raise ImageSourceError(f"images are read from a folder; there is {found} at {path}")
        self.path = path
        found_files, others = _listing(path)
        if not found_files:
            raise ImageSourceError(_nothing_found(path, others))
        self.keys = [key for key, _, _ in found_files]
        self.labels = _labels(self.keys)
        self.others = others
        self._sizes = [size for _, _, size in found_files]
        # Only names that are not valid UTF-8 have a key that differs from their path.
        self._odd = {row: name for row, (key, name, _) in enumerate(found_files) if name != key}

    @cached_property
    def info(self) -> SourceInfo:
        """The folder's own name, and a hash over keys and file sizes: content is not read for it."""
        name = self.path.resolve().name or "root"
        return SourceInfo(kind="folder", name=name, fingerprint=fingerprint_of(self.keys, self._sizes))

    @cached_property
    def _splits(self) -> list[str | None]:  # type: ignore[override]
        return [folder_split(key) for key in self.keys]

    def __reduce__(self) -> tuple[Any, ...]:
        return reopened, (ImageFolder, (self.path,), self.info.fingerprint)

    def read(self, row: int) -> bytes | BadImage:
        """The bytes of one file; may be called from several threads."""
        file = self.path / self._odd.get(row, self.keys[row])
        try:
            return file.read_bytes()
        except OSError as exc:
            # The folder of a class may be a mount of its own, and it was there when its images were listed.
            return unreadable(exc, self.path if os.path.isdir(file.parent) else file.parent)  # noqa: PTH112


def _labels(keys: list[str]) -> list[str | None]:
    """Every key's label; of a thousand classes there are a thousand strings, however many rows."""
    same: dict[str | None, str | None] = {}
    return [same.setdefault(label, label) for label in map(label_of, keys)]


def _listing(path: Path) -> tuple[list[tuple[str, str, int]], Counter[str]]:
    """Sorted (key, relative path, bytes) of the images, and the other files' extensions."""
    images, others = [], Counter[str]()
    for name, entry in _walk(path, "", ()):
        extension = Path(entry.name).suffix.lower()
        if extension not in EXTENSIONS:
            others[extension or "no extension"] += 1
        elif _is(entry, "file"):
            images.append((_key(name), name, _size(path / name)))
        elif entry.is_symlink():
            # A link to nothing is a row that cannot be read, not a row less.
            images.append((_key(name), name, 0))
        else:
            others["not a file"] += 1  # a pipe or a socket: reading it would wait for ever
    return sorted(images), others


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as exc:
        raise ImageSourceError(
            f"{path} vanished while its folder was listed ({exc.strerror}); try again"
        ) from exc


def _walk(
    folder: Path, prefix: str, above: tuple[tuple[int, int], ...]
) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Every file below, with its path relative to the start; `above` are the folders on the way here."""
    try:
        here = folder.stat()
        with os.scandir(folder) as entries:
            found = [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as exc:
        raise ImageSourceError(f"the folder {folder} cannot be listed ({type(exc).__name__})") from exc
    identity = (here.st_dev, here.st_ino)
    if identity in above or any(entry.name == "zarr.json" for entry in found):
        return  # a store among the images holds none
    for entry in found:
        if _is(entry, "folder"):
            yield from _walk(folder / entry.name, f"{prefix}{entry.name}/", (*above, identity))
        else:
            yield prefix + entry.name, entry


def _is(entry: os.DirEntry[str], kind: str) -> bool:
    """What a link leads to; nothing, if it leads to itself."""
    try:
        return entry.is_dir() if kind == "folder" else entry.is_file()
    except OSError:
        return False


def _key(name: str) -> str:
    """A name as text that can be stored; bytes that are not UTF-8 are spelled out as `\\xNN`."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _nothing_found(path: Path, others: Counter[str]) -> str:
    endings = " ".join(sorted(EXTENSIONS))
    if not others:
        return f"the folder {path} is empty; images are files that end in {endings}"
    seen = ", ".join(ending for ending, _ in others.most_common(4))
    return f"0 images among {others.total()} files ({seen}) in {path}; images are files that end in {endings}"
