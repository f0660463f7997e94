"""Verification: every fault of a store, not the first.

A path in, a `VerifyReport` out. Plain verification looks at structure, metadata, tables, records, presence
and sizes; `deep` also holds every byte against its hash. An unfinished store that is sound is ok.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from .codecs import array_metadata, group_metadata
from .completion import SAMPLES, merged_statistics, summarise
from .errors import CorruptStoreError, StoreError
from .files import pretty_json, stored_sha256, stored_xxh3
from .index import INDEX, Index, read_index
from .layout import layer_name
from .records import (
    ShardRecord,
    array_folder,
    arrays_of,
    extract_again,
    file_faults,
    read_record,
    record_path,
)
from .root import ROOT, Root, read_root
from .samples import PENDING, SAMPLES_SCHEMA, content_hash, with_outcomes
from .sealed import read_sealed
from .storage import Folder, Storage

__all__ = ["Fault", "VerifyReport", "verify_store"]

Progress = Callable[[int, int], None]
_READABLE: Final = "must be readable and what was written"
_RERUN: Final = "run the same `activault extract` again"
_REINDEX: Final = f"delete {INDEX} and {_RERUN}"
_RESAMPLE: Final = f"delete {SAMPLES} and {_RERUN}"
_COPY: Final = "restore it from a copy of the store"
_MERGED: Final = "must have the merged statistics of all shards"


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong."""

    where: str
    """File relative to the store, or `store`."""
    rule: str
    """What must hold in a sound store."""
    detail: str
    """What was found instead."""

    def __str__(self) -> str:
        return f"{self.where}: {self.rule}; {self.detail}"


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

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.faults


def verify_store(
    path: Path | str,
    deep: bool = False,
    complete: bool = False,
    progress: Progress | None = None,
) -> VerifyReport:
    """Look for every fault of the store at `path`.

    Args:
        path: the store.
        deep: read every byte and hold it against its hash.
        complete: count it as a fault if the store is not complete.
        progress: told `(bytes done, bytes in all)` while bytes are read.

    Raises:
        NotAStoreError: the path is not an activation store of format 1.
    """
    storage = Folder(path)
    try:
        root = read_root(storage)
    except CorruptStoreError as exc:
        return VerifyReport((Fault(ROOT, _READABLE, str(exc)),), 0, 0, complete=False)
    check = _Check(storage, root)
    check.metadata()
    check.records()
    check.index()
    check.samples()
    check.teacher()
    if deep:
        check.bytes(progress)
    if complete and check.complete is None:
        done, num = len(check.found), len(root.manifest.held_shards)
        check.fault(
            "store",
            "must be complete",
            f"{done} of {num} shards are finished and {INDEX} is not written; {_RERUN}",
        )
    return VerifyReport(
        tuple(check.faults), len(check.found), len(root.manifest.held_shards), check.complete is not None
    )


