"""What changes over a stage, as pure functions of the step: learning rate, teacher forcing, horizon.

Steps count from 0. Nothing here has a state, so that a resumed run goes on where it was.
"""

from __future__ import annotations

import math
from typing import Literal

__all__ = ["ScheduleKind", "annealed_weight", "horizon_at", "learning_rate_at"]

ScheduleKind = Literal["cosine", "reference"]


def learning_rate_at(
    step: int, *, steps: int, peak: float, warmup_steps: int, floor: float, kind: ScheduleKind = "cosine"
) -> float:
    """Learning rate of the update made at `step`: linear warm-up from 0, then a cosine to the floor.

    `cosine`: step 0 has 0 where there is a warm-up, step `warmup_steps` has the peak, and step `steps` would
    have the floor (the last update stands one before it).

    `reference` is the published code's (arXiv 2512.19941): the schedule is moved on before an update and not
    after it, and its warm-up holds both ends. So step 0 has peak / (warmup_steps - 1), steps
    `warmup_steps - 2` and `warmup_steps - 1` have the peak, and step `steps - 1`, the last update, the floor.
    """
    rise = warmup_steps
    if kind == "reference":
        step, rise = step + 1, warmup_steps - 1
    if step < warmup_steps:
        return peak * step / rise
    progress = (step - warmup_steps) / max(1, steps - warmup_steps)
    return floor + (peak - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def annealed_weight(step: int, steps: int, fraction: float = 0.25) -> float:
    """Weight of teacher forcing: 1 to 0, linearly, over `fraction` of the steps."""
    span = fraction * steps
    return max(0.0, 1.0 - step / span) if span > 0 else 0.0


def horizon_at(step: int, *, steps: int, span: int, start: int | None, growth: float) -> int:
    """Layers that a roll-out makes before it starts again from the teacher's own.

    It grows in equal parts from `start` at step 0 to the whole `span` of layers, which it has from step
    `growth * steps` on; without a `start`, and where that is the span or more, it is the span throughout.
    """
    if start is None or start >= span or step >= growth * steps:
        return span
    return start + int((span - start) * step / (growth * steps))
