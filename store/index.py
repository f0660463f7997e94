"""`index.parquet`: every record and the merged statistics of a complete store in one sealed file.

Records and statistics in, one Parquet file out; and back, parsed only as far as it is asked for.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import cache, cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from .arrow import pa
from .errors import CorruptStoreError
from .files import canonical_json
from .manifest import Manifest
from .models import Model
from .records import ArrayKey, ShardRecord, arrays_of, parse_record
from .remedies import delete_and_again
from .root import Root
from .sealed import SealedTable, open_sealed, write_sealed
from .statistics import ChannelStats, Losses
from .storage import Storage

__all__ = ["INDEX", "Index", "IndexSummary", "read_index", "write_index"]

INDEX: Final = "index.parquet"
_KEY: Final = "activault.index"
_REMEDY: Final = delete_and_again(INDEX)
_GROUP_RECORDS: Final = 64
"""Records that are decoded together: 13 KB each where the images' sizes all differ."""
_KEPT_GROUPS: Final = 8
_STATISTICS: Final = ("layer", "kind", "count", "mean", "m2", "absmax", "sse", "clipped")


@cache
def _schema() -> pa.Schema:
    vector = pa.list_(pa.float64())
    columns: list[tuple[str, pa.DataType]] = [
        ("entry", pa.string()),
        ("shard", pa.int64()),
        ("record", pa.string()),
        ("layer", pa.int32()),
        ("kind", pa.string()),
        ("count", pa.int64()),
        ("mean", vector),
        ("m2", vector),
        ("absmax", vector),
        ("sse", vector),
        ("clipped", pa.list_(pa.int64())),
    ]
    return pa.schema(columns)


class IndexSummary(Model):
    """What a complete store says of itself without any record being parsed."""

    format: int
    manifest: str
    """Manifest hash."""
    samples: str
    """Content hash of the samples."""
    samples_hash: str
    """xxh3 of samples.parquet."""
    num_bad: int
    num_bytes: int
    """Bytes of all array files."""
    digest: str
    arrays_digest: str


class Index:
    """A read index: its bytes, of which records are decoded as they are asked for.

    Of 12,500 shards the bytes are 47 MB, and the records' texts decoded all at once 160 MB.
    """

    def __init__(self, manifest: Manifest, summary: IndexSummary, table: SealedTable) -> None:
        self.manifest = manifest
        self.summary = summary
        self._table = table
        # Without a lock, unlike anything of our own: a child may be forked while a thread reads.
        self._records = lru_cache(_KEPT_GROUPS)(partial(_records_of, table))

    def record_text(self, shard: int) -> bytes:
        """Text of the record file of a shard that is held here.

        Raises:
            CorruptStoreError: it cannot be decoded.
        """
        place = bisect_left(self.manifest.held_shards, shard)
        group = self._table.group_of(place)
        try:
            text = str(self._records(group)[place - self._table.group_starts[group]].as_py())
        except UnicodeDecodeError as exc:
            raise CorruptStoreError(f"{INDEX}: the record of shard {shard} is no text; {_REMEDY}") from exc
        return text.encode()

    def record(self, shard: int) -> ShardRecord:
        """A shard's record; raises as `record_text` and `parse_record` do."""
        return parse_record(self.record_text(shard), self.manifest, shard)

    def check(self) -> None:
        """Decode every record's text and all statistics once, without keeping them.

        Raises:
            CorruptStoreError: something cannot be decoded.
        """
        for shard in self.manifest.held_shards:
            self.record_text(shard)
        self._statistics_table()

    def _statistics_table(self) -> pa.Table:
        start, table = len(self.manifest.held_shards), self._table
        groups = range(table.group_of(start), table.num_groups)
        return table.read(_STATISTICS, groups).slice(start - table.group_starts[groups.start])

    @cached_property
    def statistics(self) -> dict[ArrayKey, ChannelStats]:
        """Merged statistics of every array.

        Raises:
            CorruptStoreError: they cannot be decoded, or are not those of every array.
        """
        rows = self._statistics_table().to_pylist()
        found = {ArrayKey(row["layer"], row["kind"]): _stats(row, self.manifest.dim) for row in rows}
        if list(found) != list(arrays_of(self.manifest)):
            raise CorruptStoreError(f"{INDEX} must have the statistics of every array; {_REMEDY}")
        return found


