"""Verification of records: each record against its shard's files, all of them against the index.

A place and its root in; findings and `FoundRecords` out. Where an index is there, it has every record a
second time: a record file that is missing or altered is then known all the same, and its shard's files are
looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from .completion import merged_statistics, summarise
from .errors import CorruptStoreError, StorageError, StoreError
from .findings import READABLE, Findings
from .index import INDEX, Index, read_index
from .manifest import Manifest
from .presence import shards_named, size_fault
from .records import (
    MOST_ASKED,
    SHARD_DIGITS,
    FileRecord,
    ShardRecord,
    array_file,
    array_folder,
    arrays_of,
    mark_path,
    read_record,
    record_path,
    statistics_path,
)
from .remedies import AGAIN, delete_and_again
from .root import Root
from .statistics import read_statistics
from .storage import Storage, gather

__all__ = ["FoundRecords", "check_records"]

_REINDEX: Final = delete_and_again(INDEX)
_RESTORE: Final = f"restore it from {INDEX} by `activault extract ... --repair`, without an image, or {AGAIN}"


@dataclass
class FoundRecords:
    """What is known of a store's shards."""

    index: Index | None = None
    """None if the store is not complete, or its index is not to be believed."""
    records: dict[int, ShardRecord] = field(default_factory=dict)
    """By shard, from its file or from the index."""
    num_records: int = 0
    """Records whose file is there and valid."""
    lost: list[int] = field(default_factory=list)
    """Shards with files, without a record and without an owner's mark."""
    at_work: list[int] = field(default_factory=list)
    """Shards with an owner's mark."""

    @property
    def ascending(self) -> list[ShardRecord]:
        """All records, by shard."""
        return [self.records[shard] for shard in sorted(self.records)]


def check_records(storage: Storage, root: Root, findings: Findings) -> FoundRecords:
    """Every record, the presence and size of its files, records that were lost, and the index."""
    check = _Records(storage, root, findings)
    check.read_index()
    check.read_records()
    check.look_for_lost()
    check.sizes()
    check.sums()
    return check.found


