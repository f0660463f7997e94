"""What a copy is made of: for every shard the sources that give its arrays; nothing is written here.

Opened sources in; the root of the store to be made, its files and their sizes out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from .arrow import pa
from .errors import CorruptStoreError, StoreMismatchError
from .joins import RecordPiece, picked_files
from .manifest import Manifest
from .presence import file_faults
from .records import ArrayFile, ArrayKey, ShardRecord, read_record
from .root import Root
from .sources import CopySource
from .storage import Folder

__all__ = [
    "REMEDY",
    "CopyPlan",
    "Piece",
    "kept_bytes",
    "kept_shards",
    "record_there",
    "refuse_other_values",
]

REMEDY: Final = "choose another path; parts of one store in two folders are joined by `activault merge`"
"""What to do where the copy cannot go."""


@dataclass(frozen=True)
class Piece:
    """What one source gives to a shard."""

    source: CopySource
    arrays: tuple[ArrayKey, ...]

    def of(self, shard: int) -> RecordPiece:
        """With the source's record."""
        return RecordPiece(self.source.where, self.source.record(shard), self.arrays)


@dataclass(frozen=True)
class CopyPlan:
    """What is to be made, and of what."""

    root: Root
    """Of the store to be made."""
    samples: Callable[[], pa.Table]
    """Reads its planned table."""
    teacher: CopySource
    """Gives the teacher's files."""
    shards: Mapping[int, tuple[Piece, ...]] = field(repr=False)
    """Pieces of every shard to be copied, ascending; shards that are held but not here stay unfinished."""
    num_files: int
    """Array, statistics and teacher files."""
    num_bytes: int
    """Bytes of them."""

    @property
    def manifest(self) -> Manifest:
        """Of the store to be made."""
        return self.root.manifest

    @property
    def complete(self) -> bool:
        """Whether the store will be complete."""
        return len(self.shards) == len(self.manifest.held_shards)

    def files(self, shard: int) -> tuple[ArrayFile, ...]:
        """Array files of a shard, as its record will have them."""
        return picked_files([piece.of(shard) for piece in self.shards[shard]], self.manifest, shard)


def record_there(plan: CopyPlan, path: Path, shard: int) -> ShardRecord | None:
    """A shard's valid record at `path`, which names the very files that the plan brings; None if it has none.

    Raises:
        StoreMismatchError: the shard there holds other values than the sources'.
    """
    try:
        found = read_record(Folder(path), plan.manifest, shard)
    except CorruptStoreError:
        return None  # it is copied again
    if found is None:
        return None
    refuse_other_values(plan, path, found[0])
    return found[0]


def refuse_other_values(plan: CopyPlan, path: Path, record: ShardRecord) -> None:
    """Refuse a record at `path` of other files than the plan brings.

    Raises:
        StoreMismatchError: names the first.
    """
    for ours, theirs in zip(record.files, plan.files(record.shard), strict=True):
        if ours != theirs:
            raise StoreMismatchError(
                f"{path} holds other values of the same plan: {ours.path} has the hash {ours.hash} there "
                f"and {theirs.hash} in the source; {REMEDY}"
            )


def kept_bytes(plan: CopyPlan, path: Path, shard: int) -> int | None:
    """Bytes of a shard of the plan if it is finished at `path`; raises as `record_there`."""
    record = record_there(plan, path, shard)
    if record is None or next(file_faults(Folder(path), record), None) is not None:
        return None
    return record.num_bytes + record.statistics.bytes


def kept_shards(plan: CopyPlan, path: Path) -> dict[int, int]:
    """Finished shards of the plan that are at `path` already, and their bytes; raises as `record_there`."""
    found = ((shard, kept_bytes(plan, path, shard)) for shard in plan.shards)
    return {shard: size for shard, size in found if size is not None}
