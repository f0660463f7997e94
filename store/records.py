"""The record of a finished shard: the only thing that makes its rows valid.

Outcomes and the hashes of files in, canonical JSON out, and back again with every claim checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Final, Protocol

from pydantic import ConfigDict, Field, ValidationError

from .errors import CorruptStoreError
from .files import canonical_json, parse_json, xxh3
from .layout import TokenKind, layer_name
from .manifest import Manifest
from .models import Model
from .remedies import AGAIN, COPY, delete_and_again
from .samples import ABSENT, OK, PENDING, Outcome
from .storage import Storage

__all__ = [
    "MOST_ASKED",
    "SHARD_DIGITS",
    "ArrayFile",
    "ArrayKey",
    "FileRecord",
    "Named",
    "ShardRecord",
    "array_file",
    "array_folder",
    "arrays_of",
    "close_record",
    "extract_again",
    "images_hash",
    "make_record",
    "mark_path",
    "parse_record",
    "read_record",
    "record_path",
    "statistics_path",
]


SHARD_DIGITS: Final = 13
"""Most digits of a shard's number: there are at most 2^40 shards."""
MOST_ASKED: Final = 1 << 17
"""Shards whose record is asked for one by one where nothing can be listed: minutes at 32 at a time."""
_Pixels = Annotated[int, Field(ge=0, lt=1 << 31)]


class _Part(Model):
    model_config = ConfigDict(strict=True)


class FileRecord(_Part):
    """One file of a shard."""

    path: str
    """Relative to the store, with `/`."""
    bytes: int = Field(ge=1)
    hash: str = Field(pattern="^[0-9a-f]{32}$")
    """xxh3 of the file."""


class ArrayFile(FileRecord):
    """One array's file of a shard."""

    values: str = Field(pattern="^[0-9a-f]{32}$")
    """Row sum of the decoded rows."""

    @property
    def row_sum(self) -> int:
        """`values` as the number that it is."""
        return int(self.values, 16)


class ShardRecord(_Part):
    """What `shards/00000.json` holds."""

    format: int
    manifest: str
    """Manifest hash."""
    shard: int
    rows: tuple[int, int]
    """First row, and the row after the last."""
    sizes: tuple[tuple[_Pixels | None, _Pixels | None, int], ...]
    """Images' width, height and how many in a row have them."""
    bad: tuple[tuple[int, str, str | None], ...]
    """Row, status and reason of every row that is not ok."""
    files: tuple[ArrayFile, ...]
    """By layer, then kind."""
    statistics: FileRecord
    images: str | None = Field(pattern="^[0-9a-f]{32}$")
    """Hash over the contents of the images' files; None where unknown."""
    checksum: str
    """xxh3 of the record without this field."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the array files."""
        return sum(file.bytes for file in self.files)


class Named(Protocol):
    """What a digest takes of a record."""

    @property
    def shard(self) -> int:
        """Its shard."""

    @property
    def checksum(self) -> str:
        """Its checksum."""


@dataclass(frozen=True)
class ArrayKey:
    """One array: a layer and a token kind."""

    layer: int
    kind: TokenKind


def arrays_of(manifest: Manifest) -> Iterator[ArrayKey]:
    """Every array of a store, by layer, then kind."""
    for layer in manifest.layers:
        for kind in manifest.kinds:
            yield ArrayKey(layer, kind)


def array_folder(layer: int, kind: TokenKind) -> str:
    """Folder of one array, relative to the store."""
    return f"{layer_name(layer)}/{kind}"


def array_file(layer: int, kind: TokenKind, shard: int) -> str:
    """File of one array's shard, relative to the store."""
    return f"{array_folder(layer, kind)}/c/{shard}/0/0"


def record_path(shard: int) -> str:
    """File of a shard's record, relative to the store."""
    return f"shards/{shard:05d}.json"


def mark_path(shard: int) -> str:
    """File that a shard's owner holds while it writes, relative to the store."""
    folder, _, name = record_path(shard).rpartition("/")
    return f"{folder}/.{name}.tmp"


def extract_again(shard: int) -> str:
    """What to do about bytes of a shard that are not what was written: sizes alone do not show it.

    A record that is deleted would be written again from the index; a shard that lacks a file is made again.
    """
    return f"{COPY}, or {delete_and_again(statistics_path(shard))}"


def statistics_path(shard: int) -> str:
    """File of a shard's statistics, relative to the store."""
    return f"shards/{shard:05d}.stats.safetensors"


