"""One shard's values in memory: what it takes, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from activault.store import ConfigError
from activault.store.records import arrays_of

from .conftest import MakePlan, Plan


@pytest.mark.parametrize(
    ("layer", "offset", "shape", "message"),
    [
        (1, 0, (4, 9, 8), r"keeps the layers \(0, 2, 4\); got 1"),
        (0, 14, (4, 9, 8), "shard 0 takes rows in 0 to 16; got 4 at row 14"),
        (0, -1, (4, 9, 8), "shard 0 takes rows in 0 to 16; got 4 at row -1"),
        (0, 0, (), r"have the shape \(n, 9, 8\); got \(\)"),
        (0, 0, (4, 8, 8), r"tokens of whole layers have the shape \(n, 9, 8\); got \(4, 8, 8\)"),
    ],
)
def test_a_buffer_refuses_what_does_not_fit(
    plan: Plan, layer: int, offset: int, shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        plan.open().buffer(0).write(layer, offset, np.zeros(shape, np.float32))


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_the_kept_kinds_alone_are_written_as_whole_layers_are(make_plan: MakePlan, dtype: str) -> None:
    plan = make_plan(kinds=("cls", "patches"), dtype=dtype)
    writer, layout = plan.open(), plan.manifest.layout
    whole, kept = writer.buffer(0), writer.buffer(0)
    tokens = plan.values[:4, 1]
    whole.write(2, 3, tokens)
    kept.write(2, 3, np.concatenate([tokens[:, layout.span(kind)] for kind in plan.manifest.kinds], axis=1))
    for array in arrays_of(plan.manifest):
        assert np.array_equal(whole.held(array), kept.held(array))
    with pytest.raises(ConfigError, match=r"\(n, 9, 8\), of the kept kinds \(n, 7, 8\); got \(4, 8, 8\)"):
        kept.write(2, 0, np.zeros((4, 8, 8), np.float32))


def test_a_buffer_refuses_other_dtypes(plan: Plan) -> None:
    with pytest.raises(ConfigError, match="a bfloat16 store takes float32 tokens; got float64"):
        plan.open().buffer(0).write(0, 0, np.zeros((4, 9, 8)))
