"""Import's checks: rows of a store against rows of the source, by the hashes of what they must read as.

Hashes of the source's rows and a shard's record in; nothing out, or an error that names the row. Done for
every row of a shard before it gets its record, and for a few rows of finished shards when an import is run
again: its fingerprint, names and sizes of the source's files, does not tell whether values were changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from .errors import CorruptStoreError, StoreMismatchError
from .import_blocks import Block, blocks
from .manifest import Manifest
from .reading import ChunkSource, read_rows
from .records import ArrayKey, ShardRecord, arrays_of, read_record
from .reference import Reference, RowFault, Span
from .row_sums import add_row_sums, row_hashes
from .storage import Folder
from .writer import StoreWriter

__all__ = ["SourceRows", "hold_against", "refuse_changed_source"]

_ROWS_BACK: Final = 64
"""Rows of one array read back at a time."""
_NEWEST_AGAIN: Final = 2
"""Row chunks of the source whose files were written last: what changed after its import is among them."""
_SEEDED_AGAIN: Final = 2
"""Row chunks beside them, other ones every time: in the reference's layout one is 1.3 GB of float32."""


class SourceRows:
    """What some rows of the source must read as: a hash a row for every array, and why some are bad."""

    def __init__(self, manifest: Manifest, rows: range) -> None:
        self._manifest = manifest
        self.rows = rows
        self.hashes = {array: [0] * len(rows) for array in arrays_of(manifest)}
        self.faults: dict[int, RowFault] = {}
        """The first of each row that has any."""

    def add(self, span: Span, block: Block) -> None:
        """Take in one block of the rows."""
        for fault in block.faults:
            self.faults.setdefault(fault.row, fault)
        first = span.rows.start - self.rows.start
        for (axis, kind), found in block.hashes.items():
            self.hashes[ArrayKey(self._manifest.layers[axis], kind)][first : first + len(found)] = found

    def expect_fill(self) -> None:
        """A bad row must read as NaN in every array, whatever some layers of the source have for it."""
        for array, expected in self.hashes.items():
            fill = np.full((1, *self._manifest.chunk_shape(array.kind)[1:]), np.nan, np.float32)
            for row in self.faults:
                (expected[row - self.rows.start],) = row_hashes(range(row, row + 1), fill)


def hold_against(writer: StoreWriter, source: SourceRows, record: ShardRecord) -> None:
    """Read a shard back from disk, before it has its record, and compare every row with the source's.

    Raises:
        CorruptStoreError: a row differs; the shard is not published, so that the next run writes it again.
    """
    for row, array in _differing(writer, source, record):
        raise _not_as_written(writer, f"row {row}", array)
    for file, (array, expected) in zip(record.files, source.hashes.items(), strict=True):
        if file.values != add_row_sums(expected):
            raise _not_as_written(writer, f"the row sum of shard {record.shard}", array)


def _differing(
    writer: StoreWriter, source: SourceRows, record: ShardRecord
) -> Iterator[tuple[int, ArrayKey]]:
    """Rows of a shard, of those that the source was read for, that read as something else."""
    manifest = writer.manifest
    rows = range(max(record.rows[0], source.rows.start), min(record.rows[1], source.rows.stop))
    is_ok = np.ones(manifest.num_rows, np.bool_)
    is_ok[[row for row, *_ in record.bad]] = False
    chunks = ChunkSource(Folder(writer.path), manifest, lambda _: record.files, is_ok)
    for array, expected in source.hashes.items():
        for start in range(rows.start, rows.stop, _ROWS_BACK):
            part = range(start, min(start + _ROWS_BACK, rows.stop))
            values = read_rows(chunks, np.array(part), [array.layer], [array.kind], np.dtype(np.float32))
            for row, found in zip(part, row_hashes(part, values), strict=True):
                if found != expected[row - source.rows.start]:
                    yield row, array


def _not_as_written(writer: StoreWriter, what: str, array: ArrayKey) -> CorruptStoreError:
    return CorruptStoreError(
        f"{writer.path}: {what}, layer {array.layer}, {array.kind} does not read back as it was written; "
        "check memory and disk, then run the same import again: it writes the shard anew"
    )


def refuse_changed_source(reference: Reference, writer: StoreWriter, unfinished: Sequence[int]) -> None:
    """Hold a few row chunks of the source against the shards that hold their rows, of those not `unfinished`.

    Raises:
        StoreMismatchError: a row of the source is not what it was when it was imported.
        CorruptStoreError: the store cannot be read.
    """
    manifest, storage = writer.manifest, Folder(writer.path)
    finished = sorted(set(manifest.held_shards) - set(unfinished))
    for rows in _rows_again(reference, manifest, finished):
        source = SourceRows(manifest, rows)
        for span, block in blocks(reference, manifest, rows):
            source.add(span, block)
        source.expect_fill()
        shards = range(rows.start // manifest.shard_rows, (rows.stop - 1) // manifest.shard_rows + 1)
        for shard in sorted(set(shards).intersection(finished)):
            found = read_record(storage, manifest, shard)
            if found is None:  # another process is writing it again
                continue
            for row, array in _differing(writer, source, found[0]):
                raise StoreMismatchError(
                    f"row {row}, layer {array.layer}, {array.kind} of {reference.path} is not what "
                    f"{writer.path} has of it: the source was changed since this import was begun; give the "
                    "source as it was, or import this one into a new store"
                )


def _rows_again(reference: Reference, manifest: Manifest, finished: Sequence[int]) -> Iterator[range]:
    """Rows of the row chunks that are looked at again, of those with rows in finished shards."""
    high = reference.chunks[0]
    for chunk in _chunks_again(reference, manifest, finished):
        yield range(chunk * high, min((chunk + 1) * high, reference.num_rows))


def _chunks_again(reference: Reference, manifest: Manifest, finished: Sequence[int]) -> list[int]:
    if not finished:
        return []
    high, shards = reference.chunks[0], [manifest.shard_range(shard) for shard in finished]
    held = [np.arange(rows.start // high, (rows.stop - 1) // high + 1) for rows in shards]
    candidates: npt.NDArray[np.int64] = np.unique(np.concatenate(held))
    order = np.argsort(reference.files.newest[candidates], kind="stable")
    others, newest = np.split(candidates[order], [max(len(order) - _NEWEST_AGAIN, 0)])
    # As many seeds as there can be states of the store: a run that goes on looks at other rows than the last.
    seeded = np.random.default_rng(len(finished)).permutation(np.sort(others))[:_SEEDED_AGAIN]
    return sorted([*newest.tolist(), *seeded.tolist()])
