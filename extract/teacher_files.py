"""A teacher's files, as they travel with a store.

    config.json                 who it is, its preprocessing, and what the other files hold
    model.safetensors           the weights under timm's names, at their native position grid
    rotary.safetensors          `sin`, `cos` (1 or blocks, 1 or heads, patches, head width); see `rotary.py`

The weights are the same bytes at every input size; they may be left out, and then `config.json` says by their
hash which they are. Only teachers with rotary positions have the third file, made for the input size of the
store. Reading checks both against the hashes in `config.json` before a model is made from them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from activault.store.errors import WeightsError
from activault.store.provenance import Preprocessing, TeacherInfo

from .rotary import Pairs, RotaryTables
from .weight_files import read_tensors
from .weights import tensors_sha256

__all__ = ["TeacherFiles", "read_rotary", "read_teacher", "write_teacher"]

CONFIG: Final = "config.json"
WEIGHTS: Final = "model.safetensors"
ROTARY: Final = "rotary.safetensors"


@dataclass(frozen=True)
class TeacherFiles:
    """What the files hold."""

    info: TeacherInfo
    preprocessing: Preprocessing
    native_size: tuple[int, int]
    """Height and width in pixels that the position grid of the weights stands for."""
    tensors: dict[str, Tensor] | None
    """The weights under timm's names; None where they were left out."""
    activation: str | None = None
    """transformers' word for the activation of a plain MLP; None is the architecture's own."""
    rotary: RotaryTables | None = None
    """None for a teacher without rotary positions."""


def write_teacher(files: TeacherFiles, folder: Path) -> None:
    """Write the files into an existing folder.

    Raises:
        OSError: they cannot be written.
    """
    config: dict[str, Any] = {
        "info": files.info.model_dump(mode="json"),
        "preprocessing": files.preprocessing.model_dump(mode="json"),
        "native_size": list(files.native_size),
        "activation": files.activation,
    }
    if files.tensors is not None:
        _save(files.tensors, folder / WEIGHTS)
    else:
        config["weights"] = "left out"
    if files.rotary is not None:
        tables = {"sin": files.rotary.sin, "cos": files.rotary.cos}
        _save(tables, folder / ROTARY)
        config["rotary"] = {"pairs": files.rotary.pairs, "sha256": tensors_sha256(tables)}
    (folder / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    try:
        save_file(tensors, path)
    except SafetensorError as exc:  # how that library tells of a full disk
        raise OSError(f"{path.name}: {exc}") from exc
    path.chmod(0o644)  # it is written for the owner alone, and stores are shared


def read_teacher(folder: Path) -> TeacherFiles:
    """The files, checked against each other.

    Raises:
        WeightsError: they are absent, damaged or altered.
    """
    described = _described(folder)
    info = described.info
    return TeacherFiles(
        info=info,
        preprocessing=described.preprocessing,
        native_size=described.native_size,
        tensors=None if described.left_out else _checked(folder / WEIGHTS, info.weights_sha256),
        activation=described.activation,
        rotary=_tables(folder, described),
    )


def read_rotary(folder: Path) -> RotaryTables | None:
    """The rotary tables alone, without the weights; None for a teacher without rotary positions.

    Raises:
        WeightsError: they are absent, damaged or altered.
    """
    return _tables(folder, _described(folder))


@dataclass(frozen=True, kw_only=True)
class _Described:
    """What `config.json` says."""

    info: TeacherInfo
    preprocessing: Preprocessing
    native_size: tuple[int, int]
    left_out: bool
    activation: str | None
    pairs: Pairs
    rotary_sha256: str | None


def _described(folder: Path) -> _Described:
    path = folder / CONFIG
    try:
        config = json.loads(path.read_text())
        height, width = map(int, config["native_size"])
        rotary = config.get("rotary")
        return _Described(
            info=TeacherInfo.model_validate(config["info"]),
            preprocessing=Preprocessing.model_validate(config["preprocessing"]),
            native_size=(height, width),
            left_out=config.get("weights") == "left out",
            activation=config.get("activation"),
            pairs="neighbours" if rotary and rotary["pairs"] == "neighbours" else "halves",
            rotary_sha256=rotary["sha256"] if rotary else None,
        )
    except (OSError, ValidationError, ValueError, KeyError, TypeError, AttributeError) as exc:
        reason = str(exc).splitlines()[0]
        raise WeightsError(
            f"{path} does not describe a teacher ({type(exc).__name__}: {reason}); restore it from a copy of "
            "the store"
        ) from exc


def _tables(folder: Path, described: _Described) -> RotaryTables | None:
    if described.rotary_sha256 is None:
        return None
    tables = _checked(folder / ROTARY, described.rotary_sha256)
    if tables.keys() != {"sin", "cos"} or any(table.ndim != 4 for table in tables.values()):
        raise WeightsError(f"{folder / ROTARY} does not hold tables of sines and cosines")
    return RotaryTables(sin=tables["sin"], cos=tables["cos"], pairs=described.pairs)


def _checked(path: Path, sha256: str) -> dict[str, Tensor]:
    tensors = read_tensors(path)
    if tensors_sha256(tensors) != sha256:
        what = "weights" if path.name == WEIGHTS else "tables"
        raise WeightsError(
            f"the {what} in {path.parent} are not those its config.json names; restore them from a copy of "
            "the store"
        )
    return tensors
