"""`checkpoint.json`, the record of a checkpoint: what it says, its hash, and what is refused.

    STAGE/checkpoint.json  ->  SavedRecord: the Checkpoint, name and hash of its tensors

A record carries a hash of itself; those of versions that wrote none are taken without. Either way types are
strict, and the step is held against the name of the tensors.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from activault.store.errors import RunError

__all__ = ["Checkpoint", "SavedRecord", "one_line", "read_record", "sealed_record", "tensors_name", "way_out"]

VERSION: Final = 1
HASH: Final = "record_sha256"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What a checkpoint says beside its tensors."""

    stage: str
    """Name of the stage."""
    step: int
    """Updates made."""
    identity: str
    """Hash of the recipe, the phases and the store's digest."""
    loader: dict[str, Any]
    """The loader's state: batches consumed."""
    pending: list[float]
    """Losses since the last logged line, so that a resumed run logs the same means."""
    last_loss: float | None
    """Loss of the last logged line."""
    last_validation: float | None = None
    """Mean R2 of the last validation."""


@dataclass(frozen=True)
class SavedRecord:
    """A record as it was read."""

    checkpoint: Checkpoint
    tensors: str
    """Name of the file of the tensors."""
    sha256: str
    """Its hash."""


def tensors_name(step: int) -> str:
    """Name of the file of a step's tensors."""
    return f"step_{step:09d}.safetensors"


def sealed_record(checkpoint: Checkpoint, sha256: str) -> dict[str, Any]:
    """The record as it is written; `sha256` is the tensors'."""
    names = {"version": VERSION, "tensors": tensors_name(checkpoint.step), "sha256": sha256}
    record = {**names, **asdict(checkpoint)}
    return {**record, HASH: _hash(record)}


def read_record(path: Path) -> SavedRecord | None:
    """The record there; None if there is none.

    Raises:
        RunError: it cannot be read, is of another version, or is not what was written.
    """
    folder = path.parent
    if not path.exists():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["version"] != VERSION:
            raise RunError(
                f"{path} has version {record['version']} and this program reads {VERSION}; use the one that "
                "wrote it"
            )
        written = record.pop(HASH, None)
        is_whole = written is None or written == _hash(record)
        name, sha256 = str(record.pop("tensors")), str(record.pop("sha256"))
        del record["version"]
        checkpoint = Checkpoint(**record)
        _check_types(checkpoint)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise RunError(f"{path} is no checkpoint: {one_line(exc)}; {way_out(folder)}") from exc
    if Path(name).name != name:
        raise RunError(f"{path} names tensors outside its folder: {name!r}; remove {folder}")
    if name != tensors_name(checkpoint.step):
        raise RunError(
            f"{path} is not what was written: it says step {checkpoint.step} and names {name}; "
            f"{way_out(folder)}"
        )
    if not is_whole:
        raise RunError(f"{path} is not what was written; {way_out(folder)}")
    return SavedRecord(checkpoint, name, sha256)


def way_out(folder: Path, before: str | None = None) -> str:
    """What to do about damage: go back to an older checkpoint (`before` these tensors) where one is kept."""
    records = sorted(path.name for path in folder.glob("step_*.json"))
    if older := [name for name in records if before is None or name < Path(before).stem]:
        return f"copy {older[-1]} over checkpoint.json there to go on from that one"
    return f"remove {folder} to train the stage anew"


def one_line(exc: Exception) -> str:
    """An error's message without its line breaks."""
    return " ".join(str(exc).split())


def _hash(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _check_types(checkpoint: Checkpoint) -> None:
    """Refuse a record that was damaged or edited before anything is built on it."""
    for name in ("stage", "identity"):
        if type(value := getattr(checkpoint, name)) is not str:
            raise ValueError(f"{name} is a word; got {value!r:.80}")
    if type(checkpoint.step) is not int or checkpoint.step < 0:
        raise ValueError(f"step is a whole number, at least 0; got {checkpoint.step!r:.80}")
    if not isinstance(checkpoint.loader, dict):
        raise ValueError(f"the loader's state is a table; got {checkpoint.loader!r:.80}")  # noqa: TRY004
    for name in ("last_loss", "last_validation"):
        value = getattr(checkpoint, name)
        if value is not None and not _is_number(value):
            raise ValueError(f"{name} is a finite number or null; got {value!r:.80}")
    if not isinstance(checkpoint.pending, list) or not all(map(_is_number, checkpoint.pending)):
        raise ValueError(f"pending losses are a list of finite numbers; got {checkpoint.pending!r:.80}")


def _is_number(value: object) -> bool:
    """Whether a value is a number that a float holds; truth values are none."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max  # type: ignore[arg-type]
