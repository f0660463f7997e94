"""Reads a teacher's block as the tensors of a recurrent block, and refuses one that computes something else.

    nn.Module with timm's names  ->  {"norm1.weight": (dim,), "attn.qkv.weight": (3 dim, dim), ...}

A copied block must equal the teacher's block: everything that it computes otherwise (other heads, epsilon or
activation, normalised queries, other positions) is an error, never left out in silence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from activault.store.errors import ConfigError

from .blocks import RecurrentBlock
from .teacher_names import bare_block, block_tensors, has_rotary

__all__ = ["BlockChoice", "plain_width", "teacher_tensors"]

BlockChoice = Literal["first", "middle", "last", "mean"]

# A teacher may lack these; the value makes ours compute the same without them.
NEUTRAL = {"ls1.gamma": 1.0, "ls2.gamma": 1.0, "attn.qkv.bias": 0.0, "attn.proj.bias": 0.0}


def plain_width(blocks: Sequence[nn.Module]) -> int | None:
    """Hidden width of the teacher's plain MLP, which is not 4 dim in every ViT; None without such an MLP."""
    first = getattr(getattr(bare_block(blocks[0]), "mlp", None), "fc1", None) if len(blocks) else None
    return first.out_features if isinstance(first, nn.Linear) else None


def teacher_tensors(teacher: nn.Module, block: RecurrentBlock, eps: float) -> dict[str, Tensor]:
    """The teacher block's tensors under this block's names, on this block's device; what comes on top aside.

    Raises:
        ConfigError: the two blocks do not compute the same function of their tensors.
    """
    given = block_tensors(teacher)
    wanted = {
        name: tensor
        for name, tensor in block.state_dict().items()
        if not name.startswith("depth.") and ".lora." not in name
    }
    if unknown := sorted(given.keys() - wanted.keys()):
        raise ConfigError(
            f"a teacher's block is copied whole, but Raptor's block has no place for {', '.join(unknown)}; "
            "use init = 'random'"
        )
    tensors = {}
    for name, own in wanted.items():
        if name not in given and name not in NEUTRAL:
            raise ConfigError(f"the teacher's block has no {name}; use init = 'random'")
        tensor = given.get(name)
        if tensor is None:
            tensor = torch.full_like(own, NEUTRAL[name])
        if tensor.shape != own.shape:
            raise ConfigError(
                f"a teacher's block is copied tensor by tensor, but {name} is {tuple(tensor.shape)} in the "
                f"teacher and {tuple(own.shape)} in Raptor; use mlp = 'gelu' for a teacher with a plain MLP, "
                "or init = 'random'"
            )
        tensors[name] = tensor.to(own)
    if has_rotary(teacher) != (block.attn.pairs is not None):
        raise ConfigError(
            f"the teacher's block has {'rotary' if has_rotary(teacher) else 'no rotary'} positions and "
            "Raptor's has not the same; give the teacher's tables to the model, or none for such a teacher"
        )
    _check_attributes(bare_block(teacher), block, eps)
    return tensors


def _check_attributes(teacher: nn.Module, block: RecurrentBlock, eps: float) -> None:
    """Compare what no tensor's shape shows; an attribute that the teacher does not have is not compared."""
    attention, mlp, norm = (getattr(teacher, name, None) for name in ("attn", "mlp", "norm1"))
    heads = getattr(attention, "num_heads", block.attn.num_heads)
    if heads != block.attn.num_heads:
        raise ConfigError(
            f"the teacher's block has {heads} heads and Raptor's {block.attn.num_heads}; set num_heads"
        )
    if getattr(norm, "eps", eps) != eps:
        raise ConfigError(
            f"the teacher's norms have eps {getattr(norm, 'eps', None)} and Raptor's {eps}; set model.eps"
        )
    activation = getattr(mlp, "act", None)
    if activation is None:
        return
    if block.mlp.gated:
        same = isinstance(activation, nn.SiLU) and not getattr(mlp, "gate_last", False)
    else:
        same = isinstance(activation, nn.GELU) and activation.approximate == "none"
    if not same:
        raise ConfigError(
            f"Raptor's MLP is a {'SiLU-gated' if block.mlp.gated else 'GELU'} one and the teacher's has "
            f"{activation}; use init = 'random'"
        )
