"""Records that lie, every checksum made to agree: what `deep` finds of it, and what only `values` does."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from activault.store import Fault, check_values, checks, completion, open_store, shard_encoding, verify_store
from activault.store.records import arrays_of
from activault.store.shard_writing import Content

from .conftest import MakePlan, Plan
from .lying_store import Record, Tensors, lie

ASSETS = Path(__file__).parents[1] / "assets"


def deep(path: Path) -> tuple[Fault, ...]:
    return verify_store(path, deep=True, complete=True).faults


def by_values(path: Path) -> tuple[Fault, ...]:
    report = verify_store(path, values=True, complete=True)
    assert report.deep
    assert report.values
    return report.faults


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "int8"])
@pytest.mark.parametrize("bad", [(), (7, 20), range(16, 32), range(50)], ids=["none", "two", "shard", "all"])
def test_an_honest_store_has_no_faults(make_plan: MakePlan, dtype: str, bad: Any) -> None:
    plan = make_plan(dtype=dtype, bad_rows=bad)
    plan.write()
    assert by_values(plan.path) == ()


def test_an_honest_writers_statistics_are_found_bit_for_bit(
    written: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_values, "MEAN_SLACK", 0.0)
    monkeypatch.setattr(check_values, "M2_SLACK", 0.0)
    monkeypatch.setattr(check_values, "POWER_SLACK", 0.0)
    assert by_values(written.path) == ()


@pytest.mark.parametrize("store", sorted(ASSETS.glob("format1/*.zarr")), ids=lambda path: path.stem)
def test_golden_stores_tell_the_truth(store: Path) -> None:
    assert verify_store(store, values=True).faults == ()


def set_tensor(name: str, change: Callable[[np.ndarray], Any]) -> Callable[[Tensors], object]:
    def set_to(tensors: Tensors) -> None:
        tensors[name] = np.asarray(change(tensors[name]), tensors[name].dtype)

    return set_to


BAD_ROW = [3, "empty", None]
DEEP: dict[str, tuple[Callable[[Record], object] | None, Callable[[Tensors], object] | None, str]] = {
    "a row is bad": (
        lambda record: record.update(bad=[BAD_ROW]),
        None,
        "layer 0, cls: its count is 16, and the rows that are ok have 15 tokens",
    ),
    "more tokens": (None, set_tensor("layer_00.cls.count", lambda _: [2**62]), f"its count is {2**62}"),
    "negative": (None, set_tensor("layer_02.cls.m2", lambda m2: -m2), "m2 of channel 0 must be at least 0"),
    "not finite": (None, set_tensor("layer_02.cls.mean", lambda mean: mean * np.nan), "not all of it is fin"),
    "mean": (None, set_tensor("layer_00.cls.mean", lambda mean: mean * 0 + 99), "within its absmax"),
    "spread": (
        None,
        set_tensor("layer_04.patches.m2", lambda m2: m2 + 1e9),
        "m2 of channel 0 must be at most",
    ),
}


@pytest.mark.parametrize(("record", "statistics", "detail"), DEEP.values(), ids=DEEP)
def test_what_cannot_be_is_found_by_deep(
    make_plan: MakePlan, record: Any, statistics: Any, detail: str
) -> None:
    plan = make_plan()
    plan.write()
    lie(plan.path, plan.samples, record, statistics)
    fault = next(fault for fault in deep(plan.path) if fault.where == "shards/00000.stats.safetensors")
    assert (fault.shard, fault.remedy) == (0, "extract")
    assert detail in fault.detail


@pytest.mark.parametrize("add", [True, False], ids=["one more", "one less"])
def test_statistics_of_an_unfinished_store_have_their_tensors(plan: Plan, add: bool) -> None:
    plan.write([0, 1])

    def change(tensors: Tensors) -> None:
        tensors.update(more=np.zeros(3)) if add else tensors.pop("layer_02.cls.m2")

    lie(plan.path, plan.samples, None, change, complete=False)
    assert verify_store(plan.path).ok
    (fault,) = verify_store(plan.path, deep=True).faults
    assert fault.where == "shards/00000.stats.safetensors"
    assert ("more is none of them" if add else "layer_02.cls.m2 must be 8 of float64") in fault.detail


@pytest.mark.parametrize(("part", "value"), [("sse", -1), ("clipped", -1), ("clipped", 2**62)])
def test_impossible_losses_are_found_by_deep(make_plan: MakePlan, part: str, value: int) -> None:
    plan = make_plan(dtype="int8")
    plan.write()
    lie(plan.path, plan.samples, None, set_tensor(f"layer_00.patches.{part}", lambda old: old * 0 + value))
    assert any(f"{part} of channel 0 must be" in fault.detail for fault in deep(plan.path))


VALUES: dict[str, tuple[Any, Any, str, str]] = {
    "row sum": (
        lambda record: record["files"][0].update(values="0" * 32),
        None,
        "layer_00/cls/c/0/0/0",
        "rows 0 to 15 add up to",
    ),
    "mean": (
        None,
        set_tensor("layer_00.cls.mean", lambda mean: mean + 1e-6),
        "shards/00000.stats.safetensors",
        "layer 0, cls: its mean of channel 0 is",
    ),
    "m2": (
        None,
        set_tensor("layer_02.patches.m2", lambda m2: m2 * 0.999),
        "shards/00000.stats.safetensors",
        "layer 2, patches: its m2 of channel 0 is",
    ),
    "absmax": (
        None,
        set_tensor("layer_04.registers.absmax", lambda absmax: absmax * (1 + 1e-9)),
        "shards/00000.stats.safetensors",
        "layer 4, registers: its absmax of channel 0 is",
    ),
}


@pytest.mark.parametrize(("record", "statistics", "where", "detail"), VALUES.values(), ids=VALUES)
def test_what_is_not_so_is_found_by_values_alone(
    make_plan: MakePlan, record: Any, statistics: Any, where: str, detail: str
) -> None:
    plan = make_plan()
    plan.write()
    lie(plan.path, plan.samples, record, statistics)
    assert deep(plan.path) == ()
    (fault,) = by_values(plan.path)
    assert (fault.where, fault.shard, fault.remedy) == (where, 0, "extract")
    assert detail in fault.detail
    assert "restore it from a copy of the store, or delete shards/00000.stats.safetensors" in fault.detail


def test_a_row_claimed_to_be_bad_holds_something(make_plan: MakePlan) -> None:
    plan = make_plan()
    plan.write()
    lie(plan.path, plan.samples, lambda record: record.update(bad=[BAD_ROW]))
    found = {fault.where: fault.detail for fault in by_values(plan.path)}
    assert "layer 4, patches: row 3 is bad and holds something else; " in found["layer_04/patches/c/0/0/0"]


def test_a_bad_row_claimed_to_be_ok_is_no_number(make_plan: MakePlan) -> None:
    plan = make_plan(bad_rows=(3, 5))
    plan.write()
    lie(plan.path, plan.samples, lambda record: record.update(bad=[]))
    found = {fault.where: fault.detail for fault in by_values(plan.path)}
    assert (
        "layer 0, cls: row 3 is ok and holds a NaN or an infinity (2 rows in all)"
        in found["layer_00/cls/c/0/0/0"]
    )


def test_clipped_codes_that_are_not_there(make_plan: MakePlan) -> None:
    plan = make_plan(dtype="int8")
    plan.write()
    lie(plan.path, plan.samples, None, set_tensor("layer_02.patches.clipped", lambda old: old + 90))
    assert deep(plan.path) == ()
    assert "layer 2, patches: it says that 90 codes of channel 0 were clipped, and" in (
        by_values(plan.path)[0].detail
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "int8"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_ok_row_with_a_value_that_is_none(
    make_plan: MakePlan, dtype: str, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(dtype=dtype)
    write_unchecked(monkeypatch)
    plan.values[[5, 6], 0, 4, 2] = value
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # statistics of infinities
        plan.write()
    faults = [fault for fault in by_values(plan.path) if fault.where == "layer_00/patches/c/0/0/0"]
    assert "layer 0, patches: row 5 is ok and holds a NaN or an infinity (2 rows in all)" in faults[0].detail
    assert "must hold finite values in rows that are ok" in faults[0].rule


def write_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have writers publish whatever there is."""

    def unchecked(manifest: Any, buffer: Any, is_ok: Any, keys: Any, threads: int) -> dict[Any, Content]:
        contents = {}
        for array in arrays_of(manifest):
            held, steps = buffer.held(array), checks.steps_of(manifest, array)
            absmax = np.nan_to_num(checks.absmax_of(held, is_ok, steps))
            contents[array] = Content(held, is_ok, absmax, steps)
        return contents

    monkeypatch.setattr(shard_encoding, "checked_contents", unchecked)
    monkeypatch.setattr(completion, "refuse_imprecise_store", lambda *_: None)


def test_padding_that_holds_something(make_plan: MakePlan, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan()
    monkeypatch.setattr("activault.store.shard_writing.fill_of", lambda dtype: dtype.type(7))
    plan.write()
    faults = by_values(plan.path)
    assert {fault.where for fault in faults} == {
        f"layer_{layer:02d}/{kind}/c/3/0/0" for layer in (0, 2, 4) for kind in plan.manifest.kinds
    }
    assert all(fault.rule == "must hold the fill value beyond the last row" for fault in faults)


def test_bytes_are_told_to_the_end(written: Plan) -> None:
    told: list[tuple[int, int]] = []
    verify_store(written.path, values=True, progress=lambda done, total: told.append((done, total)))
    assert {total for _, total in told} == {told[-1][0]}
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1][0] > 2 * open_store(written.path).num_bytes


def test_a_file_that_vanishes_meanwhile_is_a_fault(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = check_values.ShardFile

    def opened(*arguments: Any) -> Any:
        (copy / "layer_02/cls/c/1/0/0").unlink(missing_ok=True)
        return original(*arguments)

    monkeypatch.setattr(check_values, "ShardFile", opened)
    assert [fault.where for fault in by_values(copy)] == ["layer_02/cls/c/1/0/0"]