def _records_of(table: SealedTable, group: int) -> Any:
    """Texts of the records of one row group, and null for each of its other lines."""
    return table.read(["record"], range(group, group + 1))["record"]


def _vector(values: Sequence[float | None] | None, dim: int) -> npt.NDArray[np.float64]:
    if values is None or len(values) != dim or None in values:
        raise CorruptStoreError(f"{INDEX}: statistics must have {dim} channels; {_REMEDY}")
    return np.array(values, np.float64)


def _stats(row: Mapping[str, Any], dim: int) -> ChannelStats:
    mean, m2, absmax = (_vector(row[part], dim) for part in ("mean", "m2", "absmax"))
    losses = None
    if row["sse"] is not None:
        clipped = _vector(row["clipped"], dim)
        if not (np.abs(clipped) < 2**63).all():
            raise CorruptStoreError(f"{INDEX}: clipped must be counts; {_REMEDY}")
        losses = Losses(_vector(row["sse"], dim), clipped.astype(np.int64))
    if row["count"] is None or row["count"] < 0:
        raise CorruptStoreError(f"{INDEX}: a count must be at least 0; it is {row['count']}; {_REMEDY}")
    return ChannelStats(row["count"], mean, m2, absmax, losses)


def write_index(
    path: Path,
    summary: IndexSummary,
    shards: Sequence[int],
    texts: Any,
    statistics: Mapping[ArrayKey, ChannelStats],
) -> None:
    """Write `path/index.parquet`.

    Args:
        path: the store.
        summary: for the footer.
        shards: that the store is of, ascending.
        texts: a column of strings, the text of each shard's record.
        statistics: of every array, merged.
    """
    entries = pa.repeat(pa.scalar("record", pa.string()), len(shards))
    columns: dict[str, Any] = {"entry": entries, "shard": pa.array(shards, pa.int64()), "record": texts}
    for field in _schema():
        columns.setdefault(field.name, pa.array([None] * len(shards), field.type))
    records = pa.table(columns, schema=_schema())
    merged = pa.Table.from_pylist([_row(*entry) for entry in statistics.items()], schema=_schema())
    table = pa.concat_tables([records, merged])
    metadata = {_KEY: canonical_json(summary.model_dump()).decode()}
    write_sealed(path / INDEX, table, metadata, group_rows=_GROUP_RECORDS)


def _row(array: ArrayKey, stats: ChannelStats) -> dict[str, Any]:
    row = {"entry": "statistics", "layer": array.layer, "kind": array.kind, "count": stats.count}
    vectors: dict[str, npt.NDArray[Any]] = {"mean": stats.mean, "m2": stats.m2, "absmax": stats.absmax}
    if stats.losses is not None:
        vectors |= {"sse": stats.losses.sse, "clipped": stats.losses.clipped}
    return row | {name: vector.tolist() for name, vector in vectors.items()}


def read_index(storage: Storage, root: Root) -> Index | None:
    """The index of the store; None if it is not complete. Records and statistics are not decoded for it.

    Raises:
        CorruptStoreError: the index is altered, belongs to another store or is not of all its shards.
    """
    manifest = root.manifest
    try:
        num_entries = len(manifest.held_shards) + len(manifest.layers) * len(manifest.kinds)
        table = open_sealed(storage, INDEX, _schema(), num_entries, manifest.max_table_bytes)
    except FileNotFoundError:
        return None
    try:
        summary = IndexSummary.model_validate_json(table.metadata.get(_KEY, ""))
    except ValidationError as exc:
        raise CorruptStoreError(f"{INDEX} has no summary that can be read; {_REMEDY}") from exc
    claimed = summary.format, summary.manifest, summary.samples
    if claimed != (manifest.format, manifest.sha256(), root.samples):
        raise CorruptStoreError(f"{INDEX} belongs to another store; {_REMEDY}")
    num_held = len(manifest.held_shards)
    shards = table.read(["shard"])["shard"].slice(0, num_held)
    # Not `to_numpy`: where pandas is installed that imports it, half a second of every process that opens.
    found = None if shards.null_count else np.from_dlpack(shards.combine_chunks())
    if found is None or not np.array_equal(found, np.array(manifest.held_shards)):
        raise CorruptStoreError(f"{INDEX} must have a record for each of {num_held} shards; {_REMEDY}")
    return Index(manifest, summary, table)
