"""Planning a store in a bucket: all that is known before the first shard, and its own `zarr.json` last.

A manifest, a sample table and the teacher's files in; a `Root` out, of a store that was planned now, here or
by another writer, or long ago. One writer plans, by the lease `.planning`; the others wait for it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from .arrow import pa
from .completion import SAMPLES
from .errors import CorruptStoreError, NotAStoreError, StoreMismatchError
from .manifest import Manifest
from .metadata import planned_metadata
from .object_leases import Leases
from .objects import Objects
from .root import PLANNING, ROOT, Root, TeacherFile, make_root, read_root
from .same_plan import refuse_other_plan
from .sample_tables import read_samples
from .samples import content_hash
from .sealed import write_sealed
from .storage import Storage, gather

__all__ = ["is_free_place", "plan_objects"]

_log: Final = logging.getLogger(__name__)
_WAIT_S: Final = 0.5
"""Seconds until another's planning is looked at again."""
_EMPTY: Final = "choose another place, or empty it"
WriteTeacher = Callable[[Path], Mapping[str, TeacherFile]]


def is_free_place(storage: Storage) -> bool:
    """Whether a store may be planned in a bucket: nothing is there, or what a planner has begun.

    Raises:
        StorageError: it cannot be read or listed.
    """
    names = storage.names("")
    if names is not None:
        return ROOT not in names and (PLANNING in names or all(name.startswith(".") for name in names))
    try:
        storage.size(ROOT)
    except FileNotFoundError:
        return True
    return False


def plan_objects(
    objects: Objects,
    leases: Leases,
    manifest: Manifest,
    samples: pa.Table,
    write_teacher: WriteTeacher,
    folder: Path,
    remedy: str = "choose another place, or ask for what is there",
) -> Root:
    """Plan the store, or find the same one there.

    Args:
        objects: where.
        leases: of this writer.
        manifest: what is to be stored.
        samples: the table as planned.
        write_teacher: writes the teacher's files into a folder that it makes, and says what they are.
        folder: an empty one, where the files are made.
        remedy: for another store that is there.

    Raises:
        StoreMismatchError: the store there was planned from something else, or a plan of something else was
            begun there.
        NotAStoreError: something else is there.
        StorageError: the place cannot be written, or does not answer.
        OSError: the disk is full.
    """
    told = False
    while True:
        root = _root_there(objects)
        if root is not None:
            refuse_other_plan(objects, root, manifest, samples, remedy)
            return root
        if not is_free_place(objects):
            if _root_there(objects) is not None:  # another planner was quicker than this one's listing
                continue
            raise NotAStoreError(f"{objects.where} holds something else than a store; {_EMPTY}")
        _refuse_publication(objects)
        if leases.take(PLANNING):
            try:
                # Another may have finished it while this one came to the lease.
                if _root_there(objects) is None:
                    _plan(objects, manifest, samples, write_teacher, folder)
            except BaseException:
                leases.give_up(PLANNING)
                raise
            leases.remove(PLANNING)
            continue
        if not told:
            _log.warning("%s is being planned by another writer; waiting for it", objects.where)
            told = True
        time.sleep(_WAIT_S)


def _refuse_publication(objects: Objects) -> None:
    found = objects.read_tagged(PLANNING)
    if found is not None and not found[0].startswith(b"{"):
        raise StoreMismatchError(
            f"a store is being published to {objects.where}, or was and is not finished; {_EMPTY}"
        )


def _root_there(objects: Objects) -> Root | None:
    if objects.find(ROOT) is None:
        return None
    return read_root(objects)


def _plan(
    objects: Objects, manifest: Manifest, samples: pa.Table, write_teacher: WriteTeacher, folder: Path
) -> None:
    teacher = write_teacher(folder / "teacher")
    write_sealed(folder / SAMPLES, samples)
    metadata = planned_metadata(manifest)
    planned = {*teacher, *metadata, SAMPLES}
    for path in objects.entries():
        if path not in planned and not path.rpartition("/")[2].startswith("."):
            raise NotAStoreError(
                f"{objects.where} has a {PLANNING} of a plan cut short, and {path}, which this plan does not "
                f"make; {_EMPTY}"
            )
    for path in teacher:
        if objects.create_file(path, folder / path) is None:
            raise _another_plan(objects, path)
    if objects.create_file(SAMPLES, folder / SAMPLES) is None:
        _refuse_samples(objects, manifest, samples)
    small = [*metadata.items()]
    done = gather(objects, lambda item: objects.create(*item), small)
    for (path, _), tag in zip(small, done, strict=True):
        if tag is None:
            raise _another_plan(objects, path)
    # Another's is held against ours by whoever is told to go on.
    objects.create(ROOT, make_root(manifest, content_hash(samples), teacher).to_bytes())


def _refuse_samples(objects: Objects, manifest: Manifest, samples: pa.Table) -> None:
    """Another version of pyarrow may write the same table in other bytes."""
    try:
        there, _ = read_samples(objects, manifest)
    except CorruptStoreError as exc:
        raise _another_plan(objects, SAMPLES) from exc
    if not there.equals(samples):
        raise _another_plan(objects, SAMPLES)


def _another_plan(objects: Objects, path: str) -> StoreMismatchError:
    return StoreMismatchError(
        f"{objects.where} holds what a plan of another store left that was cut short ({path} is not this "
        f"one's); {_EMPTY}"
    )
