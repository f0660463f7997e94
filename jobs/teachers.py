"""The teacher that travels with a store, wherever the store lies.

store  ->  its Backbone, or its rotary tables alone

The files of a store behind a URL are copied to a temporary folder for as long as they are read: weights are
checked as a whole against their hash before anything is made of them.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from activault.store import ConfigError, Store, StoreError, WeightsError

if TYPE_CHECKING:
    from activault.extract.backbone import Backbone
    from activault.extract.rotary import RotaryTables

__all__ = ["rotary_of", "teacher_if_there", "teacher_of"]

CONFIG, WEIGHTS, ROTARY = "config.json", "model.safetensors", "rotary.safetensors"


def teacher_of(store: Store, weights: Path | None, remedy: str) -> Backbone:
    """The store's own teacher; `weights` are used where the store was made without them.

    Raises:
        ConfigError: it has none, as an imported one, or its weights were left out and are not given.
        WeightsError: its files are damaged, or other weights are given.
        StoreError: it is behind a URL, and cannot be fetched.
    """
    from activault.extract.backbone import load_teacher

    config = _config_of(store)
    if not config and not _has_weights(store):
        raise ConfigError(f"this needs the teacher's weights, and {store.path} carries none; {remedy}")
    left_out = config.get("weights") == "left out"
    if weights is None and left_out:
        teacher = store.manifest.teacher
        raise ConfigError(
            f"this needs the teacher's weights, and {store.path} was made without them; give those of "
            f"{teacher.name} ({teacher.weights}; hash {teacher.weights_sha256}) with --weights, or {remedy}"
        )
    names = [CONFIG, *([] if left_out else [WEIGHTS]), *([ROTARY] if "rotary" in config else [])]
    with _files_here(store, names) as folder:
        return load_teacher(folder, weights=weights)


def teacher_if_there(store: Store, weights: Path | None = None) -> Backbone | None:
    """The store's own teacher, or None where its weights are not there and not given."""
    if weights is None and not _has_weights(store):
        return None
    return teacher_of(store, weights, "restore them from a copy of the store")


def rotary_of(store: Store) -> RotaryTables | None:
    """The teacher's rotary tables at the store's grid; None where its positions are not such.

    Raises:
        WeightsError: the teacher's files are damaged.
        StoreError: the store is behind a URL, and they cannot be fetched.
    """
    from activault.extract.teacher_files import read_rotary

    if "rotary" not in _config_of(store):
        return None
    with _files_here(store, [CONFIG, ROTARY]) as folder:
        return read_rotary(folder)


def _config_of(store: Store) -> dict[str, Any]:
    """What `teacher/config.json` says; nothing where a store has no teacher's files."""
    try:
        config = json.loads(store.storage.read(f"teacher/{CONFIG}"))
    except FileNotFoundError:
        return {}
    except ValueError as exc:
        raise WeightsError(
            f"teacher/config.json of {store.path} is no JSON; restore it from a copy of the store"
        ) from exc
    return config if isinstance(config, dict) else {}


def _has_weights(store: Store) -> bool:
    try:
        return store.storage.size(f"teacher/{WEIGHTS}") > 0
    except FileNotFoundError:
        return False


@contextmanager
def _files_here(store: Store, names: list[str]) -> Iterator[Path]:
    """A folder on this machine that has the teacher's files of these names, while it is needed."""
    if store.storage.folder is not None:
        yield store.teacher_dir
        return
    with tempfile.TemporaryDirectory(prefix="activault-teacher-") as temporary:
        folder = Path(temporary)
        for name in names:
            _copy(store, f"teacher/{name}", folder / name)
        yield folder


def _copy(store: Store, path: str, file: Path) -> None:
    try:
        with file.open("wb") as out:
            for block in store.storage.blocks(path):
                out.write(block)
    except FileNotFoundError as exc:
        raise WeightsError(
            f"{path} of {store.storage.where} is not there; restore it from a copy of the store"
        ) from exc
    except OSError as exc:
        raise StoreError(
            f"the teacher's files are copied to {tempfile.gettempdir()} while they are read, which failed "
            f"({exc.strerror or exc}); make room there, or name another folder by TMPDIR"
        ) from exc
