"""The record and the statistics file of a shard in a part or a merger of stores, from those of its sources.

Nothing is computed anew: files and tensors are picked out of the sources', so that the parts of a store
joined again give its very bytes. A part is a join of one piece.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from safetensors import SafetensorError
from safetensors.numpy import load, save

from .codecs import most_chunk_bytes
from .errors import CorruptStoreError, StoreMismatchError
from .files import xxh3
from .layout import KINDS
from .manifest import Manifest
from .records import (
    ArrayFile,
    ArrayKey,
    FileRecord,
    ShardRecord,
    array_file,
    arrays_of,
    close_record,
    record_path,
    statistics_path,
)
from .statistics import Tensors, checked_tensors, most_statistics_bytes, tensor_names

__all__ = [
    "RecordPiece",
    "differing",
    "join_record",
    "join_statistics",
    "joined_facts",
    "picked",
    "picked_files",
    "refuse_absurd_sizes",
    "refuse_contradictions",
]


@dataclass(frozen=True)
class RecordPiece:
    """What one source gives to a shard."""

    where: str
    """The source, for messages."""
    record: ShardRecord
    """As the source has it."""
    arrays: Collection[ArrayKey]
    """The arrays that are taken from it."""


def picked_files(pieces: Iterable[RecordPiece], manifest: Manifest, shard: int) -> tuple[ArrayFile, ...]:
    """The array files of a shard in the order of `manifest`, each from the piece that gives it."""
    given = {file.path: file for piece in pieces for file in picked(piece)}
    return tuple(given[array_file(array.layer, array.kind, shard)] for array in arrays_of(manifest))


def picked(piece: RecordPiece) -> list[ArrayFile]:
    """The array files that a piece gives."""
    paths = {array_file(array.layer, array.kind, piece.record.shard) for array in piece.arrays}
    return [file for file in piece.record.files if file.path in paths]


def join_record(
    pieces: Sequence[RecordPiece], manifest: Manifest, statistics: bytes
) -> tuple[ShardRecord, bytes]:
    """The shard's record under `manifest`, and the bytes of its file.

    Raises:
        StoreMismatchError: two sources disagree about the sizes or the outcomes of images.
    """
    refuse_contradictions(pieces)
    first = pieces[0].record
    shard = first.shard
    body = first.model_dump(mode="json", exclude={"checksum"}) | {
        "images": _joined_images(pieces),
        "files": [file.model_dump() for file in picked_files(pieces, manifest, shard)],
        "statistics": FileRecord(
            path=statistics_path(shard), bytes=len(statistics), hash=xxh3(statistics)
        ).model_dump(),
    }
    return close_record(body, manifest, shard)


def refuse_contradictions(pieces: Sequence[RecordPiece]) -> None:
    """Refuse records of one shard that cannot be of one store, whatever is taken from each.

    Raises:
        StoreMismatchError: two sources disagree about the sizes, the outcomes or the contents of images, or
            have other statistics of the same arrays.
    """
    for number, other in enumerate(pieces):
        for one in pieces[:number]:
            _refuse_contradiction(one, other)


def _refuse_contradiction(one: RecordPiece, other: RecordPiece) -> None:
    name = record_path(one.record.shard)
    for field in ("sizes", "bad"):
        first, second = getattr(one.record, field), getattr(other.record, field)
        if first != second:
            raise StoreMismatchError(
                f"{name}: {field} differ: {differing(first, second)} in {one.where} and "
                f"{differing(second, first)} in {other.where}; merge copies of one store"
            )
    if len({one.record.images, other.record.images} - {None}) > 1:
        raise StoreMismatchError(
            f"{name}: the contents of the images differ between {one.where} and {other.where} (hashes "
            f"{one.record.images} and {other.record.images}); merge stores of the same images"
        )
    if one.record.files == other.record.files and one.record.statistics != other.record.statistics:
        raise StoreMismatchError(
            f"{name}: the statistics of the same files differ between {one.where} and {other.where} (hashes "
            f"{one.record.statistics.hash} and {other.record.statistics.hash}); merge copies of one store"
        )


def joined_facts(pieces: Sequence[RecordPiece], manifest: Manifest, shard: int) -> dict[str, Any]:
    """Fields of the shard's record that are known before its statistics are read, as `ShardRecord` has them.

    The statistics are among them where one piece gives all that it has: they are its own then.
    """
    first = pieces[0]
    known: dict[str, Any] = {
        "files": picked_files(pieces, manifest, shard),
        "sizes": first.record.sizes,
        "bad": first.record.bad,
        "images": _joined_images(pieces),
    }
    return known | ({"statistics": first.record.statistics} if _is_whole(pieces) else {})


def _joined_images(pieces: Iterable[RecordPiece]) -> str | None:
    return next((piece.record.images for piece in pieces if piece.record.images is not None), None)


def _is_whole(pieces: Sequence[RecordPiece]) -> bool:
    """Whether one piece gives every array of its source's record."""
    return len(pieces) == 1 and len(picked(pieces[0])) == len(pieces[0].record.files)


