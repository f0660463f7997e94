"""The new part of a store that grows: planned by whoever comes first, computed by all who come.

The path of the store, a manifest and a table in; the new part, opened, and then its shards out.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pyarrow as pa

from activault.store import Manifest, Store, StoreMismatchError, create_store
from activault.store.files import disk_error
from activault.store.growing import GROWING, growing_root, way_out
from activault.store.growing_join import refuse_obstacles
from activault.store.growing_plan import refuse_other_store
from activault.store.growing_writer import GrowingWriter
from activault.store.locks import lock_shared
from activault.store.root import read_root
from activault.store.sources import CopySource, open_source
from activault.store.storage import Folder

from .backbone import Backbone
from .capture import Decode, Decoded, Progress, StallTimes, capture
from .options import ExtractOptions
from .workers import own_first

__all__ = ["another_growth", "compute_part", "create_part", "planned_part", "working_in"]


@contextlib.contextmanager
def working_in(path: Path) -> Iterator[None]:
    """Hold the writers' lock of the store, so that nobody joins anything to it meanwhile.

    Raises:
        StoreError: nothing may be written there, or its file system has no locks.
    """
    try:
        handle = lock_shared(path)
    except OSError as exc:
        raise disk_error(exc, path, 0) from exc
    try:
        yield
    finally:
        os.close(handle)


def create_part(path: Path, old: Manifest, part: Manifest, samples: pa.Table) -> None:
    """Plan the new part, unless another process has done so meanwhile: then its plan is the one to follow.

    Raises:
        StoreError: it could not be joined to the store.
    """
    refuse_obstacles(path, old, part)
    try:
        create_store(path / GROWING, part, samples, {}).close()
    except StoreMismatchError:
        if growing_root(path) is None:
            raise


def planned_part(path: Path, there: Store) -> CopySource | None:
    """What is planned to come to the store, if anything is."""
    if growing_root(path) is None:
        return None
    part = open_source(path / GROWING)
    refuse_other_store(read_root(Folder(path)), part.root, part.samples, there.path)
    return part


def compute_part(
    path: Path,
    there: Store,
    part: CopySource,
    backbone: Backbone,
    decode: Decode,
    options: ExtractOptions,
    progress: Progress | None,
) -> tuple[StallTimes, int]:
    """Compute the new part's unfinished shards; returns where the time went and how many rows that were."""
    made = create_store(path / GROWING, part.manifest, part.samples, {}, lease=options.lease)
    computed = count()
    with GrowingWriter(made, there) as writer:
        first = there.num_rows if writer.adds_rows else 0

        def counted(row: int) -> Decoded:
            if row >= first:
                next(computed)
            return decode(row)

        stalls = capture(
            writer,
            backbone,
            counted,
            batch_size=options.batch_size,
            workers=options.num_workers,
            progress=progress,
            shards=own_first(writer.unfinished, options.rank, options.world),
            arithmetic=options.arithmetic,
        )
    return stalls, next(computed)


def another_growth(path: Path, part: Manifest) -> StoreMismatchError:
    """What to say where another addition is under way."""
    what = f"layers {', '.join(map(str, part.layers))} ({', '.join(part.kinds)})"
    return StoreMismatchError(
        f"something else is being added to {path}: {what} of {part.num_rows} rows; {way_out(path)}"
    )
