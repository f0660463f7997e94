"""A finished store grows: rows of more images, or more layers or token kinds of the same rows.

    append(Path("photos"), Path("photos.zarr"))                  images that it has not, after its last row
    extend(Path("photos"), Path("photos.zarr"), layers="0-12")   layers that it has not, of its rows

What is new is computed as any store is, by any number of processes, in a hidden folder of the store, and
joined to it at the end by renaming files; the store is read as it was until then. Killed at any moment, the
same call goes on; see `activault.store.growing_join`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from activault.store import ConfigError, open_store
from activault.store.growing_join import finish_join, join_growth

from .capture import Progress, StallTimes
from .growth_append import AddedRows
from .growth_extend import AddedArrays
from .growth_part import working_in
from .growth_request import finished_store, local_folder, refuse_other_weights
from .listing import ImageSource
from .options import SourceOptions
from .run import ExtractSummary, summarise
from .sources import opened

__all__ = ["GrowthSummary", "append", "extend"]


@dataclass(frozen=True, kw_only=True)
class GrowthSummary:
    """What is in the store now, and what came to it."""

    store: ExtractSummary
    num_appended: int = 0
    """Rows that came."""
    num_known: int = 0
    """Images that were left out, because the store has a row of their key."""
    known_elsewhere: int = 0
    """Those of them that the store has from a source of another name: another image may have that key.

    0 once a source was added that has all rows of the store.
    """
    num_later: int = 0
    """Images that were not there yet when the addition was planned; the next one takes them."""
    layers: tuple[int, ...] = ()
    """Layers that came."""
    kinds: tuple[str, ...] = ()
    """Token kinds that came."""


def append(
    images: Path | str | ImageSource, store: Path | str, progress: Progress | None = None, **asked: Any
) -> GrowthSummary:
    """Images that a finished store has not become further rows of it.

    Rows that are there keep their numbers, values, outcomes and labels. An image whose key the store has is
    left out; that its content is another one now is not noticed.

    Args:
        images: what `extract` takes: the source of the store, which has more images now, or another one.
        store: a finished store in a folder of this machine.
        progress: called in this thread with rows done and rows in all.
        asked: fields of `ExtractOptions`. What they say of the store must be what it says; `where` and
            `split` choose among the images, `max_bad` is of the new rows.

    Raises:
        ConfigError: an option cannot be used, or the store is a partial copy.
        NotAStoreError, IncompleteStoreError: `store` is no finished store.
        StoreMismatchError: an option or the teacher is another than the store's, or other images, or those of
            another source, are being added to it.
        ImageSourceError: none of more than ten new images could be decoded, or more are bad than `max_bad`
            allows.
        WeightsError: the teacher's weights are absent or not the store's.
        StoreError: the disk is full or gone, or the teacher gave NaN; finished shards are kept.
    """
    start, path = time.perf_counter(), local_folder(store)
    finish_join(path)
    finished_store(path)  # before the lock: nothing is written into what is no store
    source = opened(images, asked.get("source", SourceOptions()))
    with working_in(path):
        rows = AddedRows(finished_store(path), source, asked)
        grown = rows.plan(path)
        if grown:
            stalls = rows.compute(path, progress)
        else:
            refuse_other_weights(rows.there, rows.options)
    if grown:
        join_growth(path)
    return GrowthSummary(
        store=summarise(open_store(path), rows.num_computed, stalls if grown else StallTimes(), start),
        num_appended=rows.num_new,
        num_known=rows.num_known,
        known_elsewhere=rows.known_elsewhere,
        num_later=rows.num_later,
    )


def extend(
    images: Path | str | ImageSource, store: Path | str, progress: Progress | None = None, **asked: Any
) -> GrowthSummary:
    """Layers or token kinds that a finished store has not, of the rows that it has.

    The images must be those that the store was made from. Layers and kinds at once are two additions, one
    after the other: images go through the teacher twice.

    Args:
        images: a source that has the images of all rows, under their keys, in any order.
        store: a finished store, or a partial copy, in a folder of this machine.
        progress: called in this thread with rows done and rows in all.
        asked: fields of `ExtractOptions`; `layers` and `tokens` are what the store is to have beside what it
            has. What the others say of the store must be what it says.

    Raises:
        ConfigError: neither layers nor tokens are asked for, or an option cannot be used.
        StoreMismatchError: the images, the teacher or an option are others than the store's, or something
            else is being added to it. Others as `append`.
    """
    start, path = time.perf_counter(), local_folder(store)
    if not {"layers", "tokens"} & asked.keys():
        kept = "; which patches it keeps was settled when it was made" if "patches" in asked else ""
        raise ConfigError(
            f"a store is extended by layers or token kinds; say which, by --layers or --tokens{kept}"
        )
    for name in ("where", "split", "max_bad"):
        if name in asked:
            raise ConfigError(
                f"what comes is of the rows that a store has; leave --{name.replace('_', '-')} out"
            )
    finish_join(path)
    first = finished_store(path)
    source = opened(images, asked.get("source", SourceOptions()))
    stalls, num_computed = StallTimes(), 0
    while True:
        with working_in(path):
            arrays = AddedArrays(finished_store(path), source, asked)
            if arrays.grown is None:
                if not num_computed:
                    refuse_other_weights(arrays.there, arrays.options)
                break
            stalls, num_new = arrays.compute(path, progress)
            num_computed += num_new
        join_growth(path)
    there = arrays.there
    return GrowthSummary(
        store=summarise(there, num_computed, stalls, start),
        layers=tuple(sorted(set(there.layers) - set(first.layers))),
        kinds=tuple(kind for kind in there.kinds if kind not in first.kinds),
    )
