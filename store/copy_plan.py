"""What a copy is made of: for every shard the sources that give its arrays; nothing is written here.

Opened sources in; the root of the store to be made, its files and their sizes out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa

from .errors import CorruptStoreError, StoreMismatchError
from .joins import RecordPiece, picked_files
from .manifest import Manifest
from .records import ArrayFile, ArrayKey, is_finished, read_record
from .root import Root
from .sources import CopySource
from .storage import Folder

__all__ = ["REMEDY", "CopyPlan", "Piece", "kept_shards"]

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


def kept_shards(plan: CopyPlan, path: Path) -> dict[int, int]:
    """Finished shards of the plan that are at `path` already, and their bytes.

    Raises:
        StoreMismatchError: a shard there holds other values than the sources'.
    """
    here, kept = Folder(path), dict[int, int]()
    for shard in plan.shards:
        try:
            found = read_record(here, plan.manifest, shard)
        except CorruptStoreError:
            continue  # it is copied again
        if found is None:
            continue
        for ours, theirs in zip(found[0].files, plan.files(shard), strict=True):
            if ours != theirs:
                raise StoreMismatchError(
                    f"{path} holds other values of the same plan: {ours.path} has the hash {ours.hash} there "
                    f"and {theirs.hash} in the source; {REMEDY}"
                )
        if is_finished(here, plan.manifest, shard):
            kept[shard] = found[0].num_bytes + found[0].statistics.bytes
    return kept
