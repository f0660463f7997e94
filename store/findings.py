"""What a verification finds: faults, notes, and the report that holds them.

Values only; `verify.py` makes them and `repair.py` turns them into what is to be done.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from .errors import StorageError, StoreError
from .manifest import Manifest

__all__ = ["READABLE", "Fault", "Findings", "Note", "Remedy", "State", "VerifyReport"]

READABLE: Final = "must be readable and what was written"

Remedy = Literal["extract", "rebuild", "copy", "delete", "finish", "reach"]
"""What mends a fault.

extract: the shard is made again: its images go through the teacher, or its files are copied, once more
rebuild: it is made anew from what the store and the list of its images say, without looking at an image
copy: only a copy of the store has it
delete: it is none of the store's and goes
finish: the store is sound so far and is to be finished
reach: it may be sound; the rights, the disk or the connection are to be mended
"""
State = Literal["complete", "unfinished", "lost records", "unreadable"]


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong."""

    where: str
    """File relative to the store, or `store`."""
    rule: str
    """What must hold in a sound store."""
    detail: str
    """What was found instead, and what to do."""
    remedy: Remedy
    """What kind of thing mends it."""
    shard: int | None = None
    """The shard whose file it is."""

    def __str__(self) -> str:
        return f"{self.where}: {self.rule}; {self.detail}"


@dataclass(frozen=True)
class Note:
    """One thing that is worth knowing and no fault."""

    where: str
    """File or folder relative to the store, or `store`."""
    text: str
    """What is to be said of it."""

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


class Findings:
    """Faults and notes as they are found."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self.notes: list[Note] = []

    def fault(self, where: str, rule: str, detail: str, remedy: Remedy, shard: int | None = None) -> None:
        """Something is wrong."""
        self.faults.append(Fault(where, rule, detail, remedy, shard))

    def unreadable(self, where: str, exc: StoreError, remedy: Remedy, shard: int | None = None) -> None:
        """A file could not be read, or is not what was written; the error says which."""
        self.fault(where, READABLE, str(exc), "reach" if isinstance(exc, StorageError) else remedy, shard)

    def note(self, where: str, text: str) -> None:
        """Something is worth knowing."""
        self.notes.append(Note(where, text))

    @property
    def named(self) -> set[str]:
        """Files that a fault names."""
        return {fault.where for fault in self.faults}


@dataclass(frozen=True)
class VerifyReport:
    """What a verification found."""

    faults: tuple[Fault, ...]
    """Every fault, in the order of the store's tree."""
    finished_shards: int
    """Shards with a valid record."""
    num_shards: int
    """Shards that the store is of; 0 if its manifest cannot be read."""
    complete: bool
    """Whether the store was completed."""
    deep: bool = False
    """Whether every byte was held against its hash."""
    values: bool = False
    """Whether every value was decoded and held against the records."""
    notes: tuple[Note, ...] = ()
    """What is worth knowing and no fault."""
    lost_shards: tuple[int, ...] = ()
    """Shards whose files are there without a record and without an owner: their records were lost."""
    shards_at_work: tuple[int, ...] = ()
    """Shards that have an owner's mark: being written, or left by a killed writer."""
    writers_gone: bool = False
    """Whether nobody writes the store now, so that such marks are leftovers; False where none can tell."""
    manifest: Manifest | None = None
    """None if it cannot be read."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.faults

    @property
    def state(self) -> State:
        """How far the store is; one that lost its records differs from one that was never finished."""
        if self.manifest is None:
            return "unreadable"
        if self.complete:
            return "complete"
        return "lost records" if self.lost_shards else "unfinished"
