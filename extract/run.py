"""Extraction as a whole: plan, capture what is unfinished, complete.

In: images (`sources.py`), a store's path or URL, `ExtractOptions`. Out: the finished store, `ExtractSummary`.

    extract(Path("photos"), Path("photos.zarr"), ExtractOptions(teacher="demo", image_size=98))

The rows are the images in an order shuffled by the seed, so that reading a store from its start is already
mixed, or in the source's own. Called again with the same request, it goes on where it stopped, and computes
again the shards of which a file is missing or of another size; a finished store that is whole is left as it
is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from activault.store import (
    ImageSourceError,
    Outcome,
    Store,
    StoreMismatchError,
    open_store,
)
from activault.store.growing_join import finish_join
from activault.store.places import as_place
from activault.store.writers import create_writer, is_free
from activault.store.writing import ShardWriter

from .backbone import Backbone, load_backbone, save_teacher
from .budget import ErrorBudget, parse_budget
from .calibration import calibration_for
from .capture import Decode, Decoded, Progress, StallTimes, capture, without_pixels
from .decode import BadImage, decode_image
from .listing import ImageSource
from .machine import choose_device
from .matching import planned_at, refuse_other_request
from .options import ExtractOptions
from .order import Rows
from .others import Others
from .planning import plan_manifest, plan_table, row_order
from .preprocess import to_pixels
from .sources import opened
from .workers import own_first

__all__ = [
    "ExtractOptions",
    "ExtractSummary",
    "counted",
    "extract",
    "refuse_all_bad",
    "row_decoder",
    "summarise",
]


@dataclass(frozen=True, kw_only=True)
class ExtractSummary:
    """What is in the store now, and what this run did for it."""

    num_rows: int
    num_new: int
    """Rows computed by this run."""
    bad: dict[str, int]
    """Bad rows of the whole store by reason code."""
    num_bytes: int
    """Bytes of the stored arrays."""
    float32_bytes: int
    """Bytes of the same arrays as plain float32."""
    seconds: float
    """Of this run, from planning to completion."""
    stalls: dict[str, float]
    """Share of the time that was waited for each part: `decode`, `compute`, `copy`, `write`."""
    work: dict[str, float]
    """Each part's share of what processors (and a GPU) did."""
    batch_size: int
    """Images of a forward; 0 if nothing was computed."""
    batch_rates: dict[int, float]
    """Images a second by size of a forward, where the batch size was `auto`."""
    peak_host_bytes: int | None
    """Most memory of this process from its start; None if nothing was computed, or nobody counts it."""
    peak_device_bytes: int | None
    """Most memory of the teacher's device; None on a CPU."""
    digest: str


def extract(
    images: Path | str | ImageSource,
    store: Path | str,
    options: ExtractOptions,
    progress: Progress | None = None,
    choose: Callable[[ShardWriter], Sequence[int]] | None = None,
) -> ExtractSummary:
    """Plan the store or go on with it, compute the shards that are not finished, and complete it.

    Args:
        images: a folder of images, tars, Parquet files or a table of paths (see `sources.open_source`), or
            what that has opened.
        store: where the store is or will be: a path, or `s3://bucket/prefix`.
        options: the request; a store that was planned from another one is not touched.
        progress: called in this thread with rows done and rows in all.
        choose: which shards of a store that is repaired to compute, asked when the request is known to be the
            store's; None is all that are unfinished. The store is completed if none is left.

    Raises:
        ConfigError: an option cannot be used.
        ImageSourceError: there are no images, none of them could be decoded, or more are bad than
            `max_bad` allows; what was finished is kept.
        WeightsError: the teacher's weights are absent or do not fit.
        NotAStoreError, StoreMismatchError: `store` is something else, or another request's.
        StoreError: the disk is full or gone, or the teacher gave NaN; finished shards are kept.
    """
    start, store = time.perf_counter(), as_place(store)
    device = choose_device(options.device)
    source = opened(images, options.source)
    order = row_order(source, options)
    there = _existing(store) if choose is None else None  # a store to be repaired may be too damaged to open
    if there is not None and there.is_whole and options.weights is None:
        refuse_other_request(there, source, order, options)
        return summarise(there, 0, StallTimes(), start)
    backbone = load_backbone(
        options.teacher, weights=options.weights, image_size=options.image_size, request=options.request
    )
    decode = row_decoder(source, order, backbone, options)
    backbone = backbone.to(device)
    with _planned(source, order, backbone, store, options, decode, repairing=choose is not None) as writer:
        shards = writer.unfinished if choose is None else choose(writer)
        began = None if choose is not None else open_store(store)
        budget = _budget(source, order, options, began, shards)
        stalls = capture(
            writer,
            backbone,
            counted(decode, budget),
            batch_size=options.batch_size,
            workers=options.num_workers,
            progress=progress if began is None else Others(began, store, budget, progress),
            shards=own_first(shards, options.rank, options.world),
            arithmetic=options.arithmetic,
        )
        if choose is None or not writer.unfinished:
            refuse_all_bad(finished := open_store(store))
            _budget(source, order, options, finished)  # others may have spent it together
            writer.complete()
    return summarise(open_store(store), budget.num_seen, stalls, start)


