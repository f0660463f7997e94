"""What a path of images is: a folder, tars, Parquet files, or a table of paths.

    source = open_source("in1k-train-{0000..1023}.tar")
    source.keys[7], source.labels[7], source.read(7)

All sources are one thing to the rest (`listing.ImageSource`), and the same images in the same order give the
same store whatever they come from.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Final, Literal

from activault.store.errors import ConfigError, ImageSourceError

from .images import ImageFolder
from .listing import ImageSource
from .options import SourceOptions
from .parquet_columns import image_column
from .parquet_images import ParquetImages, open_parquet
from .path_table import PathTable
from .places import expand_braces, find_files, is_url
from .tar_images import TarImages

__all__ = ["ImageSource", "open_source", "opened"]

Progress = Callable[[int, int], None]
Kind = Literal["folder", "tar", "parquet", "table"]
_PACKED: Final = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst", ".zip", ".7z", ".rar")
_ENDINGS: Final[dict[str, Kind]] = {".tar": "tar", ".parquet": "parquet", ".csv": "table", ".tsv": "table"}
_TAKES: Final[dict[Kind, frozenset[str]]] = {
    "folder": frozenset(),
    "tar": frozenset({"keys", "image_column", "label_column", "index"}),
    "parquet": frozenset({"keys", "image_column", "key_column", "label_column"}),
    "table": frozenset({"path_column", "key_column", "label_column", "image_root"}),
}
"""Which of the `SourceOptions` change anything, beside `kind`."""
_IN_FOLDERS: Final[dict[str, Kind]] = {".tar": "tar", ".parquet": "parquet"}


def open_source(
    images: Path | str, options: SourceOptions | None = None, progress: Progress | None = None
) -> ImageSource:
    """The rows of a place of images; listed, not decoded.

    Args:
        images: a folder; tars or Parquet files (one, several joined by `::`, a brace range, a glob, a folder
            of them); a CSV, TSV or Parquet table of paths. On this machine, or an http(s):// or s3:// URL.
        options: how it is read; `kind` settles what is in doubt.
        progress: bytes of tars that are indexed, and of how many.

    Raises:
        ImageSourceError: there is nothing, or nothing that is an image.
        ConfigError: it may be two things, or an option is said that its kind does not know.
    """
    options, text = options or SourceOptions(), os.fspath(images)
    kind = _kind_of(text, options) if options.kind == "auto" else options.kind
    _refuse_unused(text, "folder" if isinstance(kind, ImageFolder) else kind, options)
    if isinstance(kind, ImageFolder):
        return kind
    if kind == "folder":
        return ImageFolder(Path(text))
    if kind == "tar":
        return TarImages(text, options, progress)
    if kind == "parquet":
        return ParquetImages(text, options)
    return PathTable(text, options)


def opened(images: Path | str | ImageSource, options: SourceOptions) -> ImageSource:
    """A source that is open already, or the one of a path."""
    return open_source(images, options) if isinstance(images, str | Path) else images


def _refuse_unused(text: str, kind: Kind, options: SourceOptions) -> None:
    """Refuse what would change nothing: whoever says it expects other rows, keys or labels."""
    usual = SourceOptions(kind=options.kind)
    unused = [
        "--tar-index" if each.name == "index" else f"--{each.name.replace('_', '-')}"
        for each in fields(SourceOptions)
        if getattr(options, each.name) != getattr(usual, each.name) and each.name not in _TAKES[kind]
    ]
    if unused:
        what = {"folder": "a folder of images", "tar": "tars", "parquet": "Parquet files with images"}
        raise ConfigError(
            f"{' and '.join(unused)} would change nothing for {what.get(kind, 'a table of paths')}, which is "
            f"what {text} is taken for; leave it out, or say with --source what else it is"
        )
    if options.keys == "place" and options.key_column is not None:
        raise ConfigError(
            f"keys are places or of a column; got --keys place and --key-column {options.key_column}; leave "
            "one of the two out"
        )


def _kind_of(text: str, options: SourceOptions) -> Kind | ImageFolder:
    """What the place holds; an image folder comes back as listed, since that is what took the time."""
    if not is_url(text) and Path(text).is_dir():
        return _kind_of_folder(text)
    if text.lower().endswith(_PACKED):
        raise ImageSourceError(
            f"{text} is packed, so that its images cannot be read one by one; unpack it to a folder, or to a "
            "plain .tar"
        )
    ending = Path(text.lower()).suffix
    if ending not in _ENDINGS and not is_url(text):
        return "folder"
    if ending not in _ENDINGS:
        return _kind_of_listing(text)
    if ending == ".parquet":
        return _kind_of_parquet(text, options)
    return _ENDINGS[ending]


def _kind_of_folder(text: str) -> Kind | ImageFolder:
    try:
        folder = ImageFolder(Path(text))
    except ImageSourceError as exc:
        held = _held(text)
        if not held:
            raise
        if len(held) > 1:
            raise _in_doubt(text, held) from exc
        return held[0]
    also = [kind for ending, kind in _IN_FOLDERS.items() if folder.others.get(ending)]
    if also:
        raise _in_doubt(text, ["folder", *also])
    return folder


def _kind_of_listing(url: str) -> Kind:
    held = _held(url)
    if len(held) != 1:
        if held:
            raise _in_doubt(url, held)
        raise ImageSourceError(
            f"no .tar and no .parquet file is at {url}; name image files of their own in a table"
        )
    return held[0]


def _held(text: str) -> list[Kind]:
    """Which kinds of files with images in them a folder holds."""
    held: list[Kind] = []
    for ending, kind in _IN_FOLDERS.items():
        try:
            find_files(text, (ending,))
        except ImageSourceError as exc:
            if "cannot be listed" in str(exc):
                raise
            continue
        held.append(kind)
    return held


def _in_doubt(text: str, kinds: list[Kind]) -> ConfigError:
    return ConfigError(
        f"images are read from one kind of source; {text} may be {' or '.join(kinds)}; say which with "
        "--source"
    )


def _kind_of_parquet(text: str, options: SourceOptions) -> Kind:
    """By the first file's columns: bytes are images, otherwise it is a table of paths."""
    if options.path_column is not None:
        return "table"
    first = find_files(expand_braces(text.split("::")[0])[0], (".parquet",))[0]
    with open_parquet(first) as opened:
        return "parquet" if image_column(opened.schema_arrow, options) is not None else "table"
