"""What a writer is asked that it cannot do: said as it is, before anything is touched."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from activault.store import ConfigError, NonFiniteError, StoreWriter

from .conftest import MakePlan, Plan


@pytest.mark.parametrize("shard", [-1, 4, 99])
def test_shards_that_are_none_are_not_claimed(plan: Plan, shard: int) -> None:
    with plan.open() as writer, pytest.raises(ConfigError, match=f"shards here are 0 to 3; got {shard}"):
        writer.claim(shard)
    assert list((plan.path / "shards").iterdir()) == []


def test_shards_of_another_part_are_not_claimed(make_plan: MakePlan) -> None:
    plan = make_plan(shards=((1, 3),))
    with plan.open() as writer:
        with pytest.raises(ConfigError, match="shards here are 1 to 2; got 0"):
            writer.claim(0)
        assert writer.claim(1)


WORK: dict[str, Callable[[Plan, StoreWriter], object]] = {
    "claim": lambda _, writer: writer.claim(1),
    "publish": lambda plan, writer: plan.publish(writer, 1),
    "complete": lambda _, writer: writer.complete(),
}


@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
def test_a_closed_writer_says_that_it_is(plan: Plan, work: Callable[[Plan, StoreWriter], object]) -> None:
    with plan.open() as writer:
        plan.publish(writer, 0)
    with pytest.raises(
        ConfigError, match=r"a writer writes until it is closed; .* open another by create_store"
    ):
        work(plan, writer)
    assert plan.write().complete


@pytest.mark.parametrize("bits", [0x7C01, 0xFD55, 0x7E00], ids=["signals", "signals, negative", "quiet"])
def test_any_nan_of_float16_is_refused_without_a_warning(make_plan: MakePlan, bits: int) -> None:
    plan = make_plan(dtype="float16")
    with plan.open() as writer:
        buffer = writer.buffer(0)
        tokens = np.zeros((16, 9, 8), np.float16)
        tokens.view(np.uint16)[5, 1, 2] = bits
        for layer in plan.manifest.layers:
            buffer.write(layer, 0, tokens)
        with pytest.raises(NonFiniteError, match=r"values must be finite; row 5 .* holds nan in layer 0"):
            writer.publish(buffer, plan.outcomes(buffer.rows))
