"""Names of Hugging Face `transformers` to timm's: a table a family, and what fuses with what.

In: tensors under the names of a file that `save_pretrained` wrote (Dinov2, Dinov2WithRegisters, DINOv3 ViT,
ViT and DeiT without distillation, ViTMAE, the vision half of CLIP, SigLIP and SigLIP2), and the names that
the timm model wants. Out: the same weights under those; classifiers, decoders and text halves are left out.

What is more than a name:
- query, key and value become one matrix where timm has one; a bias that a family leaves out (DINOv3's key)
  is 0 there, and timm's EVA blocks have no place for it at all;
- the position of CLS is added to CLS where timm's positions are of patches alone (DINOv2 with registers);
- positions may lack the batch axis (CLIP, SigLIP), and SigLIP2's patches are flattened rows (p, p, 3);
- gate and value of a gated MLP are two matrices in DINOv3, and either two or one in timm.
`transformers` is not needed for any of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from activault.store.errors import WeightsError

__all__ = ["KNOWN_NAMINGS", "Naming", "naming_of", "to_timm"]

_LINEAR = ("weight", "bias")
_UNUSED = (
    *("pooler.", "classifier.", "decoder.", "head.", "text_model.", "text_projection.", "visual_projection."),
    *("cls_classifier.", "distillation_classifier.", "logit_scale", "logit_bias", "embeddings.position_ids"),
    *("embeddings.mask_token", "lm_head.", "rope_embeddings."),
)
"""Beginnings of names, beside the encoder's own, that no token depends on."""


@dataclass(frozen=True, kw_only=True)
class Naming:
    """How one family of transformers names its tensors; theirs on the left, ours on the right."""

    name: str
    marker: str
    """The patch embedding's weight; what stands before it in a file is a prefix of the whole encoder."""
    block: str
    """Prefix of a block, `{}` is its number."""
    first: str
    """The module that a block begins with; tells families with the same marker apart."""
    stem: Mapping[str, str]
    """Outside the blocks, whole names."""
    modules: Mapping[str, str]
    """In a block, without `.weight` and `.bias`; `q`, `k`, `v`, `gate` and `up` are in no timm model."""
    scales: Mapping[str, str] = field(default_factory=dict)
    """In a block, whole names of LayerScale."""


