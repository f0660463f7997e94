"""Every dtype and compression from the writer to every reader: the same bits, whoever reads them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import zarr
import zarrs  # noqa: F401  registers its pipeline

from activault.store import ActivationLoader, ConfigError, NonFiniteError, Store, verify_store
from activault.store.errors import PrecisionError
from activault.store.manifest import PRECISIONS
from activault.store.records import ArrayKey

from .conftest import MakePlan, Plan, make_manifest
from .plain_zarr import plain_floats

FORMS = [
    pytest.param({"dtype": dtype, "compression": compression}, id=f"{dtype}-{compression}")
    for dtype, compression in PRECISIONS
]


@pytest.fixture(scope="module", params=FORMS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Store]:
    folder = tmp_path_factory.mktemp("dtypes")
    plan = Plan(folder / "a.zarr", make_manifest(**request.param), frozenset((7, 20)))
    return plan, plan.write()


def test_values_come_back_as_the_dtype_has_them(made: tuple[Plan, Store]) -> None:
    plan, store = made
    assert np.array_equal(store.read(slice(None), store.layers), plan.stored, equal_nan=True)
    assert verify_store(plan.path, deep=True, complete=True).ok


@pytest.mark.parametrize(
    "pipeline", ["zarr.core.codec_pipeline.BatchedCodecPipeline", "zarrs.ZarrsCodecPipeline"]
)
def test_other_readers_get_the_same_bits_by_the_lines_of_the_format(
    made: tuple[Plan, Store], pipeline: str
) -> None:
    plan, store = made
    with zarr.config.set({"codec_pipeline.path": pipeline}):
        for layer in store.layers:
            for kind in store.kinds:
                theirs = plain_floats(plan.path, layer, kind)
                ours = store.read(slice(None), [layer], kind)[:, 0]
                assert np.array_equal(theirs.view(np.uint32), ours.view(np.uint32))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize(
    "rows", [slice(None), slice(40, 3, -7), [9, 3, 3, 49, 7]], ids=["all", "step", "list"]
)
def test_reads_in_any_dtype_are_torchs_own_casts(made: tuple[Plan, Store], rows: Any, dtype: Any) -> None:
    plan, store = made
    found = store.read(rows, [4, 0], "cls,patches", dtype=dtype)
    tokens = [0, *range(3, 9)]
    expected = torch.from_numpy(plan.stored[rows][:, [2, 0]][:, :, tokens]).to(getattr(torch, dtype))
    if dtype == "bfloat16":
        assert found.dtype == np.uint16
        values = torch.from_numpy(found).view(torch.bfloat16)
        assert torch.equal(values.nan_to_num(7), expected.nan_to_num(7))
        assert (found[values.isnan().numpy()] == 0x7FC0).all()
    else:
        assert found.dtype == np.dtype(dtype)
        assert np.array_equal(found, expected.numpy(), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("pool_bytes", [1, 1 << 20])
def test_batches_are_what_is_read(made: tuple[Plan, Store], dtype: torch.dtype, pool_bytes: int) -> None:
    plan, store = made
    loader = ActivationLoader(store, layers=[4, 0], batch_size=9, dtype=dtype, pool_bytes=pool_bytes)
    for batch in loader:
        expected = torch.from_numpy(plan.stored[batch.rows.numpy()][:, [2, 0]]).to(dtype)
        assert batch.tokens.dtype == dtype
        assert torch.equal(batch.tokens, expected)


def test_an_unknown_dtype_is_refused(store: Store) -> None:
    with pytest.raises(
        ConfigError, match="values are read as float32, float64, float16, bfloat16; got 'int8'"
    ):
        store.read([0], [0], dtype="int8")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"batches are of torch\.float32, .* got torch\.float64"):
        ActivationLoader(store, layers=[0], batch_size=2, dtype=torch.float64)


def test_a_layer_scaled_beyond_float16_is_refused(make_plan: MakePlan) -> None:
    plan = make_plan(dtype="float16")
    plan.values[5, 1, 4] *= 70_000 / np.abs(plan.values[5, 1, 4]).max()
    said = r"float16 holds values up to 65504; row 5 \(folder/005.jpg\) holds -?70000 in layer 2, patches"
    with plan.open() as writer, pytest.raises(NonFiniteError, match=said):
        plan.publish(writer, 0)
    assert not (plan.path / "shards" / "00000.json").exists()


def test_values_beyond_float16_are_refused_when_they_are_read_so(make_plan: MakePlan) -> None:
    plan = make_plan(dtype="float32")
    plan.values[5, 1, 4, 2] = 70_000
    store = plan.write()
    assert store.read([5], [2])[0, 0, 4, 2] == 70_000
    with pytest.raises(PrecisionError, match="float16 holds values up to 65504; one is 70000"):
        store.read([5], [2], dtype="float16")
    with pytest.raises(PrecisionError, match="float16 holds values up to 65504"):
        next(iter(ActivationLoader(store, layers=[2], batch_size=50, dtype=torch.float16)))


def test_values_beyond_bfloat16_are_refused_when_they_are_read_so(make_plan: MakePlan) -> None:
    plan = make_plan(dtype="float32")
    plan.values[5, 1, 4, 2] = -3.4e38
    store = plan.write()
    told = r"bfloat16 holds values up to 3\.38953e\+38; one is -3\.4e\+38; read them as float32"
    with pytest.raises(PrecisionError, match=told):
        store.read([5], [2], dtype="bfloat16")
    with pytest.raises(PrecisionError, match=r"row 5 \(shard 0\): .* this row is beyond; take float32"):
        next(iter(ActivationLoader(store, layers=[2], batch_size=50, dtype=torch.bfloat16)))


@pytest.mark.parametrize(
    ("dtype", "token"), [("bfloat16", 4), ("int8", 0)], ids=["bfloat16 patches", "int8 cls"]
)
def test_a_finite_value_beyond_bfloat16_is_named(make_plan: MakePlan, dtype: str, token: int) -> None:
    plan = make_plan(dtype=dtype)
    plan.values[5, 1, token, 2] = 3.4e38
    told = r"bfloat16 holds values up to 3\.38953e\+38; row 5 .* holds 3\.4e\+38 in layer 2.*choose float32"
    with plan.open() as writer, pytest.raises(NonFiniteError, match=told):
        plan.publish(writer, 0)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "int8"])
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_values_that_are_not_finite_are_refused(make_plan: MakePlan, dtype: str, value: float) -> None:
    plan = make_plan(dtype=dtype, bad_rows=[6])
    plan.values[6] = value
    plan.values[5, 1, 4, 2] = value
    with (
        plan.open() as writer,
        pytest.raises(NonFiniteError, match=rf"row 5 \(folder/005.jpg\) holds {value} in layer 2, patches"),
    ):
        plan.publish(writer, 0)


def test_a_shard_beyond_the_bound_is_not_published(make_plan: MakePlan) -> None:
    plan = make_plan(dtype="int8", bad_rows=[6])
    plan.values[6] = 1e6  # a bad row has no say
    plan.values[16:32, 2, 3:, 5] *= 100
    with plan.open() as writer:
        plan.publish(writer, 0)
        with pytest.raises(PrecisionError, match=r"layer 4.* channel 5"):
            plan.publish(writer, 1)
    assert not (plan.path / "shards" / "00001.json").exists()


def test_losses_are_those_of_the_rows_that_are_held(make_plan: MakePlan) -> None:
    plan = make_plan(dtype="int8")
    quantised = ArrayKey(2, "patches")
    with plan.open() as writer:
        whole, parts = writer.buffer(0), writer.buffer(0)
        plan.values[9, 1] = 50
        whole.write(2, 0, plan.values[:16, 1])
        for start, stop in ((10, 16), (0, 3), (3, 10)):
            parts.write(2, start, plan.values[start:stop, 1])
        errors, clipped = whole.errors(quantised)
        assert np.array_equal(parts.errors(quantised)[0], errors)
        assert clipped.tolist() == [6] * 8
        assert np.array_equal(whole.held(quantised), parts.held(quantised))
        whole.clear(9)
        assert not whole.errors(quantised)[1].any()
        assert (whole.errors(quantised)[0] < errors).all()
        assert whole.errors(ArrayKey(2, "cls")) is None
        assert whole.errors(ArrayKey(0, "patches"))[0].tolist() == [0] * 8
