"""The members of a tar, read once from its start to its end: names and where their bytes stand.

A file of a storage in, `Member`s out. Data is passed over, not kept: on this machine it is not even read, and
behind a URL it streams by. Names of any length (ustar prefixes, GNU long names, PAX headers) are understood;
what a damaged or cut-off tar still has is given, and `TarScan.fault` then says where it ended.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from activault.store.errors import ImageSourceError

__all__ = ["Member", "TarScan"]

BLOCK: Final = 512
_MOST_TEXT: Final = 1 << 20
"""Bytes of a long name or a PAX header; names are not longer."""
_MOST_REST: Final = 1 << 20
"""Bytes after the end marker that are looked at."""
_WHOLE: Final = {b"0": "file", b"\0": "file", b"7": "file", b"1": "hard link", b"2": "symbolic link"}
_COMPRESSED: Final = {b"\x1f\x8b": "gzip", b"BZ": "bzip2", b"\xfd7": "xz", b"\x28\xb5": "zstd"}

Kind = Literal["file", "hard link", "symbolic link", "sparse"]


@dataclass(frozen=True, slots=True)
class Member:
    """A file in a tar."""

    name: str
    """As it is written; bytes that are not UTF-8 are spelled out as `\\xNN`."""
    kind: Kind
    offset: int
    """Of its first byte in the tar."""
    size: int
    target: str = ""
    """What a link leads to."""


class _BadHeaderError(Exception):
    """A block that should be a header is none."""


@dataclass
class _Extra:
    """What headers before a member say of it."""

    name: bytes | None = None
    target: bytes | None = None
    size: int | None = None
    is_sparse: bool = False
    own_name: bytes | None = None
    """Of a sparse file, whose header has another."""


class TarScan:
    """Iterate once; then `fault` says what was wrong, if anything.

    Args:
        read: up to so many bytes from an offset on, which never goes back.
        size: bytes of the tar.
        what: the tar, for messages.

    Raises:
        ImageSourceError: (iterating) this is no tar, or it is compressed.
    """

    fault: str | None = None

    def __init__(self, read: Callable[[int, int], bytes], size: int, what: str) -> None:
        self._read, self._size, self._what = read, size, what

    def __iter__(self) -> Iterator[Member]:
        at, extra, common = 0, _Extra(), _Extra()
        while True:
            block = self._read(at, BLOCK)
            if len(block) < BLOCK or not block.strip(b"\0"):
                if at == 0 and self._size < BLOCK:
                    raise self._none(block, f"it has {self._size} bytes")
                self.fault = self._end(at, block)
                return
            try:
                kind, size = block[156:157], _checked_size(block)
                if kind in b"LKxXg":
                    text = self._text(at + BLOCK, size)
                    _note(common if kind == b"g" else extra, kind, text)
                    at += BLOCK + _padded(size)
                    continue
                member, at = self._member(block, kind, size, at, extra, common)
            except _BadHeaderError as exc:
                self.fault = self._damaged(at, block, exc)
                return
            extra = _Extra()
            if member is not None:
                yield member
            if at > self._size:
                self.fault = f"{self._what} is cut off at byte {self._size}, in the middle of a member"
                return

    def _text(self, offset: int, size: int) -> bytes:
        if size > _MOST_TEXT:
            raise _BadHeaderError("a long name of over 1 MiB")
        data = self._read(offset, size)
        if len(data) < size:
            raise _BadHeaderError("cut off in a long name")
        return data

    def _member(
        self, block: bytes, kind: bytes, size: int, at: int, extra: _Extra, common: _Extra
    ) -> tuple[Member | None, int]:
        """The member of a header, None for a folder or a device, and where the next header stands."""
        told = extra.size if extra.size is not None else common.size
        size = size if told is None else told
        offset = at + BLOCK
        if kind == b"S":  # old GNU sparse files have further blocks of their map before the data
            more = block[482] != 0
            while more:
                further = self._read(offset, BLOCK)
                if len(further) < BLOCK:
                    raise _BadHeaderError("cut off in a sparse file's map")
                more, offset = further[504] != 0, offset + BLOCK
        told_name = extra.name if extra.own_name is None else extra.own_name
        name = _text_of(_name(block) if told_name is None else told_name)
        target = _text_of(extra.target if extra.target is not None else _until_nul(block[157:257]))
        has_data = kind not in b"123456"
        following = offset + (_padded(size) if has_data else 0)
        if kind == b"S" or extra.is_sparse:
            return Member(name, "sparse", offset, size), following
        if kind not in _WHOLE or (kind == b"\0" and name.endswith("/")):
            return None, following
        found: Kind = _WHOLE[kind]  # type: ignore[assignment]
        return Member(name, found, offset, size if has_data else 0, "" if has_data else target), following

    def _end(self, at: int, block: bytes) -> str | None:
        """What is wrong where no header follows."""
        if len(block) < BLOCK:
            where = (
                f"in the middle of a header at byte {at}" if block else f"at byte {at} without an end marker"
            )
            return f"{self._what} is cut off {where}: members may be missing"
        rest = self._read(at + BLOCK, min(self._size - at - BLOCK, _MOST_REST))
        if rest.strip(b"\0"):
            return (
                f"{self._what} goes on after its end marker at byte {at}, and what follows is not read; "
                "write joined tars anew"
            )
        return None

    def _damaged(self, at: int, block: bytes, exc: _BadHeaderError) -> str:
        if at == 0:
            raise self._none(block, str(exc)) from exc
        return f"{self._what} is damaged at byte {at} ({exc}): members after it are not read"

    def _none(self, block: bytes, why: str) -> ImageSourceError:
        packed = next((name for magic, name in _COMPRESSED.items() if block.startswith(magic)), None)
        if packed is None:
            return ImageSourceError(f"{self._what} is no tar: {why}")
        return ImageSourceError(
            f"{self._what} is compressed ({packed}), so that its images cannot be read one by one; unpack it "
            "to a plain .tar"
        )


def _padded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def _checked_size(block: bytes) -> int:
    """The size that a header states; refuses a block that is no header by its checksum."""
    stated = _number(block[148:156])
    signless = sum(block) - sum(block[148:156]) + 8 * 32
    if stated != signless and stated != signless - 256 * sum(byte > 127 for byte in block):
        raise _BadHeaderError("a header's checksum is wrong")
    size = _number(block[124:136])
    if size < 0:
        raise _BadHeaderError("a size below 0")
    return size


def _number(field: bytes) -> int:
    """Octal digits, or GNU's base 256."""
    if field[0] in (0x80, 0xFF):
        return int.from_bytes(field[1:], "big") - (256 ** (len(field) - 1) if field[0] == 0xFF else 0)
    digits = _until_nul(field).strip()
    if not re.fullmatch(rb"[0-7]*", digits):
        raise _BadHeaderError("a header's number is none")
    return int(digits or b"0", 8)


