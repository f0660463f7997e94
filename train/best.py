"""The best checkpoint of a stage by validation: `best.json` and the safetensors file that it names.

    STAGE/best.json                     step, mean R2, all figures, recipe hash, name and hash of the tensors
    STAGE/best_000000300.safetensors    model.*, and ema.* where there is an average

It holds weights alone: training goes on from the last checkpoint, never from the best one.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from activault.store.errors import RunError
from activault.store.files import file_sha256

from .checkpoint import disk_errors, ema_tensors, one_line, write_atomically, write_json
from .ema import Ema
from .finite import require_finite

__all__ = ["Best", "best_tensors", "read_best", "save_best"]


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best validation so far."""

    step: int
    """Updates made then."""
    value: float
    """Mean over the stage's layers of R2 over all tokens."""
    identity: str
    """Hash of the recipe, the phases and the store's digest."""
    validation: dict[str, Any]
    """All figures, as `RolloutMetrics.to_dict` gives them."""
    tensors: str = ""
    """Name of the file of the weights."""
    sha256: str = ""
    """Its hash."""


def save_best(folder: Path, best: Best, module: nn.Module, ema: Ema | None) -> Best:
    """Write the weights of now as the best ones; gives the record with name and hash.

    Raises:
        RunError: a weight is NaN or infinite, or the folder cannot be written.
    """
    path = folder / f"best_{best.step:09d}.safetensors"
    tensors = {f"model.{name}": value.detach().contiguous() for name, value in module.state_dict().items()}
    tensors |= ema_tensors(ema)
    require_finite(tensors, f"{folder.name} after step {best.step}")
    write_atomically(path, lambda temporary: save_file(tensors, temporary))
    written = {**asdict(best), "tensors": path.name, "sha256": file_sha256(path)}
    write_json(folder / "best.json", written)
    with disk_errors(folder):
        for leftover in folder.glob("best_*.safetensors"):
            if leftover != path:
                leftover.unlink(missing_ok=True)
    return Best(**written)


def read_best(folder: Path, *, identity: str, up_to: int) -> Best | None:
    """The best validation up to a step; None where there is none.

    One of a later step is forgotten: training went on from an earlier checkpoint and will come by again.

    Raises:
        RunError: `best.json` is unreadable, or was edited into something else.
    """
    path = folder / "best.json"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        _check_types(record)
        best = Best(**record)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, RecursionError) as exc:
        raise RunError(f"{path} is no record of a best checkpoint: {one_line(exc)}; remove it") from exc
    return best if best.identity == identity and best.step <= up_to else None


def _check_types(record: Any) -> None:
    """Refuse a record that was damaged or edited before anything is made of it."""
    if not isinstance(record, dict):
        raise ValueError(f"it is a table; got {record!r:.80}")  # noqa: TRY004
    step, validation = record.get("step"), record.get("validation")
    value: Any = record.get("value")
    if type(step) is not int or step < 0:
        raise ValueError(f"step is a whole number, at least 0; got {step!r:.80}")
    if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:
        raise ValueError(f"value is a finite number; got {value!r:.80}")
    if not isinstance(validation, dict):
        raise ValueError(f"validation is a table; got {validation!r:.80}")  # noqa: TRY004
    for name in ("identity", "tensors", "sha256"):
        if type(text := record.get(name)) is not str:
            raise ValueError(f"{name} is a word; got {text!r:.80}")


def best_tensors(folder: Path, best: Best) -> dict[str, Tensor]:
    """The weights of the best checkpoint.

    Raises:
        RunError: the file is absent or not what was written.
    """
    path = folder / Path(best.tensors).name
    try:
        if file_sha256(path) != best.sha256:
            raise RunError(f"{path} is not what was written; remove {folder} to train the stage anew")
        return load_file(path)
    except (OSError, SafetensorError) as exc:
        raise RunError(f"{path} cannot be read: {one_line(exc)}; remove {folder}") from exc
