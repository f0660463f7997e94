"""Reads a teacher's block as the tensors of a recurrent block, and refuses one that computes something else.

    nn.Module with timm's names  ->  {"norm1.weight": (dim,), "attn.qkv.weight": (3 dim, dim), ...}

A copied block must equal the teacher's block: everything that it computes otherwise (other heads, epsilon or
activation, normalised queries, rotary positions) is an error, never left out in silence. What can be named is
named; at the end both run on the same tokens, since blocks that differ only in the order of their parts, such
as timm's with norms behind the branches, have the same tensors.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Final, Literal

import torch
from torch import Tensor, nn

from activault.store.errors import ConfigError

from .blocks import RecurrentBlock

__all__ = ["BlockChoice", "plain_width", "teacher_tensors"]

BlockChoice = Literal["first", "middle", "last", "mean"]

# A teacher may lack these; the value makes ours compute the same without them.
NEUTRAL: Final = {"ls1.gamma": 1.0, "ls2.gamma": 1.0, "attn.qkv.bias": 0.0, "attn.proj.bias": 0.0}
_TOLERANCE: Final = 1e-6
"""Of the change that a block makes to its tokens, in float64, where both orders of summing agree to 1e-11."""


def plain_width(blocks: Sequence[nn.Module]) -> int | None:
    """Hidden width of the teacher's plain MLP, which is not 4 dim in every ViT; None without such an MLP."""
    first = getattr(getattr(blocks[0], "mlp", None), "fc1", None) if len(blocks) else None
    return first.out_features if isinstance(first, nn.Linear) else None


def teacher_tensors(teacher: nn.Module, block: RecurrentBlock, eps: float) -> dict[str, Tensor]:
    """The teacher block's tensors under this block's names, on this block's device; depth conditioning aside.

    Raises:
        ConfigError: the two blocks do not compute the same function of their tensors.
    """
    if getattr(teacher, "rotary", None) is not None:
        raise ConfigError(
            "Raptor's block knows its tokens alone, and the teacher's blocks turn them by rotary positions; "
            "use init = 'random'"
        )
    given = {name: tensor.detach() for name, tensor in teacher.state_dict().items()}
    wanted = {name: tensor for name, tensor in block.state_dict().items() if not name.startswith("depth.")}
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
    _check_attributes(teacher, block, eps)
    _check_function(teacher, block, tensors)
    return tensors


@torch.no_grad()
def _check_function(teacher: nn.Module, block: RecurrentBlock, tensors: dict[str, Tensor]) -> None:
    """Run both on the same tokens; what a block adds to them is compared, as LayerScale may make it small."""
    own = copy.deepcopy(block)
    own.depth = None
    own.load_state_dict(tensors)
    dim = own.attn.proj.out_features
    tokens = torch.randn(2, 5, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    depth = torch.zeros(1, 1, dtype=torch.float64)
    ours = own.cpu().double()(tokens, depth) - tokens
    theirs = copy.deepcopy(teacher).cpu().double()(tokens) - tokens
    off = float((ours - theirs).norm() / theirs.norm().clamp_min(1e-300))
    if not off <= _TOLERANCE:
        raise ConfigError(
            f"a copied block computes what the teacher's does, and from the same tensors "
            f"{type(teacher).__name__} computes something else (off by {off:.2g} of what it adds to its "
            "tokens); use init = 'random'"
        )


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
