"""A finished run's files: the models that it ends with, their seal, and how they are read again.

    RUN/model.safetensors           the last weights
    RUN/model_ema.safetensors       their moving average, where the last stage keeps one
    RUN/model_best.safetensors      the weights at the best validation, where the last stage validates
    RUN/model_best_ema.safetensors  their average then, where it does both
    RUN/seal.json                   hashes of these and of run.json; written last

Tensors carry the names of `Raptor.state_dict()`, and `run.json` says the model's shape, so that they can be
read without this program.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from activault.store.errors import ConfigError, RunError
from activault.store.files import file_sha256
from activault.store.layout import TokenLayout

from .best import best_tensors, read_best
from .checkpoint import disk_errors, one_line, tensors_under, write_atomically, write_json
from .finite import require_finite
from .raptor import Raptor
from .raptor_config import RaptorConfig
from .recipe import TrainRecipe
from .run_folder import read_run
from .stages import Stage

__all__ = ["Run", "Which", "load_run", "write_models"]

Which = Literal["last", "best"]
SEAL = "seal.json"
KINDS: tuple[tuple[Which, bool], ...] = (("last", False), ("last", True), ("best", False), ("best", True))
SEALED = ("run", "model", "model_ema", "model_best", "model_best_ema")


@dataclass(frozen=True, kw_only=True)
class Run:
    """A finished run, ready to roll out."""

    path: Path
    """The run's folder."""
    model: Raptor
    """The trained model, on the CPU, in eval mode."""
    recipe: TrainRecipe
    """What it was trained by."""
    cuts: tuple[int, ...]
    """Its phases, where they are contiguous; else empty."""
    layout: TokenLayout
    """Token layout it was trained at."""
    store_digest: str
    """Content of the store it was trained on."""
    teacher_sha256: str
    """Weights of the teacher whose layers it replays."""
    groups: tuple[tuple[int, ...], ...] | None = None
    """Its phases, where they are not contiguous."""


def load_run(path: Path | str, which: Which = "last", *, ema: bool = False) -> Run:
    """A finished run's model and what it was trained by.

    `which` is the last weights or those of the best validation; `ema` takes their moving average.

    Raises:
        ConfigError: `which` is neither.
        RunError: the folder is no run, the run is not finished, or it has no such weights.
    """
    if which not in get_args(Which):
        raise ConfigError(f"a run's weights are 'last' or 'best'; got {which!r}; name one of the two")
    path = Path(path)
    record = read_run(path)
    if not (path / "model.safetensors").exists():
        raise RunError(f"{path} holds a run that is not finished; start `activault train` again to finish it")
    file = path / _name(which, ema)
    sealed = _seal_there(path)
    if file.stem not in sealed and not file.exists() and "model" in sealed:
        keys = [*(["validate_every"] if which == "best" else []), *(["ema_decay"] if ema else [])]
        raise RunError(
            f"{path} has no {file.name}; a run has it whose last stage sets {' and '.join(keys)}: train one"
        )
    if sealed.get(file.stem) != _hash(file) or sealed.get("run") != _hash(path / "run.json"):
        raise RunError(
            f"{file.name} or run.json in {path} is not what was written; start the same `activault "
            "train` again, which makes the model from its checkpoints"
        )
    try:
        model = Raptor(RaptorConfig.model_validate(record["model"]))
        model.load_state_dict(load_file(file), strict=True)
        return Run(
            path=path,
            model=model.eval(),
            recipe=TrainRecipe.model_validate(record["recipe"]),
            cuts=model.config.cuts,
            layout=TokenLayout.model_validate(record["layout"]),
            store_digest=str(record["store_digest"]),
            teacher_sha256=str(record["teacher_sha256"]),
            groups=model.config.groups,
        )
    except (OSError, KeyError, ValidationError, SafetensorError, RuntimeError) as exc:
        raise RunError(
            f"{path} does not hold a run that this program can read: {one_line(exc)}; train it anew elsewhere"
        ) from exc


def write_models(out: Path, model: Raptor, last: Sequence[tuple[str, Stage]], identity: str) -> None:
    """Write a finished run's models and, last, their seal; again where files and seal do not agree.

    `last` are the stages whose weights make the model, each with what its tensors' names begin with in the
    model: the closed loop, or every phase. Each has its last weights in its module.

    Raises:
        RunError: a checkpoint is not what was written, a weight is NaN or infinite, or the folder cannot be
            written.
    """
    sealed = _seal_there(out)
    if sealed and all(_hash(out / _file_of(name)) == value for name, value in sealed.items()):
        return
    with disk_errors(out / "model.safetensors"):
        for leftover in out.glob("model*.safetensors.*.tmp"):
            leftover.unlink()
    own = {name: tensor.cpu().contiguous() for name, tensor in model.state_dict().items()}
    saved = [(prefix, _saved_weights(out / stage.name, identity)) for prefix, stage in last]
    written = []
    for which, ema in KINDS:
        parts = [(prefix, weights.get((which, ema))) for prefix, weights in saved]
        if (which, ema) != ("last", False) and (not parts or any(part is None for _, part in parts)):
            continue
        tensors = dict(own)
        for prefix, part in parts:
            tensors.update({f"{prefix}{name}": tensor for name, tensor in (part or {}).items()})
        path = out / _name(which, ema)
        require_finite(tensors, f"{path.name} of {out}")
        write_atomically(path, _saver(tensors))
        written.append(path)
    seal = {path.stem: _hash(path) for path in [*written, out / "run.json"]}
    write_json(out / SEAL, seal)


def _saver(tensors: Mapping[str, Tensor]) -> Callable[[Path], None]:
    return lambda temporary: save_file(dict(tensors), temporary)


def _saved_weights(folder: Path, identity: str) -> dict[tuple[Which, bool], dict[str, Tensor]]:
    """The weights that a finished stage has in its folder, by (which, whether their average)."""
    record = json.loads((folder / "checkpoint.json").read_text(encoding="utf-8"))
    last = load_file(folder / str(record["tensors"]))
    best = read_best(folder, identity=identity, up_to=int(record["step"]))
    found: dict[tuple[Which, bool], dict[str, Tensor]] = {
        ("last", False): tensors_under("model", last),
        ("last", True): tensors_under("ema", last),
    }
    if best is not None:
        tensors = best_tensors(folder, best)
        found["best", False] = tensors_under("model", tensors)
        found["best", True] = tensors_under("ema", tensors)
    return {key: tensors for key, tensors in found.items() if tensors}


def _name(which: Which, ema: bool) -> str:
    return f"model{'_best' if which == 'best' else ''}{'_ema' if ema else ''}.safetensors"


def _file_of(name: str) -> str:
    return f"{name}.json" if name == "run" else f"{name}.safetensors"


def _hash(path: Path) -> str | None:
    """A file's hash; None where it cannot be read."""
    try:
        return file_sha256(path)
    except OSError:
        return None


def _seal_there(out: Path) -> dict[str, str]:
    """Hashes by the names of files; empty where there is no seal that can be read."""
    try:
        seal = json.loads((out / SEAL).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(seal, dict):
        return {}
    return {name: str(value) for name, value in seal.items() if name in SEALED}
