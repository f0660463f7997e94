"""Export: a run as one safetensors file, its config, and the one file of code that runs it.

    Run  ->  NAME.safetensors, NAME.json, NAME.py

NAME.py is `standalone.py` as it stands: PyTorch alone, no activault. NAME.json says all of the model in plain
numbers, what layer 0 is a layer of, and the hash of the tensors.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from keyword import iskeyword
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from activault.store.errors import ConfigError, RunError
from activault.store.files import file_sha256

from .blocks import DEPTH_HIDDEN, RecurrentBlock
from .checkpoint import disk_errors, write_atomically, write_json
from .finished import Run
from .raptor import Raptor

__all__ = ["Exported", "export_run"]

SUFFIXES = (".safetensors", ".json", ".py")


@dataclass(frozen=True, kw_only=True)
class Exported:
    """The files that were written."""

    tensors: Path
    """The model's tensors."""
    config: Path
    """What they are the tensors of."""
    code: Path
    """The module that runs them."""

    @property
    def paths(self) -> Sequence[Path]:
        """All of them."""
        return self.tensors, self.config, self.code


def export_run(run: Run, file: Path | str, *, overwrite: bool = False) -> Exported:
    """Write a finished run beside `file`, whose name may end in `.safetensors` or in nothing.

    Raises:
        ConfigError: the name is none of a module, or there are such files and `overwrite` is not asked for.
        RunError: the files cannot be written.
    """
    stem = _stem(Path(file))
    exported = Exported(**dict(zip(("tensors", "config", "code"), _paths(stem), strict=True)))
    there = [str(path) for path in exported.paths if path.exists()]
    if there and not overwrite:
        raise ConfigError(f"{', '.join(there)} exists; choose another name, or overwrite it")
    with disk_errors(stem):
        stem.parent.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.cpu().contiguous() for name, tensor in run.model.state_dict().items()}
    write_atomically(exported.tensors, lambda temporary: save_file(tensors, temporary))
    code = resources.files("activault.train").joinpath("standalone.py").read_text(encoding="utf-8")
    write_atomically(exported.code, lambda temporary: temporary.write_text(code, encoding="utf-8"))
    # Last: files that a config does not name yet are no export.
    write_json(exported.config, _record(run, exported.tensors))
    return exported


def _stem(file: Path) -> Path:
    if file.suffix == ".safetensors":
        file = file.with_suffix("")
    if not file.name or file.is_dir():
        raise ConfigError(f"an export is named by a file, such as {file / 'raptor'}; got the folder {file}")
    if not _can_be_imported(file.name):
        raise ConfigError(
            "an export is named NAME or NAME.safetensors, and NAME is imported as a module of Python: "
            "letters, digits and underscores, no digit first, no word of the language and no module that it "
            f"needs itself; got {file.name}: take another, such as {_name_like(file.name)}"
        )
    return file


def _can_be_imported(name: str) -> bool:
    """Whether `from NAME import load` finds the file, and what the file imports is not found in its place."""
    is_word = name.isidentifier() and not iskeyword(name) and not name.startswith("__")
    is_as_written = unicodedata.normalize("NFKC", name) == name  # Python looks for this form
    return is_word and is_as_written and name not in sys.stdlib_module_names | {"torch", "numpy"}


def _name_like(name: str) -> str:
    return re.sub("[^A-Za-z0-9]+", "_", f"run_{name}").strip("_")


def _paths(stem: Path) -> list[Path]:
    return [stem.with_name(stem.name + suffix) for suffix in SUFFIXES]


def _record(run: Run, tensors: Path) -> dict[str, Any]:
    return {
        "format": "activault raptor",
        "version": 1,
        "tensors": tensors.name,
        "sha256": file_sha256(tensors),
        "model": _plain(run.model),
        "layout": run.layout.model_dump(mode="json"),
        "teacher_sha256": run.teacher_sha256,
        "store_digest": run.store_digest,
        "recipe": run.recipe.model_dump(mode="json"),
    }


def _plain(model: Raptor) -> dict[str, Any]:
    """All that the one-file module needs, nothing left to be derived."""
    config, block = model.config, model.blocks[0]
    assert isinstance(block, RecurrentBlock)
    if model.rotary_sin is not None and config.rotary is not None:
        if model.rotary_sin.shape[-2] != config.rotary.num_patches:
            raise RunError("a model is exported with the rotary tables of its own grid; load the run again")
        rotary = {"pairs": config.rotary.pairs, "shape": list(model.rotary_sin.shape)}
    else:
        rotary = None
    return {
        "dim": config.dim,
        "num_heads": config.num_heads,
        "num_layers": config.num_layers,
        "phases": [list(phase) for phase in model.phases],
        "gated": block.mlp.gated,
        "mlp_hidden": block.mlp.fc2.in_features,
        "depth": config.depth,
        "depth_hidden": DEPTH_HIDDEN,
        "qkv_bias": config.qkv_bias,
        "eps": config.eps,
        "lora_rank": config.lora_rank,
        "rotary": rotary,
    }
