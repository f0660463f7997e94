"""What an extraction will take, before it is begun: `activault extract ... --dry-run`.

Images, the place of a store and `ExtractOptions` in, an `Estimate` out. Everything is planned as for the run
itself, teacher and rows included, and nothing is written where the store will be; then the engine runs for a
few seconds (`measuring.py`), and its figures are scaled to the rows that are left.

    found = estimate("photos/", "photos.zarr", ExtractOptions(teacher="demo"))
    found.size.num_files, found.left.bytes, found.left.seconds, found.lacking
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from activault.store import Manifest, open_store
from activault.store.places import as_place, open_storage
from activault.store.presence import is_finished
from activault.store.root import read_root

from .backbone import Backbone, load_backbone
from .batch_size import choose_batch_size
from .calibration import CALIBRATION_ROWS, calibration_for
from .file_times import seconds_a_file
from .listing import ImageSource
from .machine import choose_device
from .matching import planned_at, refuse_other_request
from .measuring import Measurement, Speed, measure
from .options import ExtractOptions
from .planning import plan_manifest, plan_table, row_order
from .room import Room, room_at
from .run import refuse_all_bad, row_decoder
from .sizing import MemoryNeeds, StoreSize, memory_needs, shards_bytes, store_size
from .sources import opened
from .trial import Workload

__all__ = ["Estimate", "Remaining", "estimate"]

_MANY_FILES: Final = 100_000
"""Above it a note says what makes them fewer: quotas of a million files are common on clusters."""
_TRIAL_ROWS: Final = 4096
_QUICK_CALIBRATION_ROWS: Final = 16


@dataclass(frozen=True, kw_only=True)
class Remaining:
    """What is still to be done."""

    rows: int
    shards: int
    files: int
    bytes: int
    workers: int
    """That share it."""
    seconds: float
    """For workers as fast as this one was, beside whatever the disk makes them wait."""
    disk_seconds: float | None
    """For a worker's files to be brought to disk one after the other, meanwhile, as the folder for temporary
    files takes; None for a bucket, and where no shard is to come."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What an extraction will give and take."""

    store: str
    device: str
    size: StoreSize
    left: Remaining
    speed: Speed | None
    """What the trial gave; None where nothing is left."""
    memory: MemoryNeeds | None
    """None where nothing is left."""
    room: Room
    """What the disk offers."""
    lacking: str | None
    """Why it has not the room for what is left, as far as can be known; None if it has."""
    notes: tuple[str, ...]
    """What else whoever asks should know."""


def estimate(
    images: Path | str | ImageSource, store: Path | str, options: ExtractOptions, *, seconds: float = 4.0
) -> Estimate:
    """Plan an extraction and run its engine for a few seconds; nothing is written at `store`.

    Args:
        images: as of `extract`.
        store: where the store is or would be.
        options: the request.
        seconds: about how long to measure, beside loading the teacher.

    Raises:
        ConfigError, ImageSourceError, WeightsError, NotAStoreError, StoreMismatchError: as `extract` would.
        NonFiniteError: the teacher gave NaN.
    """
    store = as_place(store)
    device = choose_device(options.device)
    source = opened(images, options.source)
    order = row_order(source, options)
    there = planned_at(store)
    if there is not None and options.weights is None and open_store(store).is_whole:
        refuse_other_request(there, source, order, options)
        return _nothing_left(store, str(device))
    backbone = load_backbone(
        options.teacher, weights=options.weights, image_size=options.image_size, request=options.request
    ).to(device)
    decode = row_decoder(source, order, backbone, options)
    tables = plan_table(source, order)
    # Of few rows, so that the steps of int8 are a little finer than the store's.
    steps = calibration_for(backbone, decode, len(order), options, _QUICK_CALIBRATION_ROWS)
    manifest = plan_manifest(source, len(order), backbone, options, lambda: there, steps)
    left = manifest.held_shards if there is None else _unfinished(store, manifest)
    if not left:
        return _nothing_left(store, str(device))
    batch_size = choose_batch_size(options.batch_size, backbone, options.arithmetic).num_images
    work = Workload(
        manifest=manifest,
        backbone=backbone,
        decode=decode,
        rows=_rows_of(manifest, left),
        arithmetic=options.arithmetic,
        workers=options.num_workers,
    )
    found = measure(work, batch_size=batch_size, seconds=seconds)
    num_teacher, teacher_bytes = _teacher_files(backbone, options)
    planned_bytes = teacher_bytes + tables.nbytes
    size = store_size(manifest, found, num_teacher, planned_bytes)
    new = (size.num_files, planned_bytes) if there is None else None
    coming = _remaining(store, manifest, left, found, options, new)
    room = room_at(store)
    memory = memory_needs(manifest, found, on_cpu=device.type == "cpu", workers=options.local_world)
    return Estimate(
        store=str(store),
        device=str(device),
        size=size,
        left=coming,
        speed=found.speed,
        memory=memory,
        room=room,
        lacking=room.shortfall(coming.bytes, coming.files) or _lacking_on_the_way(store, coming),
        notes=tuple(_notes(batch_size, size, found, room, memory)),
    )


