"""From a tar's members to rows, by WebDataset's rules: pure.

The index of a tar and how its source is read in, `TarRow`s out, and what is odd about the tar beside them.

A key is a member's path up to the first dot of its base name, the rest its extension (`a.b.jpg` is image
`b.jpg` of sample `a`); members of one key that follow one another are one sample, and a sample with an image
is a row. Beyond WebDataset's rules: names that begin with a dot are left out, as is `./` before a name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from activault.store.errors import ImageSourceError

from .decode import EXTENSIONS, BadImage
from .listing import label_of
from .options import SourceOptions
from .places import SourceFile
from .tar_index import TarIndex

__all__ = ["TarRow", "split_name", "tar_rows"]

_LONGEST_LABEL: Final = 200
_META: Final = re.compile(r"__[^/]*__($|/)")
_TEXTS: Final = ("cls", "txt")


@dataclass(frozen=True, slots=True)
class TarRow:
    """One image in a tar."""

    key: str
    label: str | None
    number: int
    """Of the sample in its tar."""
    offset: int
    size: int
    bad: BadImage | None
    """Why there are no bytes at that place."""


@dataclass(slots=True)
class _Sample:
    """Members of one key that follow one another."""

    key: str
    members: dict[str, int] = field(default_factory=dict)
    """Place in the tar's index by extension."""


def split_name(name: str) -> tuple[str, str] | None:
    """A member's key and extension, `a/b` and `left.jpg` of `a/b.left.jpg`; None for one that has none."""
    name = name.removeprefix("./").lstrip("/")
    folder, slash, base = name.rpartition("/")
    stem, dot, extension = base.partition(".")
    if not stem or not dot or _META.match(name) or any(part.startswith(".") for part in folder.split("/")):
        return None
    return f"{folder}{slash}{stem}", extension.lower()


def tar_rows(file: SourceFile, index: TarIndex, options: SourceOptions) -> tuple[list[TarRow], list[str]]:
    """The rows of one tar, and a line for each thing that is wrong with it beside bad images.

    Raises:
        ImageSourceError: an extension is twice in a sample, or it has several images and none is chosen.
    """
    columns: dict[str, list[Any]] = {
        name: index.members[name].to_pylist() for name in ("name", "kind", "offset", "size", "text")
    }
    rows, odd = list[TarRow](), dict[str, list[str]]()
    for number, sample in enumerate(_samples(file, columns)):
        place = _image_of(sample, file, options)
        if place is None:
            odd.setdefault("samples without an image", []).append(sample.key)
            continue
        try:
            label = _label(sample, columns["text"], options.label_column)
        except ValueError:
            label = None
            odd.setdefault("samples whose label cannot be read", []).append(sample.key)
        offset, size = columns["offset"][place], columns["size"][place]
        bad = _bad(columns["kind"][place], offset + size > index.size)
        rows.append(TarRow(sample.key, label, number, offset, size, bad))
    faults = [f"{file.where} has {len(keys)} {what} (first: {keys[0]})" for what, keys in sorted(odd.items())]
    return rows, faults if index.fault is None else [*faults, index.fault]


def _samples(file: SourceFile, columns: Mapping[str, list[Any]]) -> Iterator[_Sample]:
    current: _Sample | None = None
    for place, (name, kind) in enumerate(zip(columns["name"], columns["kind"], strict=True)):
        parts = split_name(name)
        if parts is None or (kind == "symbolic link" and not _is_image(parts[1])):
            continue
        key, extension = parts
        if current is None or current.key != key:
            if current is not None:
                yield current
            current = _Sample(key)
        if extension in current.members:
            first, second = (columns["offset"][at] for at in (current.members[extension], place))
            raise ImageSourceError(
                f"a sample has each extension once; {file.where} has {name} twice, at bytes {first} and "
                f"{second}; write it under another name"
            )
        current.members[extension] = place
    if current is not None:
        yield current


def _is_image(extension: str) -> bool:
    return f".{extension.rpartition('.')[2]}" in EXTENSIONS


def _image_of(sample: _Sample, file: SourceFile, options: SourceOptions) -> int | None:
    """The place of a sample's image."""
    if options.image_column is not None:
        return sample.members.get(options.image_column.lower())
    images = [extension for extension in sample.members if _is_image(extension)]
    plain = [extension for extension in images if "." not in extension]
    if len(images) > 1 and len(plain) != 1:
        raise ImageSourceError(
            f"a sample is one row, and {sample.key} of {file.where} has the images {', '.join(images)}: its "
            "key ends at the first dot of the name; choose one with --image-column, or write names with one "
            "dot"
        )
    chosen = plain if len(images) > 1 else images
    return sample.members[chosen[0]] if chosen else None


def _bad(kind: str, is_cut: bool) -> BadImage | None:
    reasons = {
        "hard link": "a hard link to no member before it",
        "symbolic link": "a symbolic link, which has no bytes of its own in a tar",
        "sparse": "a sparse member; write the tar without --sparse",
    }
    if kind in reasons:
        return BadImage(status="unreadable", reason=reasons[kind])
    if is_cut:
        return BadImage(status="truncated", reason="the tar ends early, in the middle of this image")
    return None


def _label(sample: _Sample, texts: list[bytes | None], column: str | None) -> str | None:
    """`.cls`, the field `label` of `.json`, a short `.txt`, or the key's folder; or what `column` names.

    Raises:
        ValueError: the member that holds it is not text, or no JSON, or too long.
    """
    if column is not None:
        if column.lower() in _TEXTS:
            return _text(sample, texts, column.lower())
        return _field(sample, texts, column)
    if "cls" in sample.members:
        return _text(sample, texts, "cls")
    if (label := _field(sample, texts, "label")) is not None:
        return label
    if "txt" in sample.members:
        try:
            text = _text(sample, texts, "txt")
        except ValueError:
            text = None  # a caption is not a label that cannot be read
        if text and len(text) <= _LONGEST_LABEL and "\n" not in text:
            return text
    return label_of(sample.key)


def _text(sample: _Sample, texts: list[bytes | None], extension: str) -> str | None:
    place = sample.members.get(extension)
    if place is None:
        return None
    found = texts[place]
    if found is None:
        raise ValueError(f"{extension} is not kept: too long, or cut off")
    return found.decode().strip() or None


def _field(sample: _Sample, texts: list[bytes | None], name: str) -> str | None:
    text = _text(sample, texts, "json")
    if text is None:
        return None
    value = json.loads(text)
    value = value.get(name) if isinstance(value, dict) else None
    if isinstance(value, dict | list):
        raise ValueError(f"{name} is no single value")  # noqa: TRY004  (of the file, not of an argument)
    return value if value is None or isinstance(value, str) else json.dumps(value)
