"""The sample table of a store that is there: read, held against the plan, and looked at column by column.

A place, its root and what is known of its shards in; the table, which rows can be read, and labels as numbers
out.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from .arrow import pa, pc
from .completion import SAMPLES
from .errors import CorruptStoreError
from .index import Index
from .manifest import Manifest
from .remedies import AGAIN
from .root import Root, refuse_grown
from .samples import ABSENT, OK, PENDING, coded, content_hash, label_ids, samples_schema, with_records
from .sealed import read_sealed
from .shards import ShardIndex
from .storage import Storage

__all__ = ["SampleTable", "read_samples"]

Int64 = npt.NDArray[np.int64]


def read_samples(
    storage: Storage, manifest: Manifest, columns: Collection[str] | None = None
) -> tuple[pa.Table, str]:
    """`samples.parquet` and the xxh3 of the file; whether it is of this store the caller looks at.

    Args:
        storage: where the store lies.
        manifest: of the store.
        columns: those that are wanted, with dictionaries where the file has them; None is all, plain.

    Raises:
        FileNotFoundError: it is not there.
        CorruptStoreError: its seal is broken, or it has other rows or columns than the manifest says.
        StorageError: it cannot be read.
    """
    table, _, found = read_sealed(
        storage,
        SAMPLES,
        samples_schema(),
        manifest.num_rows,
        manifest.max_table_bytes,
        columns=columns,
        keep_dictionaries=columns is not None,
    )
    return table, found


class SampleTable:
    """The sample table of an opened store, with the outcomes of its finished shards; read as it is needed."""

    def __init__(self, storage: Storage, root: Root, index: Index | None, shards: ShardIndex) -> None:
        self._storage = storage
        self._root = root
        self._manifest = root.manifest
        self._index = index
        self._shards = shards
        self.complete = index is not None
        """Whether outcomes stand in the file."""

    @cached_property
    def table(self) -> pa.Table:
        """All columns; see `Store.samples`."""
        table = self._read()
        if self._index is not None:
            return table
        records = (self._shards.record(shard) for shard in self._shards.finished)
        return with_records(table, records, self._manifest.absent_rows)

    def _column(self, name: str) -> Any:
        """One column alone, which is read in a hundredth of the time of all."""
        if self._index is None or "table" in self.__dict__:
            return self.table[name]
        return self._read([name])[name]

    def _read(self, columns: Collection[str] | None = None) -> pa.Table:
        try:
            return self._read_own(columns)
        except CorruptStoreError:
            refuse_grown(self._storage, self._manifest)
            raise

    def _read_own(self, columns: Collection[str] | None) -> pa.Table:
        try:
            table, found = read_samples(self._storage, self._manifest, columns)
        except FileNotFoundError as exc:
            raise CorruptStoreError(f"{SAMPLES} is missing; {AGAIN}") from exc
        if self._index is not None:
            agrees = found == self._index.summary.samples_hash
        else:
            agrees = content_hash(table) == self._root.samples
        if not agrees:
            raise CorruptStoreError(f"{SAMPLES} is of another store; {AGAIN}")
        return table

    @cached_property
    def finished_rows(self) -> Int64:
        """(n,) rows of finished shards, ascending."""
        manifest = self._manifest
        if self.complete and manifest.shards is None:
            return np.arange(manifest.num_rows)
        ranges = [np.array(manifest.shard_range(shard)) for shard in self._shards.finished]
        return np.concatenate(ranges) if ranges else np.empty(0, np.int64)

    @cached_property
    def is_ok(self) -> npt.NDArray[np.bool_]:
        """(num_rows,) whether a row is finished and its image was ok."""
        if self.complete and not self._shards.num_bad and self._manifest.shards is None:
            return np.broadcast_to(np.True_, self._manifest.num_rows)  # takes no memory, whatever the number
        texts, codes = coded(self._column("status"))
        return np.array([*(text == OK for text in texts), False])[codes]

    @cached_property
    def bad_counts(self) -> dict[str, int]:
        """Bad rows of finished shards by status, in the order of its name."""
        if not self._shards.num_bad:
            return {}
        found: Any = pc.value_counts(self._column("status").unify_dictionaries())
        counts = {str(entry["values"]): int(entry["counts"].as_py()) for entry in found}
        return {status: counts[status] for status in sorted(counts.keys() - {OK, PENDING, ABSENT})}

    @cached_property
    def labels(self) -> tuple[tuple[str, ...], Int64]:
        """Labels that are there, sorted, and (num_rows,) places of the rows' labels among them."""
        return label_ids(pa.table({"label": self._column("label")}))
