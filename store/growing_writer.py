"""A writer of the new part of a store that is being grown, which keeps the old store's rows as they are.

A `StoreWriter` of the new part and the opened old store in; a `ShardWriter` out. Where rows come to a shard
that was not full, the old rows' stored values are put in front of the new ones as they stand, and what was
written is held against the old record. Where layers or kinds come, the images must be those of the old rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from .arrow import pa
from .buffer import ShardBuffer
from .codecs import held_type, to_float32
from .errors import CorruptStoreError, StoreMismatchError
from .manifest import Manifest
from .quantise import Steps
from .reader import Store
from .reading import read_jobs
from .records import ArrayKey, ShardRecord, arrays_of, images_hash
from .row_sums import add_row_sums, row_sum
from .samples import OK, Outcome
from .sources import open_source
from .statistics import read_statistics
from .writer import StoreWriter

__all__ = ["GrowingWriter", "old_outcomes"]

_GROUP_ROWS: Final = 16
"""Rows that are hashed at a time."""


def old_outcomes(record: ShardRecord) -> list[Outcome]:
    """What became of each row's image of a shard, by its record; contents are not known one by one."""
    sizes = [(width, height) for width, height, times in record.sizes for _ in range(times)]
    bad = {row: (status, reason) for row, status, reason in record.bad}
    return [
        Outcome(status=status, reason=reason, width=width, height=height)
        for row, (width, height) in enumerate(sizes, record.rows[0])
        for status, reason in [bad.get(row, (OK, None))]
    ]


