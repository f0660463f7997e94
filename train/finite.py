"""Whether weights are finite, asked where they are written and never at a step, and what to do if not.

    names and tensors, whose they are  ->  nothing, or a RunError that names the first tensor that is not

A loss is that of the weights before its update: those after the last one have had no loss yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from activault.store.errors import RunError

__all__ = ["ELSEWHERE", "SLOWER", "require_finite"]

ELSEWHERE: Final = "in another folder (--out), since a run's recipe is fixed"
SLOWER: Final = f"lower learning_rate or raise warmup_steps, {ELSEWHERE}"


def require_finite(tensors: Mapping[str, Tensor], whose: str) -> None:
    """Refuse weights that are no numbers; waits for their device once.

    Raises:
        RunError: a tensor holds a NaN or an infinity; names it and `whose` it is.
    """
    checked = {name: value for name, value in tensors.items() if value.is_floating_point()}
    if not checked:
        return
    is_finite = torch.stack([value.isfinite().all() for value in checked.values()]).tolist()
    if faults := [name for name, finite in zip(checked, is_finite, strict=True) if not finite]:
        raise RunError(
            f"training needs finite weights; {whose} has {len(faults)} of {len(checked)} tensors that "
            f"are not ({faults[0]} first); {SLOWER}"
        )
