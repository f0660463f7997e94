"""Held-out rows, and the figures measured on them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from activault.store import Store
from activault.store.errors import ConfigError, RunError
from activault.train.closed_loop import closed_loop_stage
from activault.train.metrics import R2Accumulator, evaluate_rollout
from activault.train.raptor import Raptor, RaptorConfig
from activault.train.stage_config import Stage2Config
from activault.train.validation import hold_out, validate

CPU = torch.device("cpu")


def test_rows_are_held_out_by_their_keys_alone(store: Store) -> None:
    kept, held = hold_out(store, store.valid_rows, 0.3)
    assert sorted([*kept, *held]) == list(store.valid_rows)
    assert 0.1 < len(held) / 40 < 0.5
    fewer, some = hold_out(store, store.valid_rows[5:31], 0.3)
    assert set(some) == set(held) & set(range(5, 31))
    assert set(fewer) == set(kept) & set(range(5, 31))


def test_the_held_out_rows_of_a_run_stay_for_ever(store: Store) -> None:
    """A run that goes on with a later version validates on the rows that it has not learned from."""
    _, held = hold_out(store, store.valid_rows, 0.3)
    assert held.tolist() == [0, 9, 30, 16, 28, 22, 24, 6, 15, 1, 31, 10, 27, 21, 36]


def test_a_larger_part_holds_out_the_same_rows_and_more(store: Store) -> None:
    _, few = hold_out(store, store.valid_rows, 0.2)
    _, many = hold_out(store, store.valid_rows, 0.5)
    assert list(many[: len(few)]) == list(few)


def test_no_part_holds_out_nothing(store: Store) -> None:
    kept, held = hold_out(store, store.valid_rows, 0.0)
    assert (len(kept), len(held)) == (40, 0)


def test_a_part_that_leaves_a_side_empty_is_refused(store: Store) -> None:
    with pytest.raises(ConfigError, match=r"validation = 1e-06 holds out 0 of 40 training rows"):
        hold_out(store, store.valid_rows, 1e-6)


def test_the_closed_loop_is_measured_from_layer_zero_on_the_first_rows(store: Store) -> None:
    model = Raptor(RaptorConfig(dim=16, num_heads=2, num_layers=4, cuts=(2,), layer_scale=0.1))
    config = Stage2Config(steps=4, warmup_steps=0, validation_rows=9)
    stage = closed_loop_stage(model, config, store, CPU)
    rows = np.array([33, 2, 7, 19, 20, 5, 1, 0, 39, 30])
    measured = validate(stage, store, rows, device=CPU)
    assert measured == evaluate_rollout(model, store, np.sort(rows[:9]))
    assert model.training


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_roll_out_that_does_not_stay_finite_is_told(store: Store, value: float) -> None:
    model = Raptor(RaptorConfig(dim=16, num_heads=2, num_layers=4, cuts=(2,), layer_scale=0.1))
    stage = closed_loop_stage(model, Stage2Config(steps=4, warmup_steps=0), store, CPU)
    broken = replace(stage, rollout=lambda tokens: stage.rollout(tokens) * value)
    message = r"stage closed_loop has a mean R2 of (-inf|nan) on 5 held-out rows; lower learning_rate"
    with pytest.raises(RunError, match=message):
        validate(broken, store, np.arange(5), device=CPU)


def test_parts_counted_apart_are_the_whole(store: Store) -> None:
    target = torch.from_numpy(store.read(slice(0, 12), (1, 2)))
    made = target + 0.3 * torch.randn_like(target)
    whole, first, second = (R2Accumulator(store.layout, (1, 2), 16) for _ in range(3))
    whole.update(target, made)
    first.update(target[:5], made[:5])
    second.update(target[5:], made[5:])
    first.merge(second)
    for one, other in zip(_flat(whole), _flat(first), strict=True):
        assert one == pytest.approx(other, rel=1e-12)
    empty = R2Accumulator(store.layout, (1, 2), 16)
    empty.merge(whole)
    assert list(_flat(empty)) == list(_flat(whole))


def _flat(counted: R2Accumulator) -> list[float]:
    result = counted.result()
    tables = (result.r2, result.cosine, result.norm_ratio, result.eps, result.relative_eps)
    return [value for table in tables for values in table.values() for value in values if value is not None]


def test_eps_is_the_mean_frobenius_norm_and_the_ratio_that_of_norms(store: Store) -> None:
    target = torch.from_numpy(store.read(slice(0, 12), (1, 2)))
    made = 1.5 * target + 0.1 * torch.randn_like(target)
    counted = R2Accumulator(store.layout, (1, 2), 16)
    counted.update(target[:7], made[:7])
    counted.update(target[7:], made[7:])
    result = counted.result()
    for kind in ("cls", "patches", "all"):
        span = slice(None) if kind == "all" else store.layout.span(kind)
        x, xhat = target[:, :, span].double(), made[:, :, span].double()
        eps = (x - xhat).flatten(2).norm(dim=-1)
        assert result.eps[kind] == pytest.approx(eps.mean(dim=0).tolist())
        assert result.relative_eps[kind] == pytest.approx((eps / x.flatten(2).norm(dim=-1)).mean(0).tolist())
        ratio = (xhat.norm(dim=-1) / x.norm(dim=-1)).mean(dim=(0, 2))
        assert result.norm_ratio[kind] == pytest.approx(ratio.tolist())
    r2 = [value for value in result.r2["all"] if value is not None]
    assert result.mean_r2 == pytest.approx(sum(r2) / 2)