_ATTENTION = {
    "attention.attention.query": "q",
    "attention.attention.key": "k",
    "attention.attention.value": "v",
    "attention.output.dense": "attn.proj",
}
_STEM = {
    "embeddings.cls_token": "cls_token",
    "embeddings.position_embeddings": "pos_embed",
    "embeddings.register_tokens": "reg_token",
    "embeddings.patch_embeddings.projection.weight": "patch_embed.proj.weight",
    "embeddings.patch_embeddings.projection.bias": "patch_embed.proj.bias",
    "layernorm.weight": "norm.weight",
    "layernorm.bias": "norm.bias",
}
_SCALES = {"layer_scale1.lambda1": "ls1", "layer_scale2.lambda1": "ls2"}
_NAMINGS = (
    Naming(
        name="Dinov2 or Dinov2WithRegisters",
        marker="embeddings.patch_embeddings.projection.weight",
        block="encoder.layer.{}.",
        first="norm1",
        stem=_STEM,
        modules={
            **_ATTENTION,
            "norm1": "norm1",
            "norm2": "norm2",
            "mlp.fc1": "mlp.fc1",
            "mlp.fc2": "mlp.fc2",
            "mlp.weights_in": "mlp.fc1",  # the giant's: gate, then value, as timm packs them too
            "mlp.weights_out": "mlp.fc2",
        },
        scales=_SCALES,
    ),
    Naming(
        name="ViT, DeiT or ViTMAE",
        marker="embeddings.patch_embeddings.projection.weight",
        block="encoder.layer.{}.",
        first="layernorm_before",
        stem=_STEM,
        modules={
            **_ATTENTION,
            "layernorm_before": "norm1",
            "layernorm_after": "norm2",
            "intermediate.dense": "mlp.fc1",
            "output.dense": "mlp.fc2",
        },
    ),
    Naming(
        name="DINOv3 ViT",
        marker="embeddings.patch_embeddings.weight",
        block="layer.{}.",
        first="norm1",
        stem={
            "embeddings.cls_token": "cls_token",
            "embeddings.register_tokens": "reg_token",
            "embeddings.patch_embeddings.weight": "patch_embed.proj.weight",
            "embeddings.patch_embeddings.bias": "patch_embed.proj.bias",
            "norm.weight": "norm.weight",
            "norm.bias": "norm.bias",
        },
        modules={
            "attention.q_proj": "q",
            "attention.k_proj": "k",
            "attention.v_proj": "v",
            "attention.o_proj": "attn.proj",
            "norm1": "norm1",
            "norm2": "norm2",
            "mlp.gate_proj": "gate",
            "mlp.up_proj": "up",
            "mlp.down_proj": "mlp.fc2",
        },
        scales=_SCALES,
    ),
    Naming(
        name="CLIP, SigLIP or SigLIP2 vision",
        marker="embeddings.patch_embedding.weight",
        block="encoder.layers.{}.",
        first="layer_norm1",
        stem={
            "embeddings.class_embedding": "cls_token",
            "embeddings.position_embedding.weight": "pos_embed",
            "embeddings.patch_embedding.weight": "patch_embed.proj.weight",
            "embeddings.patch_embedding.bias": "patch_embed.proj.bias",
            "pre_layrnorm.weight": "norm_pre.weight",
            "pre_layrnorm.bias": "norm_pre.bias",
            "post_layernorm.weight": "norm.weight",
            "post_layernorm.bias": "norm.bias",
        },
        modules={
            "self_attn.q_proj": "q",
            "self_attn.k_proj": "k",
            "self_attn.v_proj": "v",
            "self_attn.out_proj": "attn.proj",
            "layer_norm1": "norm1",
            "layer_norm2": "norm2",
            "mlp.fc1": "mlp.fc1",
            "mlp.fc2": "mlp.fc2",
        },
    ),
)
KNOWN_NAMINGS = "; ".join(naming.name for naming in _NAMINGS)
"""For messages."""


def naming_of(names: Collection[str]) -> tuple[Naming, str] | None:
    """The family that a file's names are of, and the prefix they have in it; None if they are of none."""
    for naming in _NAMINGS:
        first = f"{naming.block.format(0)}{naming.first}.weight"
        for name in names:
            prefix = name.removesuffix(naming.marker)
            if prefix != name and prefix + first in names:
                return naming, prefix
    return None


def to_timm(
    tensors: Mapping[str, Tensor],
    naming: Naming,
    prefix: str,
    *,
    wanted: Collection[str],
    patch: tuple[int, int],
    patch_positions_only: bool,
) -> dict[str, Tensor]:
    """The encoder's tensors under timm's names; what has no place in timm's model keeps its own name.

    Args:
        tensors: of a file.
        naming: of its names.
        prefix: of its names.
        wanted: names of timm's model.
        patch: height and width of a patch in pixels.
        patch_positions_only: whether timm's positions are of patches alone.

    Raises:
        WeightsError: the file is of a model with a distillation token.
    """
    left = {
        name.removeprefix(prefix): tensor.float()
        for name, tensor in tensors.items()
        if name.startswith(prefix) and not name.removeprefix(prefix).startswith(_UNUSED)
    }
    if "embeddings.distillation_token" in left:
        raise WeightsError(
            "these weights have a distillation token beside CLS, which is no plain ViT; take DeiT's weights "
            "without distillation"
        )
    stem = {ours: left.pop(theirs) for theirs, ours in naming.stem.items() if theirs in left}
    found = _stem(stem, patch, patch_positions_only)
    block = 0
    while parts := _block(left, naming, block):
        found |= {f"blocks.{block}.{name}": tensor for name, tensor in _fused(parts, block, wanted).items()}
        block += 1
    return found | left


