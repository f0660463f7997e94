"""Verification: every fault of a store, not the first.

A path or URL in, a `VerifyReport` out. Plain verification looks at structure, metadata, tables, records,
presence and sizes; `deep` also holds every byte against its hash, and statistics against what can be;
`values` also decodes every chunk and holds the records' claims against it. An unfinished store that is sound
is ok. The looking is done in the files that begin with `check_`.
"""

from __future__ import annotations

from pathlib import Path

from .check_bytes import check_bytes
from .check_precision import check_precision
from .check_records import FoundRecords, check_records
from .check_samples import check_samples
from .check_statistics import check_statistics
from .check_structure import check_metadata, check_strangers, check_teacher
from .check_values import check_values, value_bytes
from .errors import CorruptStoreError, StoreError
from .findings import READABLE, Fault, Findings, VerifyReport
from .growing import GROWING, note_of_growth, only_by_copy
from .index import INDEX
from .locks import nobody_at_work
from .places import open_storage
from .remedies import AGAIN, COPY
from .reporting import Progress
from .root import ROOT, Root, read_root
from .storage import Storage

__all__ = ["Fault", "VerifyReport", "verify_store"]


def verify_store(
    path: Path | str,
    deep: bool = False,
    complete: bool = False,
    progress: Progress | None = None,
    *,
    values: bool = False,
) -> VerifyReport:
    """Look for every fault of the store at `path`.

    Args:
        path: the store: a path, or a URL as `open_store` takes it.
        deep: read every byte and hold it against its hash.
        complete: count it as a fault if the store is not complete.
        progress: told `(bytes done, bytes in all)` while bytes are read.
        values: decode every value, and hold against it what records and statistics say of it; implies `deep`.
            Arrays are then read twice: a store far away is better copied first.

    Raises:
        NotAStoreError: the path is not an activation store of format 1.
        ConfigError: the URL is of another scheme or names no place.
        AccessDeniedError: it may not be read.
        UnreachableError: the place does not answer.
        StorageError: the store's `zarr.json` cannot be read for another reason.
    """
    storage = open_storage(path)
    deep = deep or values
    try:
        root = read_root(storage)
    except CorruptStoreError as exc:
        detail = str(exc) if COPY in str(exc) else f"{exc}; {COPY}"
        return VerifyReport(
            (Fault(ROOT, READABLE, detail, "copy"),), 0, 0, complete=False, deep=deep, values=values
        )
    findings = Findings()
    found = _look(storage, root, findings)
    if deep:
        _look_deep(storage, root, found, findings, progress, values=values)
    if complete and found.index is None:
        _say_unfinished(root, found, findings)
    return VerifyReport(
        faults=tuple(only_by_copy(root.manifest, findings.faults)),
        finished_shards=found.num_records,
        num_shards=len(root.manifest.held_shards),
        complete=found.index is not None,
        deep=deep,
        values=values,
        notes=tuple(findings.notes),
        lost_shards=tuple(found.lost),
        shards_at_work=tuple(found.at_work),
        writers_gone=bool(found.at_work) and storage.folder is not None and nobody_at_work(storage.folder),
        manifest=root.manifest,
    )


def _look(storage: Storage, root: Root, findings: Findings) -> FoundRecords:
    check_metadata(storage, root, findings)
    found = check_records(storage, root, findings)
    check_precision(storage, root, found, findings)
    check_samples(storage, root, found, findings)
    check_teacher(storage, root, findings)
    check_strangers(storage, root, findings)
    _look_at_growth(storage, findings)
    return found


def _look_at_growth(storage: Storage, findings: Findings) -> None:
    """What is being added to the store is no part of it yet; how far that is, is worth a note."""
    try:
        note = note_of_growth(storage)
    except StoreError as exc:
        note = (GROWING, f"it cannot be told what is being added ({exc}); remove {GROWING}, and add it again")
    if note is not None:
        findings.note(*note)


def _look_deep(
    storage: Storage,
    root: Root,
    found: FoundRecords,
    findings: Findings,
    progress: Progress | None,
    *,
    values: bool,
) -> None:
    records = found.ascending
    more = value_bytes(records) if values else 0
    hashed = 0

    def hashing(done: int, total: int) -> None:
        nonlocal hashed
        hashed = total
        if progress is not None:
            progress(done, total + more)

    def decoding(done: int, total: int) -> None:
        if progress is not None:
            progress(hashed + done, hashed + total)

    check_bytes(storage, root, records, findings, hashing)
    check_statistics(storage, root.manifest, records, findings)
    if values:
        check_values(storage, root.manifest, records, findings, decoding)


def _say_unfinished(root: Root, found: FoundRecords, findings: Findings) -> None:
    num_shards = len(root.manifest.held_shards)
    findings.fault(
        "store",
        "must be complete",
        f"{found.num_records} of {num_shards} shards are finished and {INDEX} is not written; {AGAIN}",
        "finish",
    )