def _remaining(
    store: Path | str,
    manifest: Manifest,
    shards: Sequence[int],
    found: Measurement,
    options: ExtractOptions,
    new: tuple[int, int] | None,
) -> Remaining:
    """What some shards take, and the rest of the store.

    Args:
        store: its place.
        manifest: of it.
        shards: that are to come.
        found: from rows of them.
        options: the request.
        new: all files of a store that is not there yet, and the bytes of those that are planned; else None.
    """
    rows, first = sum(len(manifest.shard_range(shard)) for shard in shards), 0
    num_bytes = shards_bytes(manifest, found, found.bytes_a_row, rows, len(shards))
    # What an unfinished store has besides its shards is written at the end: CARD.md and index.parquet.
    files = len(shards) * _files_of_a_shard(manifest) + 2
    if new is not None:
        files, num_bytes = new[0], num_bytes + new[1]
        first = min(CALIBRATION_ROWS, manifest.num_rows) if manifest.dtype == "int8" else 0
    return Remaining(
        rows=rows,
        shards=len(shards),
        files=files,
        bytes=num_bytes,
        workers=options.world,
        seconds=(rows / options.world + first) / found.speed.images_a_second,
        disk_seconds=files / options.world * seconds_a_file() if isinstance(store, Path) else None,
    )


def _lacking_on_the_way(store: Path | str, coming: Remaining) -> str | None:
    """What the folder for temporary files lacks: a shard lies there before it goes to a bucket."""
    if isinstance(store, Path):
        return None
    return room_at(tempfile.gettempdir()).shortfall(coming.bytes // max(1, coming.shards), 0)


def _nothing_left(store: Path | str, device: str) -> Estimate:
    """Of a store whose shards are all finished."""
    there = open_store(store)
    refuse_all_bad(there)
    note = "the store is there, and complete: nothing is left to do"
    if not there.complete:
        note = "every shard is there: the store is to be completed"
    return Estimate(
        store=str(store),
        device=device,
        size=store_size(there.manifest, None, len(read_root(there.storage).teacher), there.num_bytes),
        left=Remaining(
            rows=0,
            shards=0,
            files=0 if there.complete else 2,
            bytes=0,
            workers=1,
            seconds=0.0,
            disk_seconds=None,
        ),
        speed=None,
        memory=None,
        room=room_at(store),
        lacking=None,
        notes=(note,),
    )


def _notes(
    batch_size: int, size: StoreSize, found: Measurement, room: Room, memory: MemoryNeeds
) -> Iterator[str]:
    if memory.workers * memory.peak_host > memory.machine:
        yield (
            "this machine, or this job's share of it, has not the memory; fewer rows a shard (--shard-rows), "
            "a smaller --batch-size or fewer workers take less"
        )
    if room.note:
        yield room.note
    elif room.free_bytes is not None:
        yield "a quota below the disk's free space is not seen"
    if found.speed.batch_size < batch_size:
        yield (
            f"measured with batches of {found.speed.batch_size} images instead of {batch_size}, for want of "
            "time"
        )
    if found.speed.num_bad:
        yield f"{found.speed.num_bad} of the {found.speed.num_images} images of the trial were bad"
    if size.num_files > _MANY_FILES:
        yield (
            f"{size.num_files:,} files are many; fewer with more rows a shard (--shard-rows, in as much more "
            "memory), fewer layers or kinds of tokens"
        )


def _teacher_files(backbone: Backbone, options: ExtractOptions) -> tuple[int, int]:
    """How many there are, and their bytes but for a few headers."""
    tables = backbone.rotary
    tensors = list(backbone.tensors().values()) if options.teacher_weights else []
    tensors += [] if tables is None else [tables.sin, tables.cos]
    number = 1 + int(options.teacher_weights) + int(tables is not None)
    return number, sum(tensor.nbytes for tensor in tensors)


def _files_of_a_shard(manifest: Manifest) -> int:
    """Its arrays' files, its record and its statistics."""
    return len(manifest.layers) * len(manifest.kinds) + 2


def _unfinished(store: Path | str, manifest: Manifest) -> list[int]:
    """Shards that a writer would compute, as far as can be told without becoming one."""
    storage = open_storage(store)
    if storage.folder is None:  # every file would be asked for
        finished = set((open_store(store).finished_rows // manifest.shard_rows).tolist())
        return [shard for shard in manifest.held_shards if shard not in finished]
    return [shard for shard in manifest.held_shards if not is_finished(storage, manifest, shard)]


def _rows_of(manifest: Manifest, shards: Sequence[int]) -> list[int]:
    """The first rows of some shards."""
    rows: list[int] = []
    for shard in shards:
        rows += manifest.shard_range(shard)
        if len(rows) >= _TRIAL_ROWS:
            break
    return rows[:_TRIAL_ROWS]