def _until_nul(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _name(block: bytes) -> bytes:
    name, prefix = _until_nul(block[:100]), _until_nul(block[345:500])
    is_posix = block[257:263] == b"ustar\0"  # GNU's own has times where the prefix would be
    return prefix + b"/" + name if prefix and is_posix else name


def _text_of(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


def _note(extra: _Extra, kind: bytes, text: bytes) -> None:
    """Take up a GNU long name or link, or a PAX header."""
    if kind == b"L":
        extra.name = _until_nul(text)
    elif kind == b"K":
        extra.target = _until_nul(text)
    else:
        for key, value in _pax_records(text):
            if key == b"path" and kind != b"g":
                extra.name = value
            elif key == b"linkpath" and kind != b"g":
                extra.target = value
            elif key == b"size":
                if not re.fullmatch(rb"\d{1,18}", value):
                    raise _BadHeaderError("a PAX size is no number")
                extra.size = int(value)
            elif key.startswith(b"GNU.sparse."):
                extra.is_sparse = True
                if key == b"GNU.sparse.name":
                    extra.own_name = value


def _pax_records(text: bytes) -> Iterator[tuple[bytes, bytes]]:
    """`LENGTH KEY=VALUE` lines; the length counts itself."""
    at = 0
    while at < len(text) and text[at] != 0:
        found = re.compile(rb"(\d{1,7}) ").match(text, at)
        length = int(found[1]) if found else 0
        record = text[at : at + length]
        if found is None or not record.endswith(b"\n") or len(record) < length or length == 0:
            raise _BadHeaderError("a PAX header is none")
        key, _, value = record[len(found[0]) : -1].partition(b"=")
        yield key, value
        at += length
