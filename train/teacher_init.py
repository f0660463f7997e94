"""Reads a teacher's block as the tensors of a recurrent block, and refuses one that computes something else.

    nn.Module with timm's names  ->  {"norm1.weight": (dim,), "attn.qkv.weight": (3 dim, dim), ...}

A copied block must equal the teacher's block: everything that it computes otherwise (other heads, epsilon or
activation, normalised queries, other positions) is an error, never left out in silence. What can be named is
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
from .teacher_names import bare_block, block_tensors, has_rotary, rotary_table

__all__ = ["BlockChoice", "mlp_width", "teacher_tensors"]

BlockChoice = Literal["first", "middle", "last", "mean"]

# A teacher may lack these; the value makes ours compute the same without them.
NEUTRAL: Final = {"ls1.gamma": 1.0, "ls2.gamma": 1.0, "attn.qkv.bias": 0.0, "attn.proj.bias": 0.0}
_TOLERANCE: Final = 1e-6
"""Of the change that a block makes to its tokens, in float64, where both orders of summing agree to 1e-11."""


def mlp_width(blocks: Sequence[nn.Module], *, gated: bool) -> int | None:
    """Hidden width of the teacher's MLP, which is not 4 dim in every ViT; None if it is not of that kind."""
    mlp = getattr(bare_block(blocks[0]), "mlp", None) if len(blocks) else None
    first, last = getattr(mlp, "fc1", None), getattr(mlp, "fc2", None)
    if not isinstance(last, nn.Linear):
        return None
    is_gated = not isinstance(first, nn.Linear) or first.out_features == 2 * last.in_features
    return last.in_features if is_gated == gated else None


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
            "Raptor's has not the same; give the model the tables of its own teacher, or use init = 'random'"
        )
    _check_attributes(bare_block(teacher), block, eps)
    _check_function(teacher, block, tensors)
    return tensors


@torch.no_grad()
def _check_function(teacher: nn.Module, block: RecurrentBlock, tensors: dict[str, Tensor]) -> None:
    """Run both on the same tokens; what a block adds to them is compared, as LayerScale may make it small."""
    own = copy.deepcopy(block).cpu().double()
    own.depth = None
    for linear in (own.attn.qkv, own.attn.proj, own.mlp.fc1, own.mlp.fc2):
        linear.lora = None
    own.load_state_dict(tensors)
    theirs = copy.deepcopy(teacher).cpu().double()
    table, count = rotary_table(theirs)
    dim = own.attn.proj.out_features
    tokens = torch.randn(2, count, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ours = own(tokens, tokens.new_zeros(1, 1), None, table) - tokens
    wanted = theirs(tokens) - tokens
    off = float((ours - wanted).norm() / wanted.norm().clamp_min(1e-300))
    if not off <= _TOLERANCE:
        raise ConfigError(
            f"a copied block computes what the teacher's does, and from the same tensors "
            f"{type(bare_block(teacher)).__name__} computes something else (off by {off:.2g} of what it adds "
            "to its tokens); use init = 'random'"
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
