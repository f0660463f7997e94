"""Planning a store: everything that is known before the first shard, and the store's own `zarr.json` last.

A manifest, a sample table and the teacher's files in; a `StoreWriter` out, for a new store or one to go on
with.
"""

from __future__ import annotations

import logging
import math
import re
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from .arrow import pa
from .codecs import array_metadata, group_metadata
from .completion import SAMPLES
from .errors import ConfigError, NotAStoreError, StoreError
from .files import (
    atomic_write,
    disk_error,
    file_sha256,
    is_leftover,
    pretty_json,
    sync_file,
    sync_folder,
)
from .growing_join import finish_join
from .layout import layer_name
from .leases import LEASE
from .locks import LOCK, TOLD_AFTER, tried_by_one, waiting_for
from .manifest import Manifest
from .records import array_folder, arrays_of
from .root import PLANNING, ROOT, Root, TeacherFile, is_teacher_name, make_root, read_root
from .same_plan import refuse_other_plan
from .samples import content_hash, samples_schema
from .sealed import write_sealed
from .storage import Folder
from .writer import StoreWriter

__all__ = ["TeacherFiles", "check_samples", "create_store", "is_free", "plan_store", "write_teacher_files"]

_FOLDER: Final = re.compile(r"teacher|shards|layer_\d{2,}(/(cls|registers|patches))?")
_FILE: Final = re.compile(r"teacher/[^/]+|layer_\d{2,}/((cls|registers|patches)/)?zarr\.json")
"""What planning makes, but for the tables and the marker."""
_LOOKS: Final = 3
_WAIT: Final = 0.05
"""Seconds until a store that another process plans is looked at again."""
_log: Final = logging.getLogger(__name__)
TeacherFiles = Mapping[str, Path] | Callable[[Path], object]


def create_store(
    path: Path | str,
    manifest: Manifest,
    samples: pa.Table,
    teacher_files: TeacherFiles,
    lease: float = LEASE,
) -> StoreWriter:
    """Plan the store at `path`, or open the same one to go on with it.

    Args:
        path: where there is nothing, an empty folder, a half-planned store, or a store of this very plan.
        manifest: what is to be stored.
        samples: from `plan_samples`, `manifest.num_rows` rows.
        teacher_files: file names and where to copy them from, or a function that writes them into the folder
            that it is given; not used when the store is there already.
        lease: seconds without a sign of life after which a shard is taken over from its owner.

    Raises:
        ConfigError: the samples are not `manifest.num_rows`.
        StoreMismatchError: the store there was planned from something else; the first difference is named.
        NotAStoreError: the path exists and is something else.
        StoreError: the disk is full, read-only or gone.
    """
    path = Path(path)
    check_samples(manifest, samples)
    try:
        return StoreWriter(path, plan_store(path, manifest, samples, teacher_files), samples, lease)
    except OSError as exc:
        raise disk_error(exc, path, samples.nbytes) from exc


def check_samples(manifest: Manifest, samples: pa.Table) -> None:
    """Refuse a sample table that is not of as many rows as the manifest.

    Raises:
        ConfigError: it is not.
    """
    if len(samples) != manifest.num_rows or not samples.schema.equals(samples_schema()):
        raise ConfigError(
            f"samples come from plan_samples, one for each of {manifest.num_rows} rows; got {len(samples)} "
            f"of the columns {samples.schema.names}"
        )


def plan_store(
    path: Path,
    manifest: Manifest,
    samples: pa.Table,
    teacher_files: TeacherFiles,
    remedy: str = "choose another path, or ask for what is there",
) -> Root:
    """Plan the store at `path`, or find the same one there; raises as `create_store` does, and `OSError`.

    Of several that plan at once one does, and the others wait for it; if it dies, another goes on.
    """
    finish_join(path)
    tell_at = time.monotonic() + TOLD_AFTER
    while is_free(path):
        path.mkdir(parents=True, exist_ok=True)
        with tried_by_one(path) as alone:
            if alone and is_free(path):
                return _plan(path, manifest, samples, teacher_files)
        # Not for the lock itself: those who plan no more hold it together, for as long as they write.
        if not alone:
            time.sleep(_WAIT)
            if time.monotonic() > tell_at:
                _log.warning(waiting_for(path))
                tell_at = math.inf
    _refuse_foreign(path)
    root = read_root(Folder(path))
    refuse_other_plan(Folder(path), root, manifest, samples, remedy)
    return root