class GrowingWriter:
    """Writes the new part; as `StoreWriter`, but for `publish`."""

    def __init__(self, writer: StoreWriter, old: Store) -> None:
        self._writer = writer
        self._old = old
        self._record = open_source(old.storage).record
        self.adds_rows = writer.manifest.num_rows > old.num_rows
        """Whether rows come, or layers and kinds."""

    @property
    def manifest(self) -> Manifest:
        """Of the new part."""
        return self._writer.manifest

    @property
    def samples(self) -> pa.Table:
        """The table as planned."""
        return self._writer.samples

    @property
    def unfinished(self) -> list[int]:
        """See `StoreWriter`."""
        return self._writer.unfinished

    def is_finished(self, shard: int) -> bool:
        """See `StoreWriter`."""
        return self._writer.is_finished(shard)

    def rounds(self, shards: Sequence[int]) -> Iterator[Sequence[int]]:
        """See `StoreWriter`."""
        return self._writer.rounds(shards)

    def claim(self, shard: int) -> bool:
        """See `StoreWriter`."""
        return self._writer.claim(shard)

    def buffer(self, shard: int) -> ShardBuffer:
        """See `StoreWriter`."""
        return self._writer.buffer(shard)

    def complete(self) -> None:
        """See `StoreWriter`."""
        self._writer.complete()

    def close(self) -> None:
        """See `StoreWriter`."""
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def publish(
        self, buffer: ShardBuffer, outcomes: Sequence[Outcome], threads: int | None = None
    ) -> ShardRecord:
        """As `StoreWriter.publish`, with the old rows in their places, or held against the old rows.

        Raises:
            StoreMismatchError: an image is not that of the old row; row and key are named where sizes or
                outcomes differ, else the shard.
            CorruptStoreError: the old rows' values are not what their record says; nothing is published.
        """
        if not self.adds_rows:
            old = self._record(buffer.shard)
            told = self._same_outcomes(old, outcomes)
            return self._writer.publish(
                buffer, told, threads, check=lambda record: self._refuse_other_images(old, record.images)
            )
        if buffer.rows.start >= self._old.num_rows:
            return self._writer.publish(buffer, outcomes, threads)
        old = self._record(buffer.shard)
        self._put_old_rows(old, buffer)
        kept = _with_contents(old, outcomes)
        self._refuse_other_images(old, images_hash(kept))
        told = [*kept, *outcomes[len(kept) :]]
        return self._writer.publish(buffer, told, threads, check=lambda _: self._refuse_changed(old, buffer))

    def _put_old_rows(self, old: ShardRecord, buffer: ShardBuffer) -> None:
        """The old rows as they are stored, and what quantising them cost."""
        count = old.rows[1] - old.rows[0]
        statistics = read_statistics(self._old.storage, self._old.manifest, old)
        bad = {row for row, *_ in old.bad}
        first_ok = next((row - old.rows[0] for row in range(*old.rows) if row not in bad), None)
        for array in arrays_of(self.manifest):
            buffer.held(array)[:count] = _stored_rows(self._old, array, range(*old.rows))
            losses = statistics[array].losses
            if losses is not None and first_ok is not None:
                buffer.count_losses(array, first_ok, losses.sse, losses.clipped)

    def _refuse_changed(self, old: ShardRecord, buffer: ShardBuffer) -> None:
        """Hold what is about to be published of the old rows against the row sums of their own record."""
        count = old.rows[1] - old.rows[0]
        for array, file in zip(arrays_of(self.manifest), old.files, strict=True):
            found = _row_sum(self.manifest, array, range(*old.rows), buffer.held(array)[:count])
            if found != file.values:
                raise CorruptStoreError(
                    f"{file.path}: rows {old.rows[0]} to {old.rows[1] - 1} are not what their record says "
                    f"(row sum {found}, recorded {file.values}); restore the store from a copy, then run the "
                    "same command again"
                )

    def _same_outcomes(self, old: ShardRecord, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """The outcomes with the old reasons, if they are those of the same images."""
        told = []
        for row, was, found in zip(range(*old.rows), old_outcomes(old), outcomes, strict=True):
            for what in ("status", "width", "height"):
                if getattr(was, what) != getattr(found, what):
                    reason = f" ({found.reason})" if found.reason else ""
                    raise StoreMismatchError(
                        f"more layers are of the same images; the {what} of row {row} "
                        f"({self.samples['key'][row].as_py()}, shard {old.shard}) is {getattr(was, what)!r} "
                        f"in {self._old.path} and {getattr(found, what)!r} now{reason}; bring the image "
                        "back as it was, then run the same command again"
                    )
            told.append(
                Outcome(
                    status=was.status,
                    reason=was.reason,
                    width=was.width,
                    height=was.height,
                    content=found.content,
                )
            )
        return told

    def _refuse_other_images(self, old: ShardRecord, images: str | None) -> None:
        if None in (old.images, images) or old.images == images:
            return
        first, last = old.rows[0], old.rows[1] - 1
        keys = self.samples["key"]
        raise StoreMismatchError(
            f"what comes to a store leaves its images as they were; the bytes of one or more of rows {first} "
            f"to {last} (shard {old.shard}: {keys[first].as_py()} to {keys[last].as_py()}) are not those "
            f"that {self._old.path} was made from (hash {old.images} there, {images} now); bring the images "
            "back as they were, then run the same command again"
        )


def _with_contents(old: ShardRecord, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The old rows' outcomes, with the contents that are known now."""
    return [
        Outcome(
            status=was.status, reason=was.reason, width=was.width, height=was.height, content=found.content
        )
        for was, found in zip(old_outcomes(old), outcomes, strict=False)
    ]


def _stored_rows(store: Store, array: ArrayKey, rows: range) -> npt.NDArray[Any]:
    """(rows, tokens, dim) as a shard buffer holds them: bit patterns, floats or codes."""
    manifest = store.manifest
    shape = (len(rows), 1, *manifest.array_shape(array.kind)[1:])
    out = np.empty(shape, held_type(manifest, array.kind))
    for job in read_jobs(store.chunks, np.asarray(rows, np.int64), [array.layer], {array.kind: out}):
        job()
    return out[:, 0]


def _row_sum(manifest: Manifest, array: ArrayKey, rows: range, held: npt.NDArray[Any]) -> str:
    """Row sum of held values, decoded."""
    quantisation = manifest.quantisation_of(array.layer, array.kind)
    steps = None if quantisation is None else Steps.of(quantisation)
    sums = []
    for start in range(0, len(held), _GROUP_ROWS):
        block = held[start : start + _GROUP_ROWS]
        values = to_float32(block) if steps is None else to_float32(block, steps.scale, steps.offset)
        sums.append(row_sum(rows[start : start + len(block)], np.ascontiguousarray(values)))
    return add_row_sums(sums)
