"""The record and the statistics file of a shard in a part or a merger of stores, from those of its sources.

Nothing is computed anew: files and tensors are picked out of the sources', so that the parts of a store
joined again give its very bytes. A part is a join of one piece.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from safetensors import SafetensorError
from safetensors.numpy import load, save

from .errors import CorruptStoreError, StoreMismatchError
from .files import xxh3
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
from .statistics import Tensors, checked_tensors

__all__ = ["RecordPiece", "join_record", "join_statistics", "picked", "picked_files", "refuse_absurd_sizes"]


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
    first = pieces[0]
    shard = first.record.shard
    for other in pieces[1:]:
        for field in ("sizes", "bad"):
            one, two = getattr(first.record, field), getattr(other.record, field)
            if one != two:
                raise StoreMismatchError(
                    f"{record_path(shard)}: {field} differ: {_differing(one, two)} in {first.where} and "
                    f"{_differing(two, one)} in {other.where}; merge copies of one store"
                )
        if len({first.record.images, other.record.images} - {None}) > 1:
            raise StoreMismatchError(
                f"{record_path(shard)}: the contents of the images differ between {first.where} and "
                f"{other.where} (hashes {first.record.images} and {other.record.images}); merge stores "
                "of the same images"
            )
    known = (piece.record.images for piece in pieces)
    body = first.record.model_dump(mode="json", exclude={"checksum"}) | {
        "images": next((images for images in known if images is not None), None),
        "files": [file.model_dump() for file in picked_files(pieces, manifest, shard)],
        "statistics": FileRecord(
            path=statistics_path(shard), bytes=len(statistics), hash=xxh3(statistics)
        ).model_dump(),
    }
    return close_record(body, manifest, shard)


def _differing(entries: Sequence[Any], others: Sequence[Any]) -> str:
    place = next((n for n, pair in enumerate(zip(entries, others, strict=False)) if pair[0] != pair[1]), None)
    return repr(entries[place]) if place is not None else f"{len(entries)} entries"


def join_statistics(pieces: Sequence[tuple[RecordPiece, bytes]], manifest: Manifest) -> bytes:
    """A shard's statistics file: the tensors of every piece's arrays, in safetensors' own order.

    Raises:
        CorruptStoreError: a file lacks the statistics of an array, or has them in another shape.
    """
    joined: Tensors = {}
    for piece, data in pieces:
        joined |= _tensors(piece, data, manifest)
    return save(joined)


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
    return picked


def refuse_absurd_sizes(manifest: Manifest, record: ShardRecord) -> None:
    """Refuse a record that states files larger than a shard of this store can be, before they are fetched.

    Raises:
        CorruptStoreError: names the file, its size and the bound.
    """
    for array, file in zip(arrays_of(manifest), record.files, strict=True):
        _, tokens, dim = manifest.chunk_shape(array.kind)
        # Blosc adds 16 bytes to what it cannot compress; the rest is checksum, index entry and room to spare.
        chunk = manifest.chunk_rows * tokens * dim * 4 + 4096
        _refuse_larger(file, manifest.chunks_per_shard * chunk)
    _refuse_larger(record.statistics, 4096 + len(record.files) * (64 * manifest.dim + 4096))


def _refuse_larger(file: FileRecord, most: int) -> None:
    if file.bytes > most:
        raise CorruptStoreError(
            f"{file.path} can have at most {most} bytes in this store; its record says {file.bytes}; do not "
            "use this store"
        )
