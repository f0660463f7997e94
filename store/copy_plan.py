"""What a copy is made of: for every shard the sources that give its arrays; nothing is written here.

Opened sources in; the root of the store to be made, its files and their sizes out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from .arrow import pa
from .errors import CorruptStoreError, StoreMismatchError
from .joins import RecordPiece, differing, joined_facts
from .manifest import Manifest
from .presence import file_faults
from .records import ArrayKey, FileRecord, ShardRecord, read_record, record_path
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
    "refuse_another_store",
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

    def sources(self) -> tuple[CopySource, ...]:
        """Every source, once."""
        pieces = (piece for given in set(self.shards.values()) for piece in given)
        found = {id(source): source for source in (self.teacher, *(piece.source for piece in pieces))}
        return tuple(found.values())

    def facts(self, shard: int) -> dict[str, Any]:
        """Fields of a shard's record as the copy will have it, as far as they are known before it is made."""
        return joined_facts([piece.of(shard) for piece in self.shards[shard]], self.manifest, shard)


def record_there(plan: CopyPlan, path: Path, shard: int) -> ShardRecord | None:
    """A shard's valid record at `path`, which is the one that the plan brings; None if it has none.

    One that is not what its checksum says was damaged, and is copied again; one that is, and says something
    else, is another store's.

    Raises:
        StoreMismatchError: the shard there is another store's.
    """
    try:
        found = read_record(Folder(path), plan.manifest, shard)
    except CorruptStoreError:
        return None
    if found is None:
        return None
    refuse_another_store(path, found[0], plan.facts(shard))
    return found[0]


def refuse_another_store(path: Path, there: ShardRecord, facts: Mapping[str, Any]) -> None:
    """Refuse a valid record at `path` that says something else than the copy's: it is another store's.

    Args:
        path: where the copy goes.
        there: the record.
        facts: fields that it must have.

    Raises:
        StoreMismatchError: names the first difference.
    """
    for field_, brought in facts.items():
        found = getattr(there, field_)
        if found != brought:
            raise StoreMismatchError(
                f"{path} holds {_spoken_difference(there.shard, field_, found, brought)} in the source; "
                "choose another path"
            )


def _spoken_difference(shard: int, name: str, there: Any, brought: Any) -> str:
    """`other values of the same plan: ... has the hash ... there and ...`."""
    if name == "files":
        one, other = next(pair for pair in zip(there, brought, strict=True) if pair[0] != pair[1])
        return f"other values of the same plan: {one.path} has the hash {one.hash} there and {other.hash}"
    if isinstance(there, FileRecord):
        there, brought = there.hash, brought.hash
    elif isinstance(there, tuple):
        there, brought = differing(there, brought), differing(brought, there)
    return (
        f"another store of the same plan and values: {name} of {record_path(shard)} is {there} there and "
        f"{brought}"
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
