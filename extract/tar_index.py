"""The index of a tar: every member's name and place, made once and kept, so that rows are ranges of bytes.

A tar in, a table with the columns of `INDEX_SCHEMA` out, and what is wrong with the tar. The index lies in
the user's cache folder (`$ACTIVAULT_CACHE`), beside the tar, or nowhere. It is believed only if its own hash
agrees and the tar has the size and the time, or the ETag, that it was made from; otherwise it is made again.
Small text members (`.cls`, `.json`, `.txt`) are kept in it, since labels are in them.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from activault.store.errors import ImageSourceError
from activault.store.files import atomic_write, canonical_json, xxh3
from activault.store.remote import Remote

from .cache import cache_folder
from .places import SourceFile, reading
from .tar_members import Member, TarScan

__all__ = ["INDEX_SCHEMA", "Advance", "TarIndex", "index_tar"]

Advance = Callable[[int], None]
"""Told how many bytes of a tar were gone through."""

_FIELDS: Final[list[Any]] = [
    pa.field("name", pa.string(), nullable=False),
    pa.field("kind", pa.string(), nullable=False),
    pa.field("offset", pa.int64(), nullable=False),
    pa.field("size", pa.int64(), nullable=False),
    pa.field("text", pa.binary()),
]
INDEX_SCHEMA: Final = pa.schema(_FIELDS)
TEXTS: Final = (".cls", ".json", ".txt")
_MAGIC: Final = b"activault tar index 1\n"
_MOST_TEXT: Final = 64 << 10
"""Bytes of a text member that are kept; a label is not longer."""
_WINDOW: Final = 4096
"""Read at once on this machine: a header and the small members that follow it."""


@dataclass(frozen=True)
class TarIndex:
    """What is known of a tar."""

    size: int
    """Its bytes."""
    members: pa.Table
    """Columns of `INDEX_SCHEMA`, in the tar's order; of a member that is cut off, the size it should have."""
    fault: str | None
    """Where it is cut off or damaged; what came before is in the table."""


def index_tar(file: SourceFile, keep: str, advance: Advance) -> TarIndex:
    """The index of one tar, as it was kept or made now.

    Args:
        file: the tar.
        keep: `cache`, `beside` or `none`; see `SourceOptions.index`.
        advance: told the bytes gone through; those of a kept index at once.

    Raises:
        ImageSourceError: the file is no tar, or cannot be read.
    """
    size, stamp = _stamp(file)
    kept = _place(file, keep)
    head = {"where": "" if keep == "beside" else _identity(file), "size": size, "stamp": stamp}
    if kept is not None and (found := _kept(kept, head)) is not None:
        advance(size)
        return found
    made = _made(file, size, advance)
    if _stamp(file) != (size, stamp):
        raise ImageSourceError(f"{file.where} is being written; try again when it is whole")
    if kept is not None:
        # An index that cannot be kept is made again next time, which costs time and nothing else.
        with contextlib.suppress(OSError):
            kept.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(kept, _packed(made, head))
    return made


def _identity(file: SourceFile) -> str:
    folder = file.storage.folder
    return str(folder / file.path) if folder is not None else file.where


def _stamp(file: SourceFile) -> tuple[int, str]:
    storage = file.storage
    if isinstance(storage, Remote):
        return reading(file.where, lambda: storage.stamp(file.path))
    assert storage.folder is not None, "a place is a folder or a URL"
    try:
        found = (storage.folder / file.path).stat()
    except OSError as exc:
        raise ImageSourceError(f"{file.where} cannot be read ({exc.strerror})") from exc
    return found.st_size, str(found.st_mtime_ns)


def _place(file: SourceFile, keep: str) -> Path | None:
    if keep == "none":
        return None
    if keep == "cache":
        return cache_folder() / "tar-index" / f"{xxh3(_identity(file).encode())}.index"
    if file.storage.folder is None:
        raise ImageSourceError(f"an index is kept beside tars on this machine alone; {file.where} is not")
    return file.storage.folder / f"{file.path}.activault-index"