def differing(entries: Sequence[Any], others: Sequence[Any]) -> str:
    """The first of the entries that is not the other's, for a message; their number where there is none."""
    place = next((n for n, pair in enumerate(zip(entries, others, strict=False)) if pair[0] != pair[1]), None)
    return repr(entries[place]) if place is not None else f"{len(entries)} entries"


def join_statistics(pieces: Sequence[tuple[RecordPiece, bytes]], manifest: Manifest) -> bytes:
    """A shard's statistics file: the tensors of every piece's arrays, in safetensors' own order.

    Where one piece gives all that it has, the very bytes of its file, whoever wrote them.

    Raises:
        CorruptStoreError: a file lacks the statistics of an array, has them in another shape, or has some of
            no array of its store.
    """
    joined: Tensors = {}
    for piece, data in pieces:
        joined |= _tensors(piece, data, manifest)
    return pieces[0][1] if _is_whole([piece for piece, _ in pieces]) else save(joined)


def _tensors(piece: RecordPiece, data: bytes, manifest: Manifest) -> Tensors:
    what = f"{statistics_path(piece.record.shard)} of {piece.where}"
    try:
        tensors = load(data)
    except (SafetensorError, ValueError, KeyError) as exc:
        raise CorruptStoreError(f"{what} is not in the format of safetensors ({exc})") from exc
    picked: Tensors = {}
    for array in piece.arrays:
        try:
            picked |= checked_tensors(tensors, manifest, array)
        except ValueError as exc:
            raise CorruptStoreError(f"{what} cannot be used: {exc}; copy from another source") from exc
    _refuse_strange_tensors(what, tensors, piece.record, manifest)
    return picked


def _refuse_strange_tensors(what: str, tensors: Tensors, record: ShardRecord, manifest: Manifest) -> None:
    """Refuse what a part would lose without a word, so that its digest would not be the source's."""
    paths = {file.path for file in record.files}
    known = {
        name
        for layer, kind in product(range(manifest.teacher.num_blocks + 1), KINDS)
        if array_file(layer, kind, record.shard) in paths
        for name in tensor_names(manifest, ArrayKey(layer, kind))
    }
    strange = sorted(tensors.keys() - known)
    if strange:
        raise CorruptStoreError(
            f"{what} must have the tensors of its store's arrays and no others; it has {strange[0]!r}; copy "
            "from another source"
        )


def refuse_absurd_sizes(manifest: Manifest, record: ShardRecord) -> None:
    """Refuse a record that states files larger than a shard of this store can be, before they are fetched.

    Raises:
        CorruptStoreError: names the file, its size and the bound.
    """
    for array, file in zip(arrays_of(manifest), record.files, strict=True):
        chunk = most_chunk_bytes(manifest.chunk_shape(array.kind))
        _refuse_larger(file, manifest.chunks_per_shard * chunk)
    _refuse_larger(record.statistics, most_statistics_bytes(manifest))


def _refuse_larger(file: FileRecord, most: int) -> None:
    if file.bytes > most:
        raise CorruptStoreError(
            f"{file.path} can have at most {most} bytes in this store; its record says {file.bytes}; do not "
            "use this store"
        )
