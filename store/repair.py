"""Carrying out a repair plan: what the store itself implies is made again.

A plan and the store's path in; the store mended but for the shards whose images have to go through the
teacher again. Those are named by `forget_shards`, and `activault.extract` does them. A plan is not trusted:
paths are built from the manifest. Every step can be done again.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from .arrow import pa
from .check_statistics import check_statistics
from .check_values import check_values
from .completion import SAMPLES
from .errors import CorruptStoreError, StoreMismatchError
from .fetching import FileToFetch
from .files import disk_error
from .findings import Findings
from .index import INDEX
from .locks import at_work
from .manifest import Manifest
from .marks import begin_again
from .metadata import restore_metadata
from .parts import part_samples
from .presence import has_record
from .records import SHARD_DIGITS, read_record
from .repair_plan import VERIFY_AGAIN, RepairPlan
from .restoring import restore_records
from .root import Root, read_root
from .sealed import write_sealed
from .storage import Folder, Storage

__all__ = ["checked_root", "forget_shards", "rebuild", "rebuild_samples"]


def checked_root(path: Path | str, plan: RepairPlan) -> Root:
    """The root of the store at `path`, of which the plan must be; nothing is touched.

    Raises:
        StoreMismatchError: the plan is another store's, or names a shard that this one does not have.
        CorruptStoreError: the store's own `zarr.json` cannot be read.
        NotAStoreError: there is no store.
    """
    root = read_root(Folder(path))
    if root.manifest.sha256() != plan.manifest:
        raise StoreMismatchError(f"the plan is of another store than {path}; {VERIFY_AGAIN}")
    for shard in (*plan.records, *(part.shard for part in plan.shards)):
        if not root.manifest.holds(shard):
            raise StoreMismatchError(f"the plan names shard {shard}, which the store does not have")
    return root


def rebuild(path: Path | str, plan: RepairPlan) -> None:
    """Make again what the store itself implies: metadata, records out of the index, and no index that lies.

    No image is needed, and nothing that is sound is touched; a table is only removed here, for a writer's
    `complete` to write it again. An index goes only when `shards/` has all that it has.

    Raises:
        StoreMismatchError: the plan is another store's.
        CorruptStoreError: the store's own `zarr.json` or its index cannot be read.
        StoreError: the disk is full, read-only or gone.
    """
    path = Path(path)
    root = checked_root(path, plan)
    try:
        with at_work(path):
            restore_metadata(path, root.manifest, set(plan.metadata))
            _restore_records(path, root.manifest, plan.records)
            _delete(path, root.manifest, plan.delete)
            if INDEX in plan.tables:
                begin_again(path, ())
    except OSError as exc:
        raise disk_error(exc, path, 1 << 20) from exc


def _restore_records(path: Path, manifest: Manifest, shards: Iterable[int]) -> None:
    restore_records(path)
    for shard in shards:
        if not has_record(Folder(path), manifest, shard):
            raise CorruptStoreError(f"{INDEX} has no record of shard {shard} any more; {VERIFY_AGAIN}")


def _delete(path: Path, manifest: Manifest, names: Iterable[str]) -> None:
    for name in names:
        folder, _, file = name.partition("/")
        number = file.removesuffix(".json")
        if folder == "shards" and number.isdecimal() and not manifest.holds(int(number[:SHARD_DIGITS])):
            (path / folder / file).unlink(missing_ok=True)


def forget_shards(path: Path | str, plan: RepairPlan) -> list[int]:
    """Make the plan's shards unfinished, so that a writer writes them again; returns them, ascending.

    A shard that has become sound since the plan was made is left out, every byte of it looked at: a repair
    that was interrupted goes on where it stopped, and an old plan does no harm.

    Raises:
        StoreMismatchError: the plan is another store's.
        StoreError: the disk is full, read-only or gone.
    """
    path = Path(path)
    manifest, storage = checked_root(path, plan).manifest, Folder(path)
    again = [part.shard for part in plan.shards if not _is_sound(storage, manifest, part.shard, plan)]
    try:
        if again:
            with at_work(path):
                begin_again(path, again)
    except OSError as exc:
        raise disk_error(exc, path, 1 << 20) from exc
    return sorted(again)


def _is_sound(storage: Storage, manifest: Manifest, shard: int, plan: RepairPlan) -> bool:
    try:
        found = read_record(storage, manifest, shard)
    except CorruptStoreError:
        return False
    if found is None or not all(
        FileToFetch(storage, file.path, file.bytes, file.hash).is_sound()
        for file in (*found[0].files, found[0].statistics)
    ):
        return False
    lies = Findings()  # bytes may be the record's, and what it says not be so
    check_statistics(storage, manifest, [found[0]], lies)
    if plan.values:
        check_values(storage, manifest, [found[0]], lies)
    return not lies.faults


def rebuild_samples(path: Path | str, plan: RepairPlan, samples: pa.Table) -> None:
    """Write the planned sample table again if the plan says so; completion brings the outcomes.

    Args:
        path: the store.
        plan: the plan.
        samples: the table as planned, which `create_store` has held against the store.

    Raises:
        StoreError: the disk is full, read-only or gone.
    """
    if SAMPLES not in plan.tables:
        return
    manifest = checked_root(path, plan).manifest
    if manifest.shards is not None:
        samples = part_samples(samples, manifest)
    try:
        write_sealed(Path(path) / SAMPLES, samples)
    except OSError as exc:
        raise disk_error(exc, Path(path), samples.nbytes) from exc