def _packed(index: TarIndex, head: dict[str, Any]) -> bytes:
    """Magic, hash of all that follows, one line of JSON, and the table as Arrow's own file."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(sink, INDEX_SCHEMA, options=options) as writer:
        writer.write_table(index.members)
    body = canonical_json(head | {"fault": index.fault}) + b"\n" + sink.getvalue().to_pybytes()
    return _MAGIC + xxh3(body).encode() + b"\n" + body


def _kept(place: Path, head: dict[str, Any]) -> TarIndex | None:
    """The index that lies there; None if there is none, it is damaged, or it is of another tar."""
    try:
        data = place.read_bytes()
    except OSError:
        return None
    start = len(_MAGIC) + 33
    if data[: len(_MAGIC)] != _MAGIC or data[len(_MAGIC) : start] != xxh3(data[start:]).encode() + b"\n":
        return None
    line, _, table = data[start:].partition(b"\n")
    told = json.loads(line)
    fault = told.pop("fault", None)
    if told != head:
        return None
    members = pa.ipc.open_file(pa.BufferReader(table)).read_all()
    return TarIndex(head["size"], members, fault) if members.schema.equals(INDEX_SCHEMA) else None


def _made(file: SourceFile, size: int, advance: Advance) -> TarIndex:
    columns: dict[str, list[Any]] = {name: [] for name in INDEX_SCHEMA.names}
    seen: dict[str, Member] = {}
    with _forward(file, size) as read:
        scan, told = TarScan(read, size, file.where), 0
        for found in scan:
            advance(found.offset - told)
            told = found.offset
            member = _resolved(found, seen)
            seen[found.name] = member
            columns["name"].append(member.name)
            columns["kind"].append(member.kind)
            columns["offset"].append(member.offset)
            columns["size"].append(member.size)
            columns["text"].append(_text(read, member) if member is found else None)
    advance(size - told)
    return TarIndex(size, pa.table(columns, INDEX_SCHEMA), scan.fault)


def _resolved(member: Member, seen: dict[str, Member]) -> Member:
    """A hard link as the member before it that it stands for; tars have the bytes of such files once."""
    target = seen.get(member.target) if member.kind == "hard link" else None
    return member if target is None else replace(target, name=member.name)


def _text(read: Callable[[int, int], bytes], member: Member) -> bytes | None:
    if member.kind != "file" or member.size > _MOST_TEXT or not member.name.lower().endswith(TEXTS):
        return None
    text = read(member.offset, member.size)
    return text if len(text) == member.size else None


@contextlib.contextmanager
def _forward(file: SourceFile, size: int) -> Iterator[Callable[[int, int], bytes]]:
    """`read(offset, length)` of one file, from its start towards its end."""
    if file.storage.folder is None:
        yield _Streamed(file).read
        return
    opened = reading(file.where, lambda: file.storage.open(file.path, size))
    start, window = 0, b""

    def read(offset: int, length: int) -> bytes:
        nonlocal start, window
        if not start <= offset <= offset + length <= start + len(window):
            wanted = min(max(length, _WINDOW), max(size - offset, 0))
            window = reading(file.where, lambda: opened.read(offset, wanted)) if wanted else b""
            start = offset
        return window[offset - start : offset - start + length]

    with opened:
        yield read


class _Streamed:
    """A file behind a URL, read once in large blocks: a request a member would take far longer."""

    def __init__(self, file: SourceFile) -> None:
        self._blocks, self._what = file.storage.blocks(file.path), file.where
        self._start, self._held = 0, b""

    def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset` on; what lies before is let go."""
        while self._start + len(self._held) < offset + length:
            block = reading(self._what, lambda: next(self._blocks, b""))
            if not block:
                break
            left = self._held[max(offset - self._start, 0) :]
            self._start = max(self._start + len(self._held) - len(left), 0)
            self._held = left + block
        return self._held[offset - self._start :][:length] if offset >= self._start else b""