class _Check:
    """One verification under way."""

    def __init__(self, storage: Storage, root: Root) -> None:
        self.storage = storage
        self.root = root
        self.manifest = root.manifest
        self.faults: list[Fault] = []
        self.found: dict[int, ShardRecord] = {}
        self.texts: dict[int, bytes] = {}
        self.complete: Index | None = None

    def fault(self, where: str, rule: str, detail: str) -> None:
        self.faults.append(Fault(where, rule, detail))

    def metadata(self) -> None:
        """Every `zarr.json`, byte by byte."""
        self._expect_bytes(ROOT, self.root.to_bytes())
        for layer in self.manifest.layers:
            self._expect_bytes(f"{layer_name(layer)}/{ROOT}", pretty_json(group_metadata({})))
        for array in arrays_of(self.manifest):
            expected = pretty_json(array_metadata(self.manifest, array.kind))
            self._expect_bytes(f"{array_folder(array.layer, array.kind)}/{ROOT}", expected)

    def _expect_bytes(self, name: str, expected: bytes) -> None:
        try:
            found = self.storage.read(name)
        except FileNotFoundError:
            self.fault(name, "must be there", "it is missing; restore it from a copy")
            return
        except StoreError as exc:
            self.fault(name, _READABLE, str(exc))
            return
        if found != expected:
            self.fault(name, "must be what the manifest implies", "it differs; restore it from a copy")

    def records(self) -> None:
        """Every record, and the presence and size of its files."""
        for shard in self._record_numbers():
            try:
                found = read_record(self.storage, self.manifest, shard)
            except StoreError as exc:
                self.fault(record_path(shard), _READABLE, str(exc))
                continue
            if found is None:
                continue
            self.found[shard], self.texts[shard] = found
            for file, detail in file_faults(self.storage, found[0]):
                self.fault(file, "must have the recorded size", f"it {detail}; {_RERUN}")

    def _record_numbers(self) -> list[int]:
        try:
            files = self.storage.names("shards")
        except StoreError as exc:
            self.fault("shards", "must be there", f"it cannot be listed: {exc}")
            return []
        if files is None:
            return list(self.manifest.held_shards)
        names = [match[1] for file in files if (match := re.fullmatch(r"(\d+)\.json", file))]
        for name in names:
            if f"shards/{name}.json" != record_path(int(name)) or not self.manifest.holds(int(name)):
                self.fault(
                    f"shards/{name}.json",
                    "must be of a shard of this store",
                    "there is no such shard; delete the file",
                )
        return sorted({int(name) for name in names if self.manifest.holds(int(name))})

    def index(self) -> None:
        """The index against the records and what they add up to."""
        try:
            index = read_index(self.storage, self.manifest)
        except StoreError as exc:
            self.fault(INDEX, _READABLE, str(exc))
            return
        if index is None:
            return
        self.complete = index
        for shard in self.manifest.held_shards:
            if self.texts.get(shard) != index.record_text(shard):
                self.fault(
                    record_path(shard),
                    f"must be there and as {INDEX} has it",
                    f"it is missing, altered or another; {_REINDEX}",
                )
        if len(self.found) < len(self.manifest.held_shards):
            return
        records = [self.found[shard] for shard in sorted(self.found)]
        if index.summary != summarise(self.root, records, index.summary.samples_hash):
            self.fault(INDEX, "must sum up the records", f"its summary says something else; {_REINDEX}")
        try:
            if index.statistics != merged_statistics(self.storage, self.manifest, records):
                self.fault(INDEX, _MERGED, f"they differ; {_REINDEX}")
        except StoreError as exc:
            self.fault(INDEX, _MERGED, str(exc))

    def samples(self) -> None:
        """The sample table against the plan and the outcomes."""
        try:
            table, _, found = read_sealed(
                self.storage, SAMPLES, SAMPLES_SCHEMA, self.manifest.num_rows, self.manifest.max_table_bytes
            )
        except FileNotFoundError:
            self.fault(SAMPLES, "must be there", f"it is missing; {_RERUN}")
            return
        except StoreError as exc:
            self.fault(SAMPLES, _READABLE, str(exc))
            return
        rows = table["row"].to_numpy()
        if not np.array_equal(rows, np.arange(len(rows))):
            last = self.manifest.num_rows - 1
            self.fault(SAMPLES, f"must have the rows 0 to {last}", f"it has others; {_RESAMPLE}")
            return
        if content_hash(table) != self.root.samples:
            self.fault(SAMPLES, "must have the planned keys, labels and sources", f"they differ; {_RESAMPLE}")
        if self.complete is not None and found != self.complete.summary.samples_hash:
            self.fault(
                SAMPLES, f"must be the file that {INDEX} was written with", f"it is another; {_RESAMPLE}"
            )
        self._outcomes(table)

    def _outcomes(self, table: pa.Table) -> None:
        """Outcomes are all pending, or those of the records: completion may have been cut short."""
        statuses = set(table["status"].unique().to_pylist())
        if self.complete is None and statuses == {PENDING}:
            return
        ranges = [(range(*record.rows), record.outcomes()) for record in self.found.values()]
        mask = np.zeros(self.manifest.num_rows, dtype=bool)
        for rows, _ in ranges:
            mask[rows.start : rows.stop] = True
        keep = pa.array(mask)
        if not table.filter(keep).equals(with_outcomes(table, ranges).filter(keep)):
            self.fault(SAMPLES, "must have the outcomes of the records", f"they differ; {_RESAMPLE}")

    def teacher(self) -> None:
        """Presence and size of the teacher's files."""
        for name, file in self.root.teacher.items():
            try:
                size = self.storage.size(name)
            except FileNotFoundError:
                self.fault(name, f"must have {file.bytes} bytes", f"it is missing; {_COPY}")
                continue
            if size != file.bytes:
                self.fault(name, f"must have {file.bytes} bytes", f"it has {size}; {_COPY}")

    def bytes(self, progress: Progress | None) -> None:
        """Every byte of arrays, statistics and teacher against its hash."""
        hashed = [
            (file.path, file.bytes, file.hash, stored_xxh3, extract_again(record.shard))
            for record in self.found.values()
            for file in (*record.files, record.statistics)
        ]
        hashed += [
            (name, file.bytes, file.sha256, stored_sha256, _COPY) for name, file in self.root.teacher.items()
        ]
        total = sum(size for _, size, *_ in hashed)
        done = 0

        def count(size: int) -> None:
            nonlocal done
            done += size
            if progress is not None:
                progress(done, total)

        known = {fault.where for fault in self.faults}
        for name, size, expected, hash_of, remedy in hashed:
            if name in known:  # missing or of another size: told already
                count(size)
                continue
            try:
                found = hash_of(self.storage, name, count)
            except (FileNotFoundError, StoreError) as exc:
                self.fault(name, "must be readable", f"it is not ({exc}); {remedy}")
                continue
            if found != expected:
                self.fault(name, "must be what was written", f"its hash is {found}, not {expected}; {remedy}")
