"""The tensors of a teacher's block under the names of timm's plain ViT block, whatever its own are.

    nn.Module  ->  {"norm1.weight": (dim,), "attn.qkv.weight": (3 dim, dim), "ls1.gamma": (dim,), ...}

Blocks with rotary positions (DINOv3, EVA-02, RoPE-ViT) come wrapped with their table, call their LayerScales
`gamma_1` and `gamma_2`, keep the biases of queries and values apart (keys have none), or have three matrices
where others have one. What has no counterpart keeps its name, for `teacher_init.py` to refuse.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .rotary import Table

__all__ = ["bare_block", "block_tensors", "has_rotary", "rotary_table"]

PLAIN = {"gamma_1": "ls1.gamma", "gamma_2": "ls2.gamma"}


def bare_block(teacher: nn.Module) -> nn.Module:
    """The block inside a wrapper that carries its rotary table; the block itself where there is none."""
    inner = getattr(teacher, "block", None)
    return inner if isinstance(inner, nn.Module) and hasattr(teacher, "rotary") else teacher


def has_rotary(teacher: nn.Module) -> bool:
    """Whether a block carries a rotary table."""
    return bare_block(teacher) is not teacher


def rotary_table(teacher: nn.Module) -> tuple[Table | None, int]:
    """The table that a block carries, and a number of tokens that it can be run on."""
    joined = getattr(teacher, "rotary", None)
    if not isinstance(joined, Tensor):
        return None, 5
    sin, cos = joined.view(1, -1, *joined.shape[-2:]).chunk(2, dim=-1)
    prefix = getattr(getattr(bare_block(teacher), "attn", None), "num_prefix_tokens", 0)
    return (sin, cos), int(prefix) + joined.shape[-2]


def block_tensors(teacher: nn.Module) -> dict[str, Tensor]:
    """All tensors that a file would hold of the block, detached."""
    given = {
        PLAIN.get(name, name): tensor.detach() for name, tensor in bare_block(teacher).state_dict().items()
    }
    _join_biases(given)
    _join_parts(given, "attn.qkv", ("attn.q_proj", "attn.k_proj", "attn.v_proj"))
    _join_parts(given, "mlp.fc1", ("mlp.fc1_g", "mlp.fc1_x"))
    return given


def _join_biases(given: dict[str, Tensor]) -> None:
    """Queries' and values' biases as the one of all three; keys have zeros."""
    if {"attn.qkv.weight", "attn.q_bias", "attn.v_bias"} <= given.keys():
        query, value = given.pop("attn.q_bias"), given.pop("attn.v_bias")
        given["attn.qkv.bias"] = torch.cat([query, torch.zeros_like(query), value])


def _join_parts(given: dict[str, Tensor], whole: str, parts: tuple[str, ...]) -> None:
    """Linear maps of the same input as one; a bias that only some have is zero in the others."""
    weights = [given.get(f"{part}.weight") for part in parts]
    present = [weight for weight in weights if weight is not None]
    if len(present) < len(parts):
        return
    biases = [given.pop(f"{part}.bias", None) for part in parts]
    if any(bias is not None for bias in biases):
        given[f"{whole}.bias"] = torch.cat(
            [
                weight.new_zeros(len(weight)) if bias is None else bias
                for weight, bias in zip(present, biases, strict=True)
            ]
        )
    given[f"{whole}.weight"] = torch.cat([given.pop(f"{part}.weight") for part in parts])
