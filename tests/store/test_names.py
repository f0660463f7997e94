"""Names of layers and shards whose numbers have more digits than are padded."""

from __future__ import annotations

import numpy as np
import pytest
import zarr

from activault.store import TokenLayout, layer_name, open_store, pull, verify_store
from activault.store.marks import MARK_NAME, owned_shards
from activault.store.records import SHARD_DIGITS, array_file, mark_path, record_path, statistics_path

from .conftest import TEACHER, MakePlan


@pytest.mark.parametrize(("layer", "name"), [(7, "layer_07"), (99, "layer_99"), (100, "layer_100")])
def test_names_of_layers(layer: int, name: str) -> None:
    assert layer_name(layer) == name
    assert array_file(layer, "cls", 12) == f"{name}/cls/c/12/0/0"


@pytest.mark.parametrize(("shard", "digits"), [(12, "00012"), (99_999, "99999"), (100_000, "100000")])
def test_names_of_shards(shard: int, digits: str) -> None:
    assert record_path(shard) == f"shards/{digits}.json"
    assert statistics_path(shard) == f"shards/{digits}.stats.safetensors"
    assert mark_path(shard) == f"shards/.{digits}.json.tmp"


def test_the_last_shard_there_may_be_has_a_mark() -> None:
    last = 2**40 - 1
    assert len(str(last)) == SHARD_DIGITS
    found = MARK_NAME.fullmatch(mark_path(last).rpartition("/")[2])
    assert found is not None
    assert int(found[1]) == last


def test_a_store_of_large_numbers(make_plan: MakePlan) -> None:
    plan = make_plan(
        num_rows=100_001,
        shard_rows=1,
        chunk_rows=1,
        layers=(99, 100),
        kinds=("cls",),
        layout=TokenLayout(num_cls=1, num_registers=0, grid=(1, 1)),
        teacher=TEACHER.model_copy(update={"num_blocks": 120}),
    )
    with plan.open() as writer:
        assert writer.claim(100_000)
        assert owned_shards(plan.path) == [100_000]
        for shard in (3, 100_000):
            plan.publish(writer, shard)
    store = open_store(plan.path)
    assert store.finished_rows.tolist() == [3, 100_000]
    read = store.read([3, 100_000], [99, 100])
    assert np.array_equal(read, plan.stored[[3, 100_000], :, :1])
    plain = zarr.open_array(str(plan.path / "layer_100/cls"), mode="r")
    assert np.array_equal(np.asarray(plain[100_000:]), read[1:, 1])
    assert verify_store(plan.path, deep=True).faults == ()
    part = open_store(pull(plan.path, plan.path.with_name("b.zarr"), "100", rows="100000:100001"))
    assert part.complete
    assert np.array_equal(part.read([100_000], [100]), read[1:, 1:])
