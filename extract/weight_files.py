"""The tensors of a weights file or folder, under the names that stand in it.

In: one `.safetensors` file, one PyTorch file of tensors (`.pth`, `.bin`), or a folder as transformers'
`save_pretrained` writes it: `model.safetensors`, or several files with `model.safetensors.index.json`, or the
same as `.bin`. Out: `{name: tensor}`, and the `config.json` beside them where there is one.

Nothing in a file is run: files not named `.safetensors` are read by PyTorch with `weights_only=True`. Names
of files that stand in an index are names in its own folder, never paths.
"""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from activault.store.errors import WeightsError

__all__ = ["read_config", "read_tensors"]

FOLDER_FILES = ("model.safetensors", "pytorch_model.bin")
"""What a folder is searched for, in this order; each may also be an index, with `.index.json` after it."""
_KINDS = "give a .safetensors, .pth or .bin file, or a folder that transformers' save_pretrained wrote"
_LARGEST_JSON = 1 << 24
_PARALLEL = "module."
"""What torch puts before every name of a model that several GPUs train, as in OpenCLIP's checkpoints."""
# What the readers raise on files that are damaged or are something else.
_READ_ERRORS = (
    *(SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, OSError),
    *(ValueError, LookupError, TypeError, AttributeError, struct.error),
)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of one weights file or folder, under its own names.

    Raises:
        WeightsError: it is absent, damaged, or holds anything but tensors.
    """
    if path.is_dir():
        return _read_folder(path)
    if path.name.endswith(".index.json"):
        return _read_sharded(path)
    return _read_file(path)


def read_config(path: Path) -> Mapping[str, Any]:
    """The `config.json` of transformers in the folder `path`, or beside the file `path`; empty without one.

    Raises:
        WeightsError: it is damaged.
    """
    place = (path if path.is_dir() else path.parent) / "config.json"
    if not place.is_file():
        return {}
    found = _read_json(place)
    return found if "model_type" in found else {}


def _read_folder(folder: Path) -> dict[str, Tensor]:
    for name in FOLDER_FILES:
        if (folder / name).is_file():
            return _read_file(folder / name)
        if (folder / f"{name}.index.json").is_file():
            return _read_sharded(folder / f"{name}.index.json")
    raise WeightsError(f"the folder {folder} has neither {' nor '.join(FOLDER_FILES)}; {_KINDS}")


def _read_sharded(index: Path) -> dict[str, Tensor]:
    """All tensors of the files that an index lists, each from the file that it is said to be in."""
    if not index.is_file():
        raise WeightsError(f"there is no weights file at {index}; {_KINDS}")
    places = _read_json(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise WeightsError(f"{index} lists no weights; restore the folder from a copy")
    tensors: dict[str, Tensor] = {}
    for file in sorted({str(file) for file in places.values()}):
        if Path(file).name != file or file in ("", ".", ".."):
            raise WeightsError(f"{index} may name files of its own folder alone; got {file!r}")
        held = _read_file(index.parent / file)
        tensors |= {name: held[name] for name, place in places.items() if place == file and name in held}
    if missing := sorted(places.keys() - tensors.keys()):
        raise WeightsError(f"{index} lists weights that its files do not hold: {', '.join(missing[:3])}")
    return tensors


def _read_json(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_LARGEST_JSON))
    except (OSError, ValueError, RecursionError) as exc:
        raise WeightsError(f"{path} is not JSON that can be read ({exc}); restore it from a copy") from exc
    if not isinstance(found, dict):
        raise WeightsError(f"{path} holds no JSON object; restore it from a copy")
    return found


def _read_file(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise WeightsError(f"there is no weights file at {path}; {_KINDS}")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        found = torch.load(path, map_location="cpu", weights_only=True)
    except _READ_ERRORS as exc:
        reason = str(exc).splitlines()[0] if str(exc) else type(exc).__name__
        if "weights_only" in reason:  # torch's advice is to run what is in the file
            reason = "it holds more than tensors, or is no file of PyTorch's"
        raise WeightsError(
            f"{path} is not a file of tensors that can be read safely: {reason}; restore it from a copy, or "
            f"{_KINDS}"
        ) from exc
    return _only_tensors(found, path)


def _only_tensors(found: object, path: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint, unwrapped from the `model` or `state_dict` it may sit in."""
    for wrapper in ("model", "state_dict"):
        if isinstance(found, Mapping) and isinstance(found.get(wrapper), Mapping):
            found = found[wrapper]
    tensors = {}
    if isinstance(found, Mapping):
        tensors = {str(name): value for name, value in found.items() if isinstance(value, Tensor)}
    if not tensors:
        raise WeightsError(
            f"{path} holds no tensors by name; give a state dict saved as .safetensors or .pth"
        )
    if all(name.startswith(_PARALLEL) for name in tensors):
        tensors = {name.removeprefix(_PARALLEL): value for name, value in tensors.items()}
    return tensors
