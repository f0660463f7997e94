"""Multiply-accumulates of a whole training, by formula; validations and evaluation aside.

    recipe, MACs of one row from layer 0 to L  ->  MACs of all its updates

The way back computes each product twice, once for the weights and once for what came in, so that a row of an
update takes three times its forward pass; what is computed again to save memory is a fourth. Where teacher
forcing gives way to the roll-out, an update makes both. Phases together apply as many blocks as the closed
loop does.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from activault.train import StageConfig, TrainRecipe

__all__ = ["training_macs"]

FORWARD_AND_BACK = 3


def training_macs(recipe: TrainRecipe, macs: int) -> int:
    """MACs of all updates of a recipe, `macs` being those of one row from layer 0 to layer L."""
    one, two = recipe.stage1, recipe.stage2
    if one.only_teacher_forcing:
        forced, rolled = one.steps, 0
    else:
        # Its weight falls from 1 at the first update to 0; an update of weight 1 rolls nothing out.
        span = one.teacher_forcing * one.steps
        forced, rolled = math.ceil(span), one.steps - (span > 0)
    phases = FORWARD_AND_BACK * forced + _of_rollout(one) * rolled
    return macs * (one.batch_size * phases + two.batch_size * _of_rollout(two) * two.steps)


def _of_rollout(stage: StageConfig) -> int:
    """Forward passes that an update of a roll-out is worth."""
    return FORWARD_AND_BACK + (stage.gradient_checkpointing > 0)