def _budget(
    source: ImageSource,
    order: Rows,
    options: ExtractOptions,
    store: Store | None,
    shards: Sequence[int] = (),
) -> ErrorBudget:
    """What is left of the error budget; of a store that is repaired nothing is known yet.

    Bad rows of `shards` that are computed again, since files of theirs are lost, count when they are found.
    """
    allowed = parse_budget(options.max_bad, len(order))
    num_before = 0
    if store is not None:
        bad = np.setdiff1d(store.finished_rows, store.valid_rows, assume_unique=True)
        num_before = int((~np.isin(bad // store.manifest.shard_rows, shards)).sum())
    budget = ErrorBudget(allowed, lambda row: source.keys[order[row]], num_before, source.faults)
    budget.check()
    return budget


def counted(decode: Decode, budget: ErrorBudget) -> Decode:
    """`decode`, which stops the run where too many images are bad."""

    def counted(row: int) -> Decoded:
        decoded = decode(row)
        budget.add(row, decoded.outcome)
        return decoded

    return counted


def _existing(path: Path | str) -> Store | None:
    """The store that is there already; a path that is something else is refused before anything is loaded."""
    if isinstance(path, Path):
        finish_join(path)
    return None if is_free(path) else open_store(path)


def _planned(
    source: ImageSource,
    order: Rows,
    backbone: Backbone,
    store: Path | str,
    options: ExtractOptions,
    decode: Decode,
    *,
    repairing: bool,
) -> ShardWriter:
    """The store as it is asked for, planned now or long ago."""

    def save(folder: Path) -> None:
        save_teacher(backbone, folder, weights=options.teacher_weights)

    def planned() -> ShardWriter:
        steps = calibration_for(backbone, decode, len(order), options)
        manifest = plan_manifest(
            source, len(order), backbone, options, lambda: planned_at(store), steps, repairing=repairing
        )
        return create_writer(store, manifest, plan_table(source, order), save, lease=options.lease)

    was_there = not is_free(store)
    try:
        return planned()
    except StoreMismatchError:
        # Another worker may have planned it in the meantime, with the grid and the steps of its own machine.
        if was_there:
            raise
        return planned()


def row_decoder(source: ImageSource, order: Rows, backbone: Backbone, options: ExtractOptions) -> Decode:
    """A row's pixels, by its number."""

    def decode(row: int) -> Decoded:
        data = source.read(int(order[row]))
        if isinstance(data, BadImage):
            return without_pixels(data)
        image = decode_image(data, options.max_pixels, options.orientation)
        if isinstance(image, BadImage):
            return without_pixels(image)
        pixels = to_pixels(image.image, backbone.preprocessing, options.max_pixels)
        if pixels is None:
            reason = f"scaled to the teacher's input it is more pixels than the cap of {options.max_pixels}"
            return without_pixels(
                BadImage(
                    status="too-large",
                    reason=reason,
                    width=image.width,
                    height=image.height,
                    content=image.content,
                )
            )
        outcome = Outcome(status="ok", width=image.width, height=image.height, content=image.content)
        return Decoded(outcome=outcome, pixels=pixels)

    return decode


def refuse_all_bad(store: Store) -> None:
    """Refuse a store of whose images none could be decoded.

    Raises:
        ImageSourceError: it is one.
    """
    if store.num_bad < store.num_rows:
        return
    reasons = ", ".join(f"{count} {status}" for status, count in store.bad_counts.items())
    raise ImageSourceError(
        f"none of the {store.num_rows} images could be decoded ({reasons}); look at what they are, then "
        f"remove {store.path}, which has no values, and name other images"
    )


def summarise(store: Store, num_new: int, stalls: StallTimes, start: float) -> ExtractSummary:
    """What is in the store, and what a run that began at `start` did for it."""
    return ExtractSummary(
        num_rows=store.num_rows,
        num_new=num_new,
        bad=store.bad_counts,
        num_bytes=store.num_bytes,
        float32_bytes=store.float32_bytes,
        seconds=time.perf_counter() - start,
        stalls=stalls.shares(),
        work=stalls.work_shares(),
        batch_size=stalls.num_images,
        batch_rates=stalls.rates,
        peak_host_bytes=stalls.peak_host_bytes,
        peak_device_bytes=stalls.peak_device_bytes,
        digest=store.digest,
    )