def _stem(stem: dict[str, Tensor], patch: tuple[int, int], patch_positions_only: bool) -> dict[str, Tensor]:
    """CLS and positions with a batch axis, patches as a convolution."""
    weight = stem["patch_embed.proj.weight"]
    if weight.ndim == 2 and weight.shape[1] == 3 * patch[0] * patch[1]:
        stem["patch_embed.proj.weight"] = weight.view(-1, *patch, 3).permute(0, 3, 1, 2)
    for name in ("cls_token", "pos_embed"):
        if name in stem:
            stem[name] = stem[name].reshape(1, -1, stem[name].shape[-1])
    if patch_positions_only and "cls_token" in stem and "pos_embed" in stem:
        stem["cls_token"] = stem["cls_token"] + stem["pos_embed"][:, :1]
        stem["pos_embed"] = stem["pos_embed"][:, 1:]
    return stem


def _block(left: dict[str, Tensor], naming: Naming, number: int) -> dict[str, Tensor]:
    """One block's tensors under our names, taken out of `left`; empty after the last block."""
    prefix, parts = naming.block.format(number), {}
    for theirs, ours in naming.modules.items():
        for kind in _LINEAR:
            if (name := f"{prefix}{theirs}.{kind}") in left:
                parts[f"{ours}.{kind}"] = left.pop(name)
    for theirs, ours in naming.scales.items():
        if prefix + theirs in left:
            parts[ours] = left.pop(prefix + theirs)
    return parts


def _fused(parts: dict[str, Tensor], block: int, wanted: Collection[str]) -> dict[str, Tensor]:
    """One block as the timm model has it."""
    has = {name.removeprefix(f"blocks.{block}.") for name in wanted if name.startswith(f"blocks.{block}.")}
    found = _attention({n: parts.pop(n) for n in list(parts) if n.startswith(("q.", "k.", "v."))}, has)
    gated = "gate.weight" in parts
    if gated and "mlp.fc1_g.weight" not in has:
        for kind in _LINEAR:
            found[f"mlp.fc1.{kind}"] = torch.cat([parts.pop(f"gate.{kind}"), parts.pop(f"up.{kind}")])
    scale = "gamma_{}" if "gamma_1" in has else "ls{}.gamma"
    places = {"gate": "mlp.fc1_g", "up": "mlp.fc1_x" if gated else "mlp.fc1"}
    for name, tensor in parts.items():
        module, _, kind = name.rpartition(".")
        found[f"{places.get(module, module)}.{kind}" if module else scale.format(name[-1])] = tensor
    return found


def _attention(parts: dict[str, Tensor], has: Collection[str]) -> dict[str, Tensor]:
    """Query, key and value, in one matrix or three, with the biases that the timm block has places for."""
    biases = {part: parts[f"{part}.bias"] for part in "qkv" if f"{part}.bias" in parts}
    if "attn.qkv.weight" in has:
        found = {"attn.qkv.weight": torch.cat([parts[f"{part}.weight"] for part in "qkv"])}
        if "attn.qkv.bias" in has:
            zero = torch.zeros(len(parts["q.weight"]))
            found["attn.qkv.bias"] = torch.cat([biases.pop(part, zero) for part in "qkv"])
            return found
        places = {part: f"attn.{part}_bias" for part in "qkv"}
    else:
        found = {f"attn.{part}_proj.weight": parts[f"{part}.weight"] for part in "qkv"}
        places = {part: f"attn.{part}_proj.bias" for part in "qkv"}
    for part, bias in biases.items():
        # A bias of zeros is as good as none: Meta's distilled DINOv3 have them.
        if places[part] in has or bool(bias.any()):
            found[places[part]] = bias
    return found
