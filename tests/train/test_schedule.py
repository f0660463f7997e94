"""Warm-up and cosine."""

from __future__ import annotations

import pytest

from activault.train.schedule import learning_rate_at

PLAN = {"steps": 312_500, "peak": 3e-4, "warmup_steps": 10_000, "floor": 1e-6}


@pytest.mark.parametrize(
    ("step", "rate"),
    [
        (0, 0.0),
        (5_000, 1.5e-4),
        (10_000, 3e-4),
        (161_250, (3e-4 + 1e-6) / 2),
        (312_500, 1e-6),
        (400_000, 1e-6),
    ],
    ids=["start", "half-warm", "peak", "middle", "end", "after"],
)
def test_published_schedule(step: int, rate: float) -> None:
    assert learning_rate_at(step, **PLAN) == pytest.approx(rate, rel=1e-12, abs=1e-18)


def test_rises_then_falls() -> None:
    rates = [learning_rate_at(step, steps=100, peak=1.0, warmup_steps=10, floor=0.1) for step in range(100)]
    assert rates[:11] == sorted(rates[:11])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert min(rates[10:]) > 0.1


def test_without_warmup_the_first_step_has_the_peak() -> None:
    assert learning_rate_at(0, steps=1, peak=0.5, warmup_steps=0, floor=0.0) == 0.5
