"""The learning rate as a pure function of the step: linear warm-up from 0, then a cosine to a floor."""

from __future__ import annotations

import math

__all__ = ["learning_rate_at"]


def learning_rate_at(step: int, *, steps: int, peak: float, warmup_steps: int, floor: float) -> float:
    """Learning rate of the update made at `step`, counted from 0.

    Step 0 has 0 where there is a warm-up, step `warmup_steps` has the peak, and step `steps` would have the
    floor (the last update stands one before it).
    """
    if step < warmup_steps:
        return peak * step / warmup_steps
    progress = (step - warmup_steps) / max(1, steps - warmup_steps)
    return floor + (peak - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
