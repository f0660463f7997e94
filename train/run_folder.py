"""What names a run in its folder: `run.json`, written once, and locks, held by whoever writes there.

`open_run` writes the file or holds a second start against it, field by field; `read_run` reads it. A stage's
folder has a lock of its own, so that stages may train side by side; the run's is held for what is its own.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ValidationError

from activault.store import Store
from activault.store.differences import first_differing
from activault.store.errors import RunError

from .checkpoint import disk_errors, one_line, write_json
from .identity import identity_of
from .raptor_config import RaptorConfig
from .recipe import TrainRecipe

__all__ = ["alone_in", "open_run", "read_run"]

VERSION = 1
WITHOUT_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)


def open_run(out: Path, recipe: TrainRecipe, config: RaptorConfig, store: Store) -> str:
    """Write `run.json`, or hold it against what is there; returns the hash that the checkpoints carry.

    Raises:
        RunError: the folder holds something else or another run, or cannot be made.
    """
    identity = {
        "version": VERSION,
        "recipe": recipe.identity(),
        "model": identity_of(config),
        "layout": store.layout.model_dump(mode="json"),
        "store_digest": store.digest,
        "teacher_sha256": store.manifest.teacher.weights_sha256,
    }
    if not (out / "run.json").exists():
        _make_folder(out)
    with alone_in(out, wait=True):
        if (out / "run.json").exists():
            there = read_run(out)
            _refuse_difference(out, {key: _as_now(key, there.get(key)) for key in identity}, identity)
        else:
            versions = {
                "activault": version("activault"),
                "torch": torch.__version__,
                "python": platform.python_version(),
            }
            whole = {"recipe": recipe.model_dump(mode="json"), "model": config.model_dump(mode="json")}
            write_json(out / "run.json", {**identity, **whole, "versions": versions})
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def _as_now(key: str, there: Any) -> Any:
    """What an earlier start wrote down as this one would tell it, later keys at their defaults left out."""
    kinds: dict[str, tuple[type[BaseModel], frozenset[str]]] = {
        "recipe": (TrainRecipe, frozenset({"store"})),
        "model": (RaptorConfig, frozenset()),
    }
    if key not in kinds:
        return there
    kind, leave_out = kinds[key]
    try:
        return identity_of(kind.model_validate(there), leave_out=leave_out)
    except ValidationError:  # told by the field that differs
        return {name: value for name, value in there.items() if name not in leave_out} if there else there


def _make_folder(out: Path) -> None:
    """An empty folder for a run; one that a start is at, or a killed one left half-made, will do."""
    try:
        foreign = out.exists() and (not out.is_dir() or any(not _is_ours(path) for path in out.iterdir()))
        # Looked at last: another start writes run.json before any other file of a run.
        if foreign and not (out / "run.json").exists():
            raise RunError(f"{out} exists and is no run; choose another folder")
        out.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise RunError(f"{out} cannot be made: {exc}; choose another folder") from exc


def _is_ours(path: Path) -> bool:
    """Whether a file is of a run that is being made: another start may be faster by a moment."""
    return path.suffix == ".tmp" or path.name in ("lock", "run.json")


def read_run(path: Path) -> dict[str, Any]:
    """What a run's `run.json` says.

    Raises:
        RunError: there is none, it cannot be read, or it is of another version.
    """
    try:
        record = json.loads((path / "run.json").read_text(encoding="utf-8"))
    except FileNotFoundError as exc:
        raise RunError(
            f"{path} is no run: it has no run.json; `activault train RECIPE --out {path}` makes one"
        ) from exc
    except (OSError, ValueError) as exc:
        raise RunError(f"{path / 'run.json'} cannot be read: {one_line(exc)}; choose another folder") from exc
    if not isinstance(record, dict) or record.get("version") != VERSION:
        raise RunError(f"{path / 'run.json'} is not of version {VERSION}; use the program that wrote it")
    for key in ("recipe", "model"):
        if not isinstance(there := record.get(key, {}), dict):
            raise RunError(
                f"a run's {key} is a table; {path / 'run.json'} has {there!r:.80} there; choose another "
                "folder"
            )
    return record


def _refuse_difference(out: Path, there: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raise a RunError that names the first field in which two runs differ."""
    if difference := first_differing(there, wanted):
        key, old, new = difference
        raise RunError(
            f"a run goes on with what it was started with; {out} has {key} = {old!r} and this one {new!r}; "
            "choose another folder"
        )


@contextmanager
def alone_in(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold a run's or a stage's folder; the lock goes with the process, however it ends.

    `wait` is for what takes a moment; else whoever finds another one at work is told.

    Raises:
        RunError: another process is at work there, or the folder cannot be written.
    """
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with disk_errors(folder / "lock"):
        file = (folder / "lock").open("a")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as exc:
            raise RunError(
                f"one process trains a stage of a run, and another one is at work in {folder}; wait for it "
                "or choose another folder"
            ) from exc
        except OSError as exc:
            # On a file system without locks, training there twice at once is not noticed.
            if exc.errno not in WITHOUT_LOCKS:
                raise RunError(f"{folder} cannot be locked: {exc}; choose another folder") from exc
        yield
