"""A timm model with the weights of a file, whoever named them: timm, Meta, OpenCLIP or transformers.

In: timm's name of an architecture and a weights file or folder. Out: that model, every tensor assigned, at
the position grid of the file. timm's and Meta's names go through timm's own mapping, transformers' through
ours (`transformers_names.py`). Nothing is resampled to make it fit, and nothing is left out but heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import timm
from timm.models.eva import Eva
from timm.models.eva import checkpoint_filter_fn as eva_names
from timm.models.vision_transformer import checkpoint_filter_fn as vit_names
from torch import Tensor

from activault.store.errors import WeightsError

from .architectures import Vit, activation_of, build, fill_buffers, first_block, num_heads_of
from .transformers_names import KNOWN_NAMINGS, naming_of, to_timm
from .weight_files import read_config, read_tensors
from .weights import assign, position_side

__all__ = ["fitted", "fitted_from"]

_HEADS: Final = ("head", "attn_pool.")
"""Beginnings of timm's names that no token depends on."""
_TANH: Final = "gelu_pytorch_tanh"
"""SigLIP was trained with it and has it in transformers; most of timm's SigLIP compute the exact GELU."""
_FINE_EPS: Final = 1e-6
"""transformers' ViT says 1e-12 where the weights were trained with 1e-6; below this they are one."""


def fitted_from(architecture: str, path: Path) -> Vit:
    """The architecture with the weights in a file or folder.

    Raises:
        WeightsError: the weights cannot be read or are another model's.
    """
    tensors, config = read_tensors(path), read_config(path)
    return fitted(architecture, tensors, str(path), config)


def fitted(
    architecture: str, tensors: Mapping[str, Tensor], source: str, config: Mapping[str, Any] | None = None
) -> Vit:
    """The architecture with tensors under any of the known names.

    Args:
        architecture: timm's name.
        tensors: of a file.
        source: the file, for messages.
        config: transformers' `config.json` beside it, if there is one; it says what no tensor shows.

    Raises:
        WeightsError: a tensor is missing, left over or of another shape, or the config is another model's.
    """
    vit, complaint = build(architecture), f"{source} does not fit {architecture}"
    if config and activation_of(vit) == "gelu" and _vision(config).get("hidden_act") == _TANH:
        vit = build(architecture, activation=_TANH)
    naming = naming_of(tensors)
    try:
        if naming is not None:
            tensors = to_timm(
                tensors,
                *naming,
                wanted=vit.state_dict().keys(),
                patch=vit.patch_embed.patch_size,
                patch_positions_only=vit.no_embed_class,
            )
            vit = _at_grid_of(tensors, architecture, vit)
        else:
            vit, tensors = _mapped_by_timm(dict(tensors), architecture, vit, source)
    except (RuntimeError, KeyError, AttributeError, ValueError, IndexError, TypeError) as exc:
        raise WeightsError(f"{complaint}: its names cannot be mapped ({exc})") from exc
    if naming is not None and config:
        _check_config(config, vit, architecture, complaint)
    tensors = {name: t.float().contiguous() for name, t in tensors.items() if not name.startswith(_HEADS)}
    if "blocks.0.attn.q_bias" in tensors and "blocks.0.attn.q_bias" not in vit.state_dict():
        raise WeightsError(_biased(architecture))
    assign(vit, tensors, complaint)
    fill_buffers(vit, architecture)
    return vit


def _at_grid_of(tensors: Mapping[str, Tensor], architecture: str, vit: Vit) -> Vit:
    """The model at the file's own position grid: positions that are resampled twice are blurred."""
    side = position_side(tensors, vit.num_prefix_tokens)
    if side is None:
        return vit
    patch = vit.patch_embed.patch_size
    return build(architecture, (side * patch[0], side * patch[1]), activation_of(vit))