def is_free(path: Path) -> bool:
    """Whether a store may be planned at `path`.

    There is nothing, a half-planned store, or a folder that holds nothing but what a writer left that was
    killed at its very first file.

    Raises:
        StoreError: the folder may not be looked into.
    """
    try:
        # What a look misses that another process makes or removes meanwhile, the next one sees: the marker is
        # there before anything else, and the store's own zarr.json before the marker goes.
        return any(_is_free(path) for _ in range(_LOOKS))
    except OSError as exc:
        raise StoreError(
            f"{path} cannot be looked into ({exc.strerror}); grant the right to read it"
        ) from exc


def _is_free(path: Path) -> bool:
    if (path / ROOT).exists():
        return False
    if not path.exists() or (path / PLANNING).exists():
        return True
    return path.is_dir() and all(is_leftover(entry) or entry.name == LOCK for entry in path.iterdir())


def _refuse_foreign(path: Path) -> None:
    if not path.is_dir():
        raise NotAStoreError(f"{path} is a file, not an activation store; choose another path")
    if not (path / ROOT).exists():
        raise NotAStoreError(
            f"{path} exists and is not an activation store; choose another path, or empty it"
        )


def _plan(path: Path, manifest: Manifest, samples: pa.Table, teacher_files: TeacherFiles) -> Root:
    _clear(path)
    atomic_write(path / PLANNING, b"This store is being planned. If nothing is planning it, plan it again.\n")
    teacher = write_teacher_files(path / "teacher", teacher_files)
    write_sealed(path / SAMPLES, samples)
    for layer in manifest.layers:
        (path / layer_name(layer)).mkdir(exist_ok=True)
        atomic_write(path / layer_name(layer) / ROOT, pretty_json(group_metadata({})))
    for array in arrays_of(manifest):
        folder = path / array_folder(array.layer, array.kind)
        folder.mkdir(exist_ok=True)
        atomic_write(folder / ROOT, pretty_json(array_metadata(manifest, array.kind)))
        sync_folder(folder.parent)
    (path / "shards").mkdir(exist_ok=True)
    root = make_root(manifest, content_hash(samples), teacher)
    atomic_write(path / ROOT, root.to_bytes())
    (path / PLANNING).unlink()
    sync_folder(path)
    return root


def _clear(path: Path) -> None:
    """Remove what an interrupted plan left: the folder was empty, or this is what the marker says.

    Raises:
        NotAStoreError: something is among it that no planning makes; nothing is removed then.
    """
    ours = [entry for entry in path.iterdir() if entry.is_dir() and _FOLDER.fullmatch(entry.name)]
    for file in (file for entry in ours for file in (entry, *entry.rglob("*"))):
        name = file.relative_to(path).as_posix()
        if not _is_planned(name, file):
            raise NotAStoreError(
                f"{path} has a {PLANNING} of a plan cut short, and {name}, which planning does not make; "
                "move it away, or choose another path"
            )
    for entry in ours:
        shutil.rmtree(entry)


def _is_planned(name: str, file: Path) -> bool:
    """Whether planning may have made a file or folder, of a name relative to the store."""
    if file.is_symlink():
        return False
    if file.is_dir():
        return _FOLDER.fullmatch(name) is not None
    return _FILE.fullmatch(name) is not None or file.name == LOCK or is_leftover(file)


def write_teacher_files(folder: Path, files: TeacherFiles) -> dict[str, TeacherFile]:
    """Write the teacher's files into a folder that is made, and say what they are, by path in the store.

    Raises:
        ConfigError: a name that no store has.
        OSError: the disk is full, read-only or gone.
    """
    folder.mkdir()
    if callable(files):
        files(folder)
    else:
        for name, source in files.items():
            _refuse_name(name)
            shutil.copyfile(source, folder / name)
    found = {}
    for file in sorted(folder.iterdir()):
        _refuse_name(file.name)
        if not file.is_file():
            raise ConfigError(f"the teacher's files are plain files, flat; got {file.name}")
        sync_file(file)
        found[f"teacher/{file.name}"] = TeacherFile(bytes=file.stat().st_size, sha256=file_sha256(file))
    sync_folder(folder)
    return found


def _refuse_name(name: str) -> None:
    if not is_teacher_name(name):
        raise ConfigError(
            "names of the teacher's files are printable, of at most 200 bytes, without slashes, do not begin "
            f"with a dot nor end in .tmp or .partial; got {name!r}; rename it"
        )
