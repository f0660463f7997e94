"""A teacher's two files, as they travel with a store: `model.safetensors` and `config.json`.

The weights are kept at their native position grid, so that the same teacher gives the same bytes at every
input size. Reading checks them against the hash in `config.json` before a model is made from them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from activault.store.errors import WeightsError
from activault.store.provenance import Preprocessing, TeacherInfo

from .weights import read_tensors, tensors_sha256

__all__ = ["TeacherFiles", "read_teacher", "write_teacher"]


@dataclass(frozen=True)
class TeacherFiles:
    """What the two files hold."""

    info: TeacherInfo
    preprocessing: Preprocessing
    native_size: tuple[int, int]
    """Height and width in pixels that the position grid of the weights stands for."""
    tensors: dict[str, Tensor]
    """The weights under timm's names."""


def write_teacher(files: TeacherFiles, folder: Path) -> None:
    """Write both files into an existing folder.

    Raises:
        OSError: they cannot be written.
    """
    try:
        save_file(files.tensors, folder / "model.safetensors")
        (folder / "model.safetensors").chmod(
            0o644
        )  # it is written for the owner alone, and stores are shared
    except SafetensorError as exc:  # how that library tells of a full disk
        raise OSError(f"model.safetensors: {exc}") from exc
    config = {
        "info": files.info.model_dump(mode="json"),
        "preprocessing": files.preprocessing.model_dump(mode="json"),
        "native_size": list(files.native_size),
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def read_teacher(folder: Path) -> TeacherFiles:
    """Both files, checked against each other.

    Raises:
        WeightsError: they are absent, damaged or altered.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text())
        info = TeacherInfo.model_validate(config["info"])
        preprocessing = Preprocessing.model_validate(config["preprocessing"])
        height, width = map(int, config["native_size"])
    except (OSError, ValidationError, ValueError, KeyError, TypeError) as exc:
        reason = str(exc).splitlines()[0]
        raise WeightsError(
            f"{path} does not describe a teacher ({type(exc).__name__}: {reason}); restore it from a copy of "
            "the store"
        ) from exc
    tensors = read_tensors(folder / "model.safetensors")
    if tensors_sha256(tensors) != info.weights_sha256:
        raise WeightsError(
            f"the weights in {folder} are not those its config.json names; restore them from a copy of the "
            "store"
        )
    return TeacherFiles(info=info, preprocessing=preprocessing, native_size=(height, width), tensors=tensors)
