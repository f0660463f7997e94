"""Warm-up and cosine."""

from __future__ import annotations

import pytest

from activault.train.schedule import annealed_weight, horizon_at, learning_rate_at

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


@pytest.mark.parametrize(
    ("step", "rate"),
    [
        (0, 3e-4 / 9_999),
        (4_999, 3e-4 * 5_000 / 9_999),
        (9_998, 3e-4),
        (9_999, 3e-4),
        (161_249, (3e-4 + 1e-6) / 2),
        (312_499, 1e-6),
        (400_000, 1e-6),
    ],
    ids=["first", "half-warm", "peak", "peak-again", "middle", "last", "after"],
)
def test_the_published_codes_schedule_is_one_update_ahead(step: int, rate: float) -> None:
    """Its `step()` comes before the optimiser's, and its table of a warm-up holds both ends."""
    assert learning_rate_at(step, **PLAN, kind="reference") == pytest.approx(rate, rel=1e-12)


@pytest.mark.parametrize("warmup", [0, 1, 2])
def test_the_published_codes_schedule_without_a_warmup_to_speak_of(warmup: int) -> None:
    rates = [
        learning_rate_at(step, steps=4, peak=1.0, warmup_steps=warmup, floor=0.0, kind="reference")
        for step in range(4)
    ]
    assert rates == sorted(rates, reverse=True)
    assert (rates[0] == 1.0, rates[-1]) == (warmup > 0, pytest.approx(0))


def test_rises_then_falls() -> None:
    rates = [learning_rate_at(step, steps=100, peak=1.0, warmup_steps=10, floor=0.1) for step in range(100)]
    assert rates[:11] == sorted(rates[:11])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert min(rates[10:]) > 0.1


def test_without_warmup_the_first_step_has_the_peak() -> None:
    assert learning_rate_at(0, steps=1, peak=0.5, warmup_steps=0, floor=0.0) == 0.5


@pytest.mark.parametrize(
    ("step", "expected"), [(0, 1.0), (25, 0.75), (50, 0.5), (99, 0.01), (100, 0.0), (101, 0.0), (399, 0.0)]
)
def test_teacher_forcing_falls_over_the_first_quarter(step: int, expected: float) -> None:
    assert annealed_weight(step, 400) == pytest.approx(expected)


def test_no_teacher_forcing_at_all() -> None:
    assert annealed_weight(0, 400, 0.0) == 0.0


@pytest.mark.parametrize(
    ("step", "horizon"), [(0, 2), (9, 2), (10, 3), (20, 4), (99, 11), (100, 12), (101, 12), (199, 12)]
)
def test_horizon_grows_in_equal_parts_to_the_span(step: int, horizon: int) -> None:
    assert horizon_at(step, steps=200, span=12, start=2, growth=0.5) == horizon


@pytest.mark.parametrize("start", [None, 12, 40])
def test_without_a_start_the_horizon_is_the_span(start: int | None) -> None:
    assert horizon_at(0, steps=200, span=12, start=start, growth=0.5) == 12