def _mapped_by_timm(
    tensors: dict[str, Tensor], architecture: str, vit: Vit, source: str
) -> tuple[Vit, dict[str, Tensor]]:
    """timm's and Meta's names, and those of OpenCLIP and others that timm converts itself."""
    if "register_tokens" in tensors:
        # timm knows Meta's naming by this key, which some copies of the files leave out.
        tensors.setdefault("mask_token", tensors["register_tokens"][:0])
    _refuse_other_patch(tensors, vit, f"{source} does not fit {architecture}")
    vit = _at_grid_of(tensors, architecture, vit)
    if isinstance(vit, Eva):
        mapped = eva_names(_without_zero_biases(tensors, vit, architecture), vit)
    else:
        mapped = vit_names(tensors, vit, adapt_layer_scale=True)
    if "patch_embed.proj.weight" not in mapped or not any(name.startswith("blocks.") for name in mapped):
        found = ", ".join(sorted(tensors)[:3])
        raise WeightsError(
            f"the names in {source} are of no Vision Transformer known here: there are {len(tensors)}, such "
            f"as {found}; known are timm's, Meta's DINOv2 and DINOv3, OpenCLIP's, and of transformers "
            f"{KNOWN_NAMINGS}"
        )
    return vit, mapped


def _refuse_other_patch(tensors: Mapping[str, Tensor], vit: Vit, complaint: str) -> None:
    """timm would resample the patch embedding in silence, which makes another model."""
    wanted = tuple(vit.patch_embed.patch_size)
    for name, tensor in tensors.items():
        embeds = name.endswith(("patch_embed.proj.weight", "conv1.weight")) and tensor.ndim == 4
        if embeds and (found := tuple(tensor.shape[2:])) != wanted:
            raise WeightsError(f"{complaint}: its patches are {found} pixels, and here {wanted}")


def _without_zero_biases(tensors: dict[str, Tensor], vit: Vit, architecture: str) -> dict[str, Tensor]:
    """Meta's DINOv3 for a model without biases of queries and values, if they are 0 in the file.

    timm leaves them out by itself, whatever they are. Those of keys are masked in Meta's own code.
    """
    if "storage_tokens" not in tensors or "blocks.0.attn.q_bias" in vit.state_dict():
        return tensors
    biases = {name: tensor.chunk(3) for name, tensor in tensors.items() if name.endswith("attn.qkv.bias")}
    if any(bool(query.any() or value.any()) for query, _, value in biases.values()):
        raise WeightsError(_biased(architecture))
    return {name: tensor for name, tensor in tensors.items() if name not in biases}


def _biased(architecture: str) -> str:
    """DINOv3 comes in both forms."""
    other = f"{architecture}_qkvb"
    remedy = f"; take {other}" if timm.is_model(other) else ""
    return f"the weights have biases of queries and values, and {architecture} has none{remedy}"


def _vision(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What concerns the images, of a model of images and text."""
    found = config.get("vision_config")
    return found if isinstance(found, dict) else config


def _check_config(config: Mapping[str, Any], vit: Vit, architecture: str, complaint: str) -> None:
    """What the tensors' shapes do not show: heads, activation, epsilon, the rotary temperature."""
    config = _vision(config)
    rope = getattr(vit, "rope", None)
    pairs = {
        "heads": (config.get("num_attention_heads"), num_heads_of(vit)),
        "rotary temperature": (config.get("rope_theta"), getattr(rope, "temperature", None)),
    }
    for what, (theirs, ours) in pairs.items():
        if theirs is not None and ours is not None and theirs != ours:
            raise WeightsError(f"{complaint}: its config.json says {theirs} {what}, and here are {ours}")
    eps: Any = config.get("layer_norm_eps")
    ours_eps: Any = getattr(getattr(first_block(vit), "norm1", None), "eps", eps)
    if isinstance(eps, float) and eps != ours_eps and max(eps, ours_eps) > _FINE_EPS:
        raise WeightsError(f"{complaint}: its config.json says an epsilon of {eps}, and here is {ours_eps}")
    theirs, ours = config.get("hidden_act"), activation_of(vit)
    if isinstance(theirs, str) and ours is not None and theirs != ours:
        other = architecture.replace("_clip_", "_clip_quickgelu_")
        remedy = f"; take {other}" if theirs == "quick_gelu" and timm.is_model(other) else ""
        raise WeightsError(
            f"{complaint}: its config.json says the activation {theirs}, and here is {ours}{remedy}"
        )
