"""Verification of `samples.parquet`: the planned keys, labels and sources, and the outcomes of the records.

A place, its root and the records that were found in; findings out.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from .arrow import pa
from .check_records import FoundRecords
from .completion import SAMPLES
from .errors import StoreError
from .findings import Findings
from .index import INDEX
from .manifest import Manifest
from .remedies import AGAIN, delete_and_again
from .root import Root
from .sample_tables import read_samples
from .samples import ABSENT, PENDING, content_hash, with_records
from .storage import Storage

__all__ = ["check_samples"]

_RESAMPLE: Final = delete_and_again(SAMPLES)


def check_samples(storage: Storage, root: Root, found: FoundRecords, findings: Findings) -> None:
    """The sample table against the plan, the index and the outcomes."""
    manifest = root.manifest
    try:
        table, file_hash = read_samples(storage, manifest)
    except FileNotFoundError:
        _fault(findings, "must be there", f"it is missing; {AGAIN}")
        return
    except StoreError as exc:
        findings.unreadable(SAMPLES, exc, "rebuild")
        return
    if not np.array_equal(table["row"].to_numpy(), np.arange(len(table))):
        _fault(findings, f"must have the rows 0 to {manifest.num_rows - 1}", f"it has others; {_RESAMPLE}")
        return
    if content_hash(table) != root.samples:
        _fault(findings, "must have the planned keys, labels and sources", f"they differ; {_RESAMPLE}")
    if found.index is not None and file_hash != found.index.summary.samples_hash:
        _fault(findings, f"must be the file that {INDEX} was written with", f"it is another; {_RESAMPLE}")
    _check_outcomes(table, manifest, found, findings)


def _fault(findings: Findings, rule: str, detail: str) -> None:
    findings.fault(SAMPLES, rule, detail, "rebuild")


def _check_outcomes(table: pa.Table, manifest: Manifest, found: FoundRecords, findings: Findings) -> None:
    """Outcomes are all pending, or those of the records: completion may have been cut short."""
    statuses = set(table["status"].unique().to_pylist())
    if found.index is None:
        if statuses <= {PENDING, ABSENT}:
            return
        findings.note(
            SAMPLES,
            f"has outcomes, which come with completion, and {INDEX} is not there: completion was cut short, "
            f"a shard is being written again, or {INDEX} was lost; {AGAIN}",
        )
    keep = np.zeros(manifest.num_rows, dtype=np.bool_)
    for record in found.ascending:
        keep[slice(*record.rows)] = True
    expected = with_records(table, found.ascending)
    if not table.filter(pa.array(keep)).equals(expected.filter(pa.array(keep))):
        _fault(findings, "must have the outcomes of the records", f"they differ; {_RESAMPLE}")
    elsewhere = ABSENT if manifest.shards is not None else PENDING
    others = set(table.filter(pa.array(~keep))["status"].unique().to_pylist())
    if found.index is not None and not others <= {elsewhere}:
        _fault(findings, f"must say {elsewhere} of rows without a record", f"it does not; {_RESAMPLE}")
