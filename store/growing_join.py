"""The joining of a new part and the store that it lies in: journalled by where files are, and repeatable.

A store with a finished new part in `.growing` in; the grown store out.

1. The grown store's metadata (records, statistics, tables, card, its own `zarr.json`) are written into
   `.growing/joined` and brought to disk. Nothing of the store was touched yet.
2. `.growing` is renamed to `.joining`. From now on the store is the grown one: what is left is renames, each
   of which leaves its trace, so that whoever comes next does those that were not done.
3. Arrays' files whose place is free are renamed there: no reader looks for them yet.
4. The store's `zarr.json` is removed: who opens the store now is told what is going on, and whatever version
   opens it reads nothing.
5. All other files are renamed into their places, over the old ones, and the folder `shards` as a whole;
   `zarr.json` is the last.
6. What is left of `.joining` is removed.

No array's file is copied. Joiners wait for one another, and for every writer in the store, at its lock.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from .card import CARD
from .completion import SAMPLES, write_completion
from .cores import in_threads
from .errors import CorruptStoreError, IncompleteStoreError, StoreError
from .files import atomic_write, disk_error, leftovers, new_file, sync_folder
from .growing import GROWING, JOINED, JOINING, growing_root, refuse_link
from .growing_plan import grown_manifest, new_arrays, refuse_other_store
from .index import INDEX
from .joins import RecordPiece, join_record, join_statistics
from .locks import LOCK, locked_by_one
from .manifest import Manifest
from .parts import part_samples
from .presence import file_faults
from .records import ShardRecord, array_folder, arrays_of, close_record, record_path, statistics_path
from .root import ROOT, make_root
from .sources import CopySource, open_source, read_checked

__all__ = ["finish_join", "join_growth", "refuse_obstacles"]

_THREADS: Final = 8
"""Records that are brought to disk at once."""
_AGAIN: Final = "run the same command again"


def finish_join(store: Path) -> bool:
    """Do the renames that a killed joiner left, if one did; returns whether there were any.

    Raises:
        StoreError: the disk is read-only or gone, or the file system has no locks.
    """
    if not (store / JOINING).exists():
        return False
    try:
        with locked_by_one(store):
            _finish(store)
    except OSError as exc:
        raise disk_error(exc, store, 0) from exc
    return True


def join_growth(store: Path) -> bool:
    """Make the store the grown one; every shard of the new part must be finished, and nobody write to it.

    Returns:
        Whether this call did it: another process may have done it before.

    Raises:
        IncompleteStoreError: the store is not complete, or a shard of the new part is not finished.
        StoreMismatchError: the new part is not of this store, or of other images.
        CorruptStoreError: a record or a statistics file is altered or missing.
        PrecisionError: int8 patches of a layer as a whole are below R2 = 0.999.
        StoreError: something is in the way of a new array, or the disk is full, read-only or gone.
    """
    try:
        with locked_by_one(store):
            if (store / JOINING).exists():
                _finish(store)
                return True
            if growing_root(store) is None:
                return False
            _prepare(store)
            (store / GROWING).replace(store / JOINING)
            sync_folder(store)
            _finish(store)
    except OSError as exc:
        raise disk_error(exc, store, 0) from exc
    return True


def _prepare(store: Path) -> None:
    """Step 1."""
    old, part = open_source(store), open_source(store / GROWING)
    refuse_other_store(old.root, part.root, part.samples, str(store))
    if not old.complete:
        raise IncompleteStoreError(f"{store} is not complete any more; mend it first, then run this again")
    grown = grown_manifest(old.manifest, part.manifest)
    refuse_obstacles(store, old.manifest, part.manifest)
    for file in list(leftovers(store / GROWING)):
        file.unlink(missing_ok=True)
    joined = store / GROWING / JOINED
    refuse_link(joined)
    if joined.exists():
        shutil.rmtree(joined)
    (joined / "shards").mkdir(parents=True)

    def write(shard: int) -> None:
        _write_record(store, joined, _pieces(old, part, shard), grown, shard)

    in_threads(write, grown.held_shards, _THREADS)
    sync_folder(joined / "shards")
    samples = part_samples(part.samples, grown)
    root = make_root(grown, part.root.samples, old.root.teacher)
    if (store / CARD).is_file():
        shutil.copyfile(store / CARD, joined / CARD)  # which is kept if somebody edited it
    write_completion(joined, root, samples)
    atomic_write(joined / ROOT, root.to_bytes())
    for folder in (joined, store / GROWING):
        sync_folder(folder)


def refuse_obstacles(store: Path, old: Manifest, part: Manifest) -> None:
    """Refuse a store in which files could not be renamed into their places.

    Args:
        store: its folder.
        old: its manifest.
        part: that of the new part.

    Raises:
        StoreError: something is where a new array will be, or what is there lies on several disks.
    """
    for array in new_arrays(old, grown_manifest(old, part)):
        place = array_folder(array.layer, array.kind)
        if (store / place).exists():
            raise StoreError(
                f"{store / place} is no part of the store and in the way of a new array; move it away"
            )
    device = store.stat().st_dev
    for array in arrays_of(old):
        place = array_folder(array.layer, array.kind)
        if (store / place).stat().st_dev != device:
            raise StoreError(
                f"what is new is renamed into its place, and {store / place} lies on another disk than the "
                "store; bring them together"
            )


Given = tuple[CopySource, RecordPiece]
"""A store, and what it gives to a shard."""


def _pieces(old: CopySource, part: CopySource, shard: int) -> Sequence[Given]:
    """Who gives which arrays of a shard of the grown store; the old one first.

    Raises:
        IncompleteStoreError: the new part has not finished it.
        CorruptStoreError: files of the new part are not there, or not with their sizes.
    """
    is_new = part.manifest.holds(shard)
    by_rows = part.manifest.num_rows > old.manifest.num_rows
    givers = [] if is_new and by_rows else [old]
    if is_new:
        if shard not in part.finished_set:
            raise IncompleteStoreError(f"{part.where}: shard {shard} is not finished; {_AGAIN}")
        givers.append(part)
    return [
        (giver, RecordPiece(giver.where, _whole_record(giver, part, shard), list(arrays_of(giver.manifest))))
        for giver in givers
    ]


def _whole_record(giver: CopySource, part: CopySource, shard: int) -> ShardRecord:
    record = giver.record(shard)
    if giver is part:
        for path, fault in file_faults(giver.storage, record):
            raise CorruptStoreError(f"{giver.where}/{path} {fault}; {_AGAIN}")
    return record


def _write_record(store: Path, joined: Path, pieces: Sequence[Given], grown: Manifest, shard: int) -> None:
    """A shard's record under the grown store's manifest, and its statistics."""
    [*old, (source, last)] = pieces
    if not old and source.manifest.num_rows < grown.num_rows:
        _, text = close_record(last.record.model_dump(mode="json", exclude={"checksum"}), grown, shard)
        _link(store / statistics_path(shard), joined / statistics_path(shard))
    else:
        read = [(piece, read_checked(giver.storage, piece.record.statistics)) for giver, piece in pieces]
        statistics = join_statistics(read, grown)
        _, text = join_record([piece for _, piece in pieces], grown, statistics)
        _write(joined / statistics_path(shard), statistics)
    _write(joined / record_path(shard), text)


def _link(file: Path, name: Path) -> None:
    """Give a file, which is never written to again, another name; where there are no links, copy it."""
    try:
        name.hardlink_to(file)
    except OSError:
        _write(name, file.read_bytes())


def _write(path: Path, data: bytes) -> None:
    """A file, its bytes on disk; the folder is synced once for all of them."""
    with new_file(path) as file:
        file.write(data)


def _finish(store: Path) -> None:
    """Steps 3 to 6, as far as they are not done."""
    joining = store / JOINING
    if not joining.exists():
        return
    joined = joining / JOINED
    for folder in (joining, joined):
        refuse_link(folder)
    if (joined / ROOT).exists():
        layers = sorted(entry.name for entry in joining.iterdir() if entry.name.startswith("layer_"))
        pairs = [(joining / name, store / name) for name in layers]
        _rename_each(pairs, replace=False)
        (store / ROOT).unlink(missing_ok=True)
        sync_folder(store)
        _rename_each(pairs, replace=True)
        _exchange_shards(store, joining)
        _rename_each([(joined / name, store / name) for name in (SAMPLES, CARD, INDEX)], replace=True)
        (joined / ROOT).replace(store / ROOT)
        for folder in (store, joined):
            sync_folder(folder)
    shutil.rmtree(joining)
    sync_folder(store)


def _exchange_shards(store: Path, joining: Path) -> None:
    """All records and statistics at once, however many there are."""
    new, now, old = joining / JOINED / "shards", store / "shards", joining / "old"
    if not new.exists():
        return
    if not old.exists():
        now.replace(old)
    new.replace(now)
    for folder in (store, joining, new.parent):
        sync_folder(folder)


def _rename_each(pairs: Sequence[tuple[Path, Path]], *, replace: bool) -> None:
    touched: set[Path] = set()
    for source, target in pairs:
        _rename(source, target, touched, replace=replace)
    for folder in touched:
        if folder.exists():  # what was renamed as a whole lies elsewhere now
            sync_folder(folder)


def _rename(source: Path, target: Path, touched: set[Path], *, replace: bool) -> None:
    """Bring a file or folder to its place; of a folder that is there already, what is in it.

    Files that have their place taken stay where they are unless they are to replace what is there.
    """
    if source.is_dir() and target.is_dir():
        for entry in sorted(source.iterdir()):
            if entry.name != LOCK:
                _rename(entry, target / entry.name, touched, replace=replace)
        return
    if source.exists() and (replace or not target.exists()):
        source.replace(target)
        touched |= {source.parent, target.parent}
