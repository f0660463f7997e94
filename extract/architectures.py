"""timm's Vision Transformers by name: which are supported, how an empty, a random or a hub's one is made, and
what timm records of their weights. With `backbone.py` and `fitting.py` the only files that know timm.

In: timm's name of a model. Out: a `VisionTransformer` or `Eva` without a classifier, or timm's record.

Those two classes cover DINOv2 (with and without registers), DINOv3, SigLIP and SigLIP2, CLIP, MAE, DeiT,
DeiT III, AugReg, EVA and EVA-02. Whatever else is a ViT to timm is refused by name, with the nearest that
works.
"""

from __future__ import annotations

import copy
import difflib
import re
from functools import lru_cache
from typing import Any, Final

import timm
import torch
from timm.data.config import resolve_data_config
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from activault.store.errors import ConfigError, WeightsError

from .preprocess import TeacherRules
from .rotary import RotaryTables

__all__ = [
    "Vit",
    "activation_of",
    "architecture_of",
    "build",
    "build_random",
    "embedded",
    "fill_buffers",
    "first_block",
    "from_hub",
    "license_of",
    "num_heads_of",
    "outline",
    "rotary_tables",
    "teacher_rules",
]

Vit = VisionTransformer | Eva
_MODULES: Final = ("vision_transformer", "deit", "eva")
_REFUSED: Final = {
    "flexivit": "a FlexiViT, whose patches and positions are resampled in a way of their own",
    "radio": "a RADIO, with one class token for each of its teachers and positions cut out of a larger grid",
    "sapiens2": "a Sapiens2, whose heads share keys and values in some blocks",
    "distilled": "a ViT with a distillation token beside the class token",
}
"""Parts of names -> what such a model is."""
_SIZES: Final = ("tiny", "small", "base", "large", "huge", "giant")
_DEFAULT: Final = "vit_base_patch14_reg4_dinov2"
_ACTIVATIONS: Final = {"gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "quick_gelu": "quick_gelu"}
"""transformers' word -> timm's."""
_VALUES: Final = (
    Tensor.uniform_,
    Tensor.normal_,
    Tensor.erfinv_,
    Tensor.mul_,
    Tensor.add_,
    Tensor.clamp_,
    Tensor.fill_,
    Tensor.zero_,
)
"""What initial weights are made by, in place."""
_LICENSES: Final = {"apache-2.0": "Apache-2.0", "mit": "MIT", "cc-by-nc-4.0": "CC-BY-NC-4.0"}


def architecture_of(name: str) -> str:
    """timm's architecture of a name, if it is supported; nothing is looked up outside timm's own table.

    Raises:
        ConfigError: timm does not know the name, or the model is no plain ViT.
    """
    architecture, _, tag = name.partition(".")
    if not timm.is_model(architecture) or (tag and name not in timm.list_models(pretrained=True)):
        known = [*_supported(), "demo"]
        known += timm.list_models(f"{architecture}.*", pretrained=True) if tag else []
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
        said = f"nearest names: {', '.join(near)}" if near else "`timm.list_models('vit_*')` lists names"
        raise ConfigError(f"timm has no model {name!r}; {said}")
    for part, meaning in _REFUSED.items():
        if part in architecture:
            raise _not_plain(name, meaning)
    if not timm.models.is_model_in_modules(architecture, _MODULES):
        raise _not_plain(name)
    return architecture


def _supported() -> list[str]:
    names = [name for module in _MODULES for name in timm.list_models(module=module)]
    return [name for name in names if not any(part in name for part in _REFUSED)]


def _not_plain(name: str, meaning: str = "") -> ConfigError:
    architecture = name.partition(".")[0].replace("_distilled", "")
    size = next((size for size in _SIZES if size in architecture), None)
    names = [other for other in _supported() if size is None or size in other]
    near = difflib.get_close_matches(architecture, names, n=1, cutoff=0.6) if size else []
    of_size = [other for other in (f"vit_{size}_patch14_reg4_dinov2",) if other in names]
    nearest = (near or of_size or [_DEFAULT])[0]
    what = f"is {meaning}" if meaning else "is not a plain ViT"
    return ConfigError(f"{name!r} {what}; the nearest that works is {nearest}")


def _create(name: str, **options: Any) -> Vit:
    vit: Any = timm.create_model(name, num_classes=0, **options)
    if type(vit) not in (VisionTransformer, Eva):
        raise _not_plain(name, f"a {type(vit).__name__}, not a plain ViT")
    if vit.attn_pool is not None:
        # SigLIP's pooling head is no part of a teacher whose tokens are read, as a classifier is none.
        vit.attn_pool = None
    found: Vit = vit
    return found


def build(architecture: str, image_size: tuple[int, int] | None = None, activation: str | None = None) -> Vit:
    """The empty model: no memory, no random numbers.

    Args:
        architecture: timm's name.
        image_size: height and width; None is the architecture's own.
        activation: transformers' word for that of the MLPs; None, or its own, is the architecture's.

    Raises:
        ConfigError: the activation is not one that a plain MLP can be given.
    """
    return copy.deepcopy(outline(architecture, image_size, activation))


class _NoValues(TorchFunctionMode):
    """Leaves out what cuts and scales drawn values, of tensors that have none: in Python it takes long."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function in _VALUES and args[0].is_meta:
            return args[0]
        return function(*args, **(kwargs or {}))


@lru_cache(maxsize=8)
def outline(
    architecture: str, image_size: tuple[int, int] | None = None, activation: str | None = None
) -> Vit:
    """The same to look at, not to change, so that it is made once.

    Raises as `build`.
    """
    options: dict[str, Any] = {} if image_size is None else {"img_size": image_size}
    with torch.device("meta"), _NoValues():
        vit = _create(architecture, **options)
        if activation in (None, activation_of(vit)):
            return vit
        if activation not in _ACTIVATIONS or activation_of(vit) is None:
            raise ConfigError(f"{architecture} cannot be built with the activation {activation!r}")
        return _create(architecture, act_layer=_ACTIVATIONS[activation], **options)


def build_random(architecture: str, seed: int) -> Vit:
    """The architecture as timm initialises it, without touching the caller's random numbers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _create(architecture)


def from_hub(name: str) -> Vit:
    """The model with the weights that timm's hub has for it.

    Raises:
        WeightsError: the hub is out of reach or has none.
    """
    try:
        return _create(name, pretrained=True)
    except (OSError, RuntimeError) as exc:
        reason = str(exc).splitlines()[0] if str(exc) else type(exc).__name__
        raise WeightsError(
            f"timm's hub gave no weights for {name!r} ({reason}); "
            "give a file with --weights, or take --teacher demo"
        ) from exc


def fill_buffers(vit: Vit, architecture: str) -> None:
    """Give an empty model, whose weights were assigned, the values that are no weights.

    They are rotary grids and fixed zero biases, which no weights file holds. They are copied from a model of
    one block that timm builds itself, so that they are timm's own in every version.
    """
    absent = [name for name, buffer in vit.named_buffers() if buffer.is_meta]
    if not absent:
        return
    with torch.random.fork_rng(devices=[]):
        small = dict(_create(architecture, img_size=vit.patch_embed.img_size, depth=1).named_buffers())
    for name in absent:
        module, _, buffer = name.rpartition(".")
        value = small[re.sub(r"^blocks\.\d+\.", "blocks.0.", name)].clone()
        vit.get_submodule(module).register_buffer(buffer, value, persistent=False)


def embedded(vit: Vit, images: Tensor) -> tuple[Tensor, Tensor | None]:
    """Tokens (B, tokens, dim) with their positions, and timm's rotary table where it has one."""
    found = vit._pos_embed(vit.patch_embed(images))
    return found if isinstance(found, tuple) else (found, None)


@torch.no_grad()  # not inference_mode: what is made in it could never be trained through
def rotary_tables(vit: Vit) -> RotaryTables | None:
    """What the blocks of a model in eval mode need beside the tokens, at its input size; None if nothing."""
    weight = vit.patch_embed.proj.weight
    image = torch.zeros(1, 3, *vit.patch_embed.img_size, dtype=weight.dtype, device=weight.device)
    joined = embedded(vit, image)[1]
    if joined is None:
        return None
    halves = any(getattr(part, "rotate_half", False) for part in first_block(vit).modules())
    return RotaryTables.of_joined(joined, "halves" if halves else "neighbours")


def teacher_rules(name: str) -> TeacherRules:
    """How timm prepares images for the weights of a name.

    Raises:
        ConfigError: timm does not record it.
    """
    config = resolve_data_config(pretrained_cfg=_record(name).to_dict())  # type: ignore[no-untyped-call]
    return TeacherRules(
        mean=config["mean"],
        std=config["std"],
        interpolation=config["interpolation"],
        crop_pct=config["crop_pct"],
        crop_mode=config["crop_mode"],
    )


def license_of(name: str) -> str:
    """Licence of the weights of a name, as timm records it."""
    recorded = _record(name).license
    return _LICENSES.get(recorded, recorded or "unknown")


def _record(name: str) -> Any:
    config = timm.get_pretrained_cfg(name)
    if config is None:
        raise ConfigError(f"timm does not record the mean and standard deviation of {name!r}; choose another")
    return config


def first_block(vit: Vit) -> Any:
    """The first block, whose parts differ by class; all blocks of a model are alike."""
    return vit.blocks[0]


def num_heads_of(vit: Vit) -> int:
    """Attention heads of a block, wherever in it they are said."""
    return next(int(part.num_heads) for part in first_block(vit).modules() if hasattr(part, "num_heads"))


def activation_of(vit: Vit) -> str | None:
    """The word that transformers has for the activation of a plain MLP; None for another one."""
    mlp: Any = getattr(first_block(vit), "mlp", None)
    if not hasattr(mlp, "act") or hasattr(mlp, "fc1_g") or hasattr(mlp, "gate_last"):
        return None
    kind = type(mlp.act).__name__
    if isinstance(mlp.act, nn.GELU) or kind == "GELU":
        return "gelu" if getattr(mlp.act, "approximate", "none") == "none" else "gelu_pytorch_tanh"
    return {"GELUTanh": "gelu_pytorch_tanh", "QuickGELU": "quick_gelu"}.get(kind, kind.lower())
