"""int8's promise: what quantising cost is kept, and a shard or a store that breaks the bound is refused."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from pydantic import ValidationError
from safetensors.numpy import load_file, save

from activault.store import merge, open_store, pull, verify_store
from activault.store.errors import PrecisionError
from activault.store.files import canonical_json, xxh3
from activault.store.manifest import Quantisation

from .conftest import MakePlan, Plan, make_manifest


def coarse(place: int, factor: float, variance: float) -> tuple[Quantisation, ...]:
    """Steps of one layer so many times as coarse as they should be, and the variance it is held against."""
    steps = list(make_manifest(dtype="int8").quantisation)
    old = steps[place]
    scale = tuple(step * factor for step in old.scale)
    steps[place] = Quantisation(scale=scale, offset=old.offset, variance=old.variance * variance)
    return tuple(steps)


@pytest.mark.parametrize(
    ("field", "value", "bits"),
    [("scale", 0.1, 16), ("scale", 1 + 2.0**-16, 16), ("scale", 2.0**128, 16), ("offset", 0.1, 24)],
)
def test_steps_of_more_bits_are_refused(field: str, value: float, bits: int) -> None:
    """A product with a code would not be exact, and readers would differ."""
    steps = make_manifest(dtype="int8").quantisation
    first = steps[0].model_copy(update={field: (value,) * 8})
    with pytest.raises(
        ValidationError, match=f"{field}s of a quantisation are float32 of {bits} significant"
    ):
        make_manifest(dtype="int8", quantisation=(first, *steps[1:]))


def errors_of(plan: Plan, rows: slice, place: int) -> np.ndarray:
    """(dim,) sum of squared errors of the patches, from what a reader gets."""
    patches = plan.manifest.layout.span("patches")
    given, got = (values[rows, place, patches].astype(np.float64) for values in (plan.values, plan.stored))
    return np.asarray(((given - got) ** 2).sum(axis=(0, 1)))


@pytest.fixture
def lossy(make_plan: MakePlan) -> Plan:
    # Finer than it need be: the few values of a test's shard may lie worse than those of a real one.
    return make_plan(dtype="int8", quantisation=coarse(1, 0.5, 1.0))


def test_errors_are_kept_by_shard_and_merged(lossy: Plan) -> None:
    store = lossy.write()
    tensors = load_file(lossy.path / "shards" / "00001.stats.safetensors")
    sse, clipped = tensors["layer_02.patches.sse"], tensors["layer_02.patches.clipped"]
    np.testing.assert_allclose(sse, errors_of(lossy, slice(16, 32), 1), rtol=1e-5)
    assert clipped.dtype == np.int64
    assert "layer_02.cls.sse" not in tensors
    for opened in (store, open_store(lossy.path)):
        losses = opened.statistics(2, "patches").losses
        assert losses is not None
        np.testing.assert_allclose(losses.sse, errors_of(lossy, slice(0, 50), 1), rtol=1e-5)
        assert opened.statistics(2, "cls").losses is None


def test_a_shard_over_the_bound_is_refused(make_plan: MakePlan) -> None:
    plan = make_plan(dtype="int8", quantisation=coarse(1, 2.0, 1.0))
    with plan.open() as writer:
        for _ in range(2):
            with pytest.raises(PrecisionError) as caught:
                plan.publish(writer, 1)
            assert writer.unfinished == [0, 1, 2, 3]
    said = str(caught.value)
    worst = int(errors_of(plan, slice(16, 32), 1).argmax())
    assert re.search(rf"in shard 1, layer 2, .* most of it in channel {worst} \(root mean square error", said)
    assert "plan the store with dtype bfloat16, or with another seed" in said
    assert not list(plan.path.glob("layer_*/*/c"))


def test_a_store_below_the_bound_as_a_whole_is_not_completed(make_plan: MakePlan) -> None:
    """Its calibration rows varied more than all of its rows do, so that every shard kept to its own bound."""
    plan = make_plan(dtype="int8", quantisation=coarse(2, 2.0, 9.0))
    with plan.open() as writer:
        for shard in writer.unfinished:
            plan.publish(writer, shard)
        with pytest.raises(
            PrecisionError, match=r"R2 of every layer's patches at 0.999 .* in layer 4 it is 0.99"
        ):
            writer.complete()
    assert not open_store(plan.path).complete


def test_a_part_whose_rows_vary_less_than_the_whole_is_completed(make_plan: MakePlan) -> None:
    """It is bound shard by shard; the whole alone is bound by its R2, also when it is merged again."""
    steps = make_manifest(dtype="int8").quantisation
    finer = [
        Quantisation(scale=tuple(s / 2 for s in old.scale), offset=old.offset, variance=old.variance)
        for old in steps
    ]
    plan = make_plan(dtype="int8", quantisation=finer)
    plan.values[:16] *= 0.2
    plan.write()
    parts = [
        pull(plan.path, plan.path.with_name(f"{n}.zarr"), rows=rows) for n, rows in enumerate(["0:16", "16:"])
    ]
    assert (
        open_store(parts[0]).statistics(0, "patches").r2
        < 0.999
        < open_store(plan.path).statistics(0, "patches").r2
    )
    for part in parts:
        assert verify_store(part, deep=True, complete=True).faults == ()
    whole = merge(parts, plan.path.with_name("whole.zarr"))
    assert open_store(whole).digest == open_store(plan.path).digest


def forge(plan: Plan, shard: int, factor: float) -> None:
    """Squared errors of layer 2 so many times as large, with hashes that agree, and no index."""
    folder = plan.path / "shards"
    file, record = folder / f"{shard:05d}.stats.safetensors", folder / f"{shard:05d}.json"
    tensors = load_file(file)
    tensors["layer_02.patches.sse"] = tensors["layer_02.patches.sse"] * factor
    file.write_bytes(save(tensors))
    body = json.loads(record.read_bytes())
    body.pop("checksum")
    body["statistics"] |= {"bytes": file.stat().st_size, "hash": xxh3(file.read_bytes())}
    record.write_bytes(canonical_json(body | {"checksum": xxh3(canonical_json(body))}))
    (plan.path / "index.parquet").unlink(missing_ok=True)


def test_verify_finds_a_shard_over_the_bound(lossy: Plan) -> None:
    lossy.write([0, 1])
    forge(lossy, 1, 9.0)
    (fault,) = verify_store(lossy.path).faults
    assert (fault.where, fault.shard, fault.remedy) == ("shards/00001.stats.safetensors", 1, "copy")
    assert "must keep the mean squared error of every layer's patches within 0.001" in fault.rule
    assert "in layer 2 it is" in fault.detail


def test_verify_finds_a_store_below_its_r2(make_plan: MakePlan) -> None:
    plan = make_plan(dtype="int8", quantisation=coarse(1, 0.5, 90.0))
    plan.write()
    for shard in range(4):
        forge(plan, shard, 9.0)
    (fault,) = verify_store(plan.path).faults
    assert (fault.where, fault.rule) == ("store", "must keep R2 of every layer's patches at 0.999 or above")
