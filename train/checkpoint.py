"""A stage's checkpoint: `checkpoint.json` and the safetensors file that it names. No pickle.

    STAGE/checkpoint.json               step, loader state, losses, recipe hash, name and hash of the tensors
    STAGE/step_000000100.safetensors    model.*, ema.*, exp_avg.*, exp_avg_sq.*, step.* and rng.*
    STAGE/step_000000100.json           its record, where older checkpoints are kept

The JSON is renamed into place after the tensors are on disk, so that a killed writer leaves the checkpoint
before it whole; what is neither the last `keep` nor the best one (`best.py`) is swept away by the next save.
To go back to an older one, copy its record over `checkpoint.json`. What a record says is in
`checkpoint_record.py`.

`write_atomically` and `write_json` are how every file of a run is written.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from activault.store.errors import RunError
from activault.store.files import file_sha256, sync_file, sync_folder

from .checkpoint_record import Checkpoint, one_line, read_record, sealed_record, tensors_name, way_out
from .ema import Ema
from .finite import require_finite

__all__ = [
    "Checkpoint",
    "disk_errors",
    "ema_tensors",
    "load_checkpoint",
    "one_line",
    "save_checkpoint",
    "tensors_under",
    "write_atomically",
    "write_json",
]

MOMENTS = ("exp_avg", "exp_avg_sq", "step")


def save_checkpoint(
    folder: Path,
    checkpoint: Checkpoint,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    ema: Ema | None = None,
    keep: int = 1,
) -> None:
    """Write a checkpoint, and sweep away all but the last `keep`.

    Raises:
        RunError: a weight is NaN or infinite, or the folder cannot be written.
    """
    name = tensors_name(checkpoint.step)
    weights = {**module.state_dict(), **ema_tensors(ema)}
    require_finite(weights, f"stage {checkpoint.stage} after step {checkpoint.step}")
    tensors = _tensors_of(module, optimizer) | ema_tensors(ema)
    write_atomically(folder / name, lambda temporary: save_file(tensors, temporary))
    record = sealed_record(checkpoint, file_sha256(folder / name))
    if keep > 1:
        write_json((folder / name).with_suffix(".json"), record)
    write_json(folder / "checkpoint.json", record)
    with disk_errors(folder):
        _sweep(folder, name, keep)


def _sweep(folder: Path, last: str, keep: int) -> None:
    """Remove half-written files and the checkpoints that are not kept, those after `last` too."""
    steps = sorted(path.name for path in folder.glob("step_*.safetensors") if path.name <= last)
    kept = set(steps[-keep:])
    for path in [*folder.glob("step_*.safetensors"), *folder.glob("step_*.json")]:
        if path.with_suffix(".safetensors").name not in kept:
            path.unlink(missing_ok=True)
    for leftover in folder.glob("*.tmp"):
        leftover.unlink(missing_ok=True)


def load_checkpoint(
    folder: Path,
    module: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    identity: str,
    ema: Ema | None = None,
) -> Checkpoint | None:
    """Put the folder's checkpoint into the module, the optimiser, the average and the random state.

    Gives None if there is none.

    Raises:
        RunError: the checkpoint is unreadable, is of another version, or belongs to another run.
    """
    path = folder / "checkpoint.json"
    saved = read_record(path)
    if saved is None:
        return None
    checkpoint, name = saved.checkpoint, saved.tensors
    if checkpoint.identity != identity:
        raise RunError(
            f"a stage goes on with what it was started with; {path} is of run {checkpoint.identity[:12]} and "
            f"this is {identity[:12]}, with another recipe, phases or store; choose another folder"
        )
    try:
        if file_sha256(folder / name) != saved.sha256:
            raise RunError(f"{folder / name} is not what was written; {way_out(folder, name)}")
        _put_tensors(load_file(folder / name), module, optimizer, ema)
    except (OSError, SafetensorError, KeyError, RuntimeError) as exc:
        raise RunError(
            f"{folder / name} does not hold this stage's tensors: {one_line(exc)}; remove {folder}"
        ) from exc
    return checkpoint


def ema_tensors(ema: Ema | None) -> dict[str, Tensor]:
    """The average as it is saved."""
    return {} if ema is None else {f"ema.{name}": value.contiguous() for name, value in ema.average.items()}


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `path`, bring it to the disk, and rename it to `path`.

    The temporary file has a name of its own, so that two processes never fill the same one.

    Raises:
        RunError: the disk is full, read-only or gone.
    """
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    with disk_errors(path):
        try:
            write(temporary)
            temporary.chmod(0o644)  # safetensors writes for the owner alone, and runs are shared
            sync_file(temporary)
            temporary.replace(path)
            sync_folder(path.parent)
        finally:
            with contextlib.suppress(OSError):  # what ended the write, if anything did, is told instead
                temporary.unlink(missing_ok=True)


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """`write_atomically` for one JSON object."""
    text = json.dumps(record, indent=2, allow_nan=False) + "\n"
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Tell what the disk refuses while `path` is written as a RunError."""
    try:
        yield
    except (OSError, SafetensorError) as exc:
        raise RunError(
            f"{path} could not be written: {one_line(exc)}; what was there before is whole: make room or "
            "allow writing there, then start again"
        ) from exc


def _tensors_of(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Model, moments (by parameter name) and random states as one flat dictionary."""
    tensors = {f"model.{name}": tensor.detach().contiguous() for name, tensor in module.state_dict().items()}
    for name, parameter in module.named_parameters():
        state = optimizer.state.get(parameter, {})
        tensors.update(
            {f"{moment}.{name}": state[moment].contiguous() for moment in MOMENTS if moment in state}
        )
    tensors["rng.cpu"] = torch.get_rng_state()
    device = next(module.parameters()).device
    if device.type == "cuda":
        tensors["rng.cuda"] = torch.cuda.get_rng_state(device)
    return tensors


def tensors_under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix.`, under the rest of their names."""
    start = f"{prefix}."
    return {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}


def _put_tensors(
    tensors: dict[str, Tensor],
    module: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    ema: Ema | None,
) -> None:
    """The inverse of `_tensors_of`; the random states only with an optimiser, when training goes on."""
    module.load_state_dict(tensors_under("model", tensors), strict=True)
    if ema is not None:
        ema.load(tensors_under("ema", tensors))
    if optimizer is None:
        return
    groups = optimizer.state_dict()["param_groups"]
    states = {
        index: {moment: tensors[f"{moment}.{name}"] for moment in MOMENTS}
        for index, (name, _) in enumerate(module.named_parameters())
        if f"exp_avg.{name}" in tensors
    }
    optimizer.load_state_dict({"state": states, "param_groups": groups})
    torch.set_rng_state(tensors["rng.cpu"])
    if "rng.cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["rng.cuda"], next(module.parameters()).device)
