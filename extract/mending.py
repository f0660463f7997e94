"""Repair of a store by a plan: exactly the shards that it names go through the teacher again.

In: the images, the store, the request that made it and a `RepairPlan` of `activault verify --repair-plan`.
Out: the store made whole, and `ExtractSummary`. Where no shard is named, neither an image is decoded nor the
teacher loaded: tables are made again from the records and from the list of the images.
"""

from __future__ import annotations

import time
from pathlib import Path

from activault.store import ConfigError, Manifest, create_store, open_store
from activault.store.places import as_place
from activault.store.repair import checked_root, forget_shards, rebuild, rebuild_samples
from activault.store.repair_plan import RepairPlan
from activault.store.writing import ShardWriter

from .capture import Progress, StallTimes
from .listing import ImageSource
from .matching import Planned, refuse_other_request
from .options import ExtractOptions
from .planning import plan_table, row_order
from .run import ExtractSummary, extract, summarise
from .sources import opened

__all__ = ["repair"]


def repair(
    images: Path | str | ImageSource,
    store: Path | str,
    options: ExtractOptions,
    plan: RepairPlan,
    progress: Progress | None = None,
) -> ExtractSummary:
    """Carry out `plan`: rebuild what can be, and extract its shards again and no others.

    Nothing is touched before the plan, the images and the request are known to be the store's.
    A store that was complete is complete again, with its digest. What only a copy can restore stays as it is.
    Of a partial copy the request may be that of the whole store: layers, kinds and shards are the copy's own.

    Args:
        images: what the store was made from.
        store: where it is.
        options: the request that made it, or the store that it is a part of.
        plan: what is to be done.
        progress: called in this thread with rows done and rows in all.

    Raises:
        ConfigError: the store is in a bucket.
        StoreMismatchError: the plan, the images or the request are another store's.
        StoreError: see `extract`.
    """
    start, store = time.perf_counter(), as_place(store)
    if not isinstance(store, Path):
        raise ConfigError(
            f"a repair plan is carried out in a folder of this machine; got {store}; without one, `extract` "
            "puts again what a store in a bucket has lost, and once a file of a shard is deleted, what was "
            "altered of it"
        )
    root = checked_root(store, plan)
    if plan.needs_images:

        def choose(writer: ShardWriter) -> list[int]:
            rebuild(store, plan)
            rebuild_samples(store, plan, writer.samples)
            return forget_shards(store, plan)

        return extract(images, store, options, progress, choose=choose)
    _complete(root.manifest, opened(images, options.source), store, options, plan)
    return summarise(open_store(store), 0, StallTimes(), start)


def _complete(
    manifest: Manifest, source: ImageSource, store: Path, options: ExtractOptions, plan: RepairPlan
) -> None:
    """Write tables again; the teacher's identity is the manifest's, since none of its values is computed."""
    order = row_order(source, options)
    if options.weights is None:
        refuse_other_request(Planned(str(store), manifest), source, order, options, repairing=True)
    samples = plan_table(source, order)
    with create_store(store, manifest, samples, {}) as writer:
        rebuild(store, plan)
        rebuild_samples(store, plan, samples)
        if not writer.unfinished:
            writer.complete()