def make_record(
    manifest: Manifest,
    shard: int,
    outcomes: Sequence[Outcome],
    files: Sequence[ArrayFile],
    statistics: FileRecord,
) -> tuple[ShardRecord, bytes]:
    """A shard's record and the bytes of its file."""
    rows = manifest.shard_range(shard)
    sizes: list[list[Any]] = []
    for outcome in outcomes:
        if sizes and sizes[-1][:2] == [outcome.width, outcome.height]:
            sizes[-1][2] += 1
        else:
            sizes.append([outcome.width, outcome.height, 1])
    body = {
        "format": manifest.format,
        "shard": shard,
        "rows": [rows.start, rows.stop],
        "sizes": sizes,
        "bad": [
            [row, outcome.status, outcome.reason]
            for row, outcome in zip(rows, outcomes, strict=True)
            if outcome.status != OK
        ],
        "files": [file.model_dump() for file in files],
        "statistics": statistics.model_dump(),
        "images": images_hash(outcomes),
    }
    return close_record(body, manifest, shard)


def images_hash(outcomes: Sequence[Outcome]) -> str | None:
    """xxh3 of the rows' content hashes, one after the other; None if that of a row is unknown."""
    contents = [outcome.content for outcome in outcomes]
    if any(content is None for content in contents):
        return None
    return xxh3("".join(content or "" for content in contents).encode())


def close_record(body: Mapping[str, Any], manifest: Manifest, shard: int) -> tuple[ShardRecord, bytes]:
    """The record that says `body` of a store of `manifest`, with its checksum, and the bytes of its file."""
    body = {**body, "manifest": _manifest_hash(manifest)}
    text = canonical_json(body | {"checksum": xxh3(canonical_json(body))})
    return parse_record(text, manifest, shard), text


def parse_record(text: bytes, manifest: Manifest, shard: int) -> ShardRecord:
    """The record in `text`, every claim of it checked against the manifest.

    Raises:
        CorruptStoreError: it is altered, of another store or another shard, or its files are not the ones
            that the manifest implies.
    """
    name = record_path(shard)
    value = parse_json(text, name)
    if not isinstance(value, dict) or canonical_json(value) != text or not _agrees(value, text):
        raise CorruptStoreError(f"{name} is not what was written (its checksum disagrees); {AGAIN}")
    try:
        record = ShardRecord.model_validate_json(text)
    except ValidationError as exc:
        first = exc.errors()[0]
        raise CorruptStoreError(f"{name}: {first['loc']}: {first['msg']}; {AGAIN}") from exc
    _check_claims(record, manifest, shard)
    return record


def _agrees(value: dict[str, Any], text: bytes) -> bool:
    """Whether the checksum is that of the rest of `text`, which is canonical."""
    own = f'"checksum":"{value.get("checksum")}",'.encode()
    # No text within a string can be taken for it: there its quotes would have backslashes.
    return xxh3(text.replace(own, b"", 1)) == value.get("checksum")


@lru_cache(maxsize=8)
def _manifest_hash(manifest: Manifest) -> str:
    """Kept, because every record is held against it and an int8 store's manifest is long."""
    return manifest.sha256()


def _check_claims(record: ShardRecord, manifest: Manifest, shard: int) -> None:
    rows = manifest.shard_range(shard)
    claims: dict[str, tuple[Any, Any]] = {
        "format": (record.format, manifest.format),
        "manifest": (record.manifest, _manifest_hash(manifest)),
        "shard": (record.shard, shard),
        "rows": (record.rows, (rows.start, rows.stop)),
        "sizes": (_num_sizes(record), len(rows)),
        "bad": ([row for row, _, _ in record.bad], sorted({row for row, _, _ in record.bad} & set(rows))),
        "files": (
            [f.path for f in record.files],
            [array_file(a.layer, a.kind, shard) for a in arrays_of(manifest)],
        ),
        "statistics": (record.statistics.path, statistics_path(shard)),
    }
    for field, (claimed, implied) in claims.items():
        if claimed != implied:
            raise CorruptStoreError(
                f"{record_path(shard)}: {field} must be {_short(implied)} for this store; got "
                f"{_short(claimed)}; {AGAIN}"
            )
    for row, status, _ in record.bad:
        if status in {"", OK, PENDING, ABSENT}:
            raise CorruptStoreError(
                f"{record_path(shard)}: bad row {row} needs a reason code as its status; got {status!r}; "
                f"{AGAIN}"
            )


def _num_sizes(record: ShardRecord) -> int:
    """Rows that the sizes speak of; -1 if a count is not positive, so that none can be hidden."""
    counts = [times for *_, times in record.sizes]
    return sum(counts) if all(times > 0 for times in counts) else -1


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."


def read_record(storage: Storage, manifest: Manifest, shard: int) -> tuple[ShardRecord, bytes] | None:
    """A shard's record and the bytes of its file; None if the shard has none.

    Raises:
        CorruptStoreError: see `parse_record`.
        StorageError: it cannot be read.
    """
    try:
        text = storage.read(record_path(shard))
    except FileNotFoundError:
        return None
    return parse_record(text, manifest, shard), text