class _Records:
    def __init__(self, storage: Storage, root: Root, findings: Findings) -> None:
        self.storage = storage
        self.root = root
        self.manifest = root.manifest
        self.findings = findings
        self.found = FoundRecords()
        self.listed = self._list("shards")

    def _list(self, folder: str) -> set[str] | None:
        try:
            names = self.storage.names(folder)
        except StoreError:
            return set()  # told as a fault where strangers are looked for
        return None if names is None else set(names)

    def read_index(self) -> None:
        """The index, if it can be believed."""
        try:
            index = read_index(self.storage, self.root)
            if index is not None:
                index.check()
            self.found.index = index
        except StoreError as exc:
            self.findings.unreadable(INDEX, exc, "rebuild")

    def _asked(self) -> Iterable[int]:
        """Shards whose record is asked for: all where they must be there, else those that are listed."""
        if self.found.index is not None:
            return self.manifest.held_shards
        if self.listed is not None:
            return sorted(shards_named(self.listed, record_path, self.manifest))
        if len(self.manifest.held_shards) <= MOST_ASKED:
            return self.manifest.held_shards
        self.findings.fault(
            "store",
            f"must be complete where nothing can be listed, or have at most {MOST_ASKED} shards",
            f"it has {len(self.manifest.held_shards)}; verify it where it can be listed",
            "reach",
        )
        return ()

    def read_records(self) -> None:
        """Every record's file, against what it must say and against the index."""

        def read(shard: int) -> tuple[ShardRecord, bytes] | StoreError | None:
            try:
                return read_record(self.storage, self.manifest, shard)
            except StoreError as exc:
                return exc

        index = self.found.index
        asked = list(self._asked())
        for shard, found in zip(asked, gather(self.storage, read, asked), strict=True):
            if isinstance(found, tuple):
                self.found.records[shard], text = found
                self.found.num_records += 1
                if index is not None and index.record_text(shard) != text:
                    self._fault_index(f"must have the record of shard {shard}", "it has another")
                continue
            known = index is not None and self._from_index(index, shard)
            if isinstance(found, StorageError):
                self.findings.unreadable(record_path(shard), found, "reach", shard)
            elif found is not None:
                detail = f"{found}" + (f", or restore it from {INDEX} by `--repair`" if known else "")
                self.findings.fault(
                    record_path(shard),
                    READABLE,
                    detail,
                    "rebuild" if known else "extract",
                    shard,
                )
            elif index is not None:
                self.findings.fault(
                    record_path(shard),
                    f"must be there, as {INDEX} is",
                    f"it is missing; {_RESTORE}",
                    "rebuild" if known else "extract",
                    shard,
                )

    def _from_index(self, index: Index, shard: int) -> bool:
        try:
            self.found.records[shard] = index.record(shard)
        except CorruptStoreError as exc:
            self._fault_index(f"must have the record of shard {shard}", str(exc))
            return False
        return True

    def _fault_index(self, rule: str, detail: str) -> None:
        self.findings.fault(INDEX, rule, f"{detail}; {_REINDEX}", "rebuild")

    def look_for_lost(self) -> None:
        """Files of shards that have no record: an owner's, or what is left where a record was lost."""
        for shard in self._without_record():
            there = next((path for path in _files(self.manifest, shard) if self._is_there(path)), None)
            if self._is_there(mark_path(shard)):
                self.found.at_work.append(shard)
            # Asked for again: its owner may have finished it meanwhile, which turns the mark into the record.
            elif there is not None and not self._is_there(record_path(shard)):
                self.found.lost.append(shard)
                rows = self.manifest.shard_range(shard)
                self.findings.fault(
                    record_path(shard),
                    "must be there where files of its shard are, unless they have an owner",
                    f"{there} is there without a record: the record of rows {rows.start} to {rows.stop - 1} "
                    f"was lost; {AGAIN}",
                    "extract",
                    shard,
                )

    def _without_record(self) -> list[int]:
        known = set(self.found.records) | {fault.shard for fault in self.findings.faults}
        if self.listed is None:
            if len(self.manifest.held_shards) > MOST_ASKED:
                return []
            return [shard for shard in self.manifest.held_shards if shard not in known]
        begun = shards_named(self.listed, statistics_path, self.manifest)
        begun |= shards_named(self.listed, mark_path, self.manifest)
        for array in arrays_of(self.manifest):
            names = self._list(f"{array_folder(array.layer, array.kind)}/c") or set()
            begun |= {
                int(name)
                for name in names
                if re.fullmatch(rf"\d{{1,{SHARD_DIGITS}}}", name) and self.manifest.holds(int(name))
            }
        return sorted(begun - known)

    def _is_there(self, path: str) -> bool:
        try:
            self.storage.size(path)
        except FileNotFoundError:
            return False
        except StoreError as exc:
            self.findings.unreadable(path, exc, "reach")
        return True

    def sizes(self) -> None:
        """Presence and size of every file of every record."""

        def look(file: FileRecord) -> str | StoreError | None:
            try:
                return size_fault(self.storage, file)
            except StoreError as exc:
                return exc

        def wrong(record: ShardRecord) -> list[tuple[FileRecord, str | StoreError]]:
            found = ((file, look(file)) for file in (*record.files, record.statistics))
            return [(file, what) for file, what in found if what is not None]

        records = self.found.ascending
        for record, faults in zip(records, gather(self.storage, wrong, records), strict=True):
            for file, what in faults:
                if isinstance(what, StoreError):
                    self.findings.unreadable(file.path, what, "extract", record.shard)
                    continue
                self.findings.fault(
                    file.path, "must have the recorded size", f"it {what}; {AGAIN}", "extract", record.shard
                )

    def sums(self) -> None:
        """The index against what the records add up to."""
        index, records = self.found.index, self.found.ascending
        if index is None or len(records) < len(self.manifest.held_shards):
            return
        if index.summary != summarise(self.root, records, index.summary.samples_hash):
            self._fault_index("must sum up the records", "its summary says something else")
        try:
            merged = merged_statistics(self.storage, self.manifest, records)
        except (StoreError, FileNotFoundError):
            self._name_statistics(records)
            return
        try:
            agrees = index.statistics == merged
        except CorruptStoreError as exc:
            self._fault_index("must have the merged statistics of all shards", str(exc))
            return
        if not agrees:
            self._fault_index("must have the merged statistics of all shards", "they differ")

    def _name_statistics(self, records: list[ShardRecord]) -> None:
        """Every statistics file that cannot be used, unless it is named already."""
        named = self.findings.named
        for record in records:
            path = record.statistics.path
            if path in named:
                continue
            try:
                read_statistics(self.storage, self.manifest, record)
            except StoreError as exc:
                self.findings.unreadable(path, exc, "extract", record.shard)


def _files(manifest: Manifest, shard: int) -> Iterable[str]:
    yield statistics_path(shard)
    for array in arrays_of(manifest):
        yield array_file(array.layer, array.kind, shard)
