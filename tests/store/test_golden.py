"""The promise: the golden stores of format 1 open, verify and read as they did when they were made."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from activault.store import Store, open_store, verify_store

from .plain_zarr import plain_floats

ASSETS = Path(__file__).parents[1] / "assets" / "format1"
EXPECTED: dict[str, Any] = json.loads((ASSETS / "expected.json").read_text())
golden = pytest.mark.parametrize("name", EXPECTED)


def opened(name: str) -> Store:
    return open_store(ASSETS / f"{name}.zarr")


def expected_values(name: str) -> np.ndarray:
    """(finished rows, layers, tokens, dim) float32."""
    values = np.load(ASSETS / f"{name}.npy", allow_pickle=False)
    assert isinstance(values, np.ndarray)
    return values


def test_there_is_one_of_every_kind() -> None:
    found = {(facts["manifest"]["dtype"], facts["manifest"]["compression"]) for facts in EXPECTED.values()}
    assert {dtype for dtype, _ in found} == {"bfloat16", "float16", "float32", "int8"}
    assert {compression for _, compression in found} == {"blosc", "none"}
    assert {facts["complete"] for facts in EXPECTED.values()} == {True, False}
    assert any(facts["manifest"]["shards"] for facts in EXPECTED.values())
    assert {path.stem for path in ASSETS.glob("*.zarr")} == set(EXPECTED)


@golden
def test_the_files_are_the_committed_ones(name: str) -> None:
    """If this fails, git or an editor altered them; the others then say nothing."""
    folder = ASSETS / f"{name}.zarr"
    files = [file for file in folder.rglob("*") if file.is_file()]
    found = {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    assert found == EXPECTED[name]["files"]


@golden
def test_it_opens_and_says_the_same(name: str) -> None:
    store, facts = opened(name), EXPECTED[name]
    assert store.manifest.model_dump(mode="json") == facts["manifest"]
    assert store.manifest.sha256() == facts["manifest_sha256"]
    for fact in ("digest", "arrays_digest", "complete", "num_bad", "num_bytes"):
        assert getattr(store, fact) == facts[fact], fact
    assert store.finished_rows.tolist() == facts["finished_rows"]
    assert store.samples.to_pydict() == facts["samples"]


@golden
def test_it_verifies(name: str) -> None:
    report = verify_store(ASSETS / f"{name}.zarr", deep=True, complete=EXPECTED[name]["complete"])
    assert list(report.faults) == []
    assert report.complete == EXPECTED[name]["complete"]


@golden
def test_it_reads_the_same_bit_for_bit(name: str) -> None:
    store = opened(name)
    assert store.read(store.finished_rows, store.layers).tobytes() == expected_values(name).tobytes()


@golden
def test_plain_zarr_reads_the_same_bit_for_bit(name: str) -> None:
    store, expected, first = opened(name), expected_values(name), 0
    for kind in store.kinds:
        span = slice(first, first + store.layout.count(kind))
        first = span.stop
        for place, layer in enumerate(store.layers):
            plain = plain_floats(ASSETS / f"{name}.zarr", layer, kind)[store.finished_rows]
            assert plain.tobytes() == np.ascontiguousarray(expected[:, place, span]).tobytes()


@golden
def test_its_statistics_are_the_same(name: str) -> None:
    store = opened(name)
    for layer in store.layers:
        for kind in store.kinds:
            found, facts = (
                store.statistics(layer, kind),
                EXPECTED[name]["statistics"][f"layer_{layer:02d}/{kind}"],
            )
            assert found.count == facts["count"]
            for field in ("mean", "m2", "absmax"):
                assert getattr(found, field).tolist() == facts[field], field


@golden
def test_the_row_sums_are_those_of_the_values(name: str) -> None:
    """`arrays_digest` from nothing but the values and FORMAT.md."""
    import xxhash

    store, expected = opened(name), expected_values(name)
    state, first = hashlib.sha256(), {}
    place = 0
    for kind in store.kinds:
        first[kind] = place
        place += store.layout.count(kind)
    for place, layer in enumerate(store.layers):
        for kind in store.kinds:
            tokens = expected[:, place, first[kind] : first[kind] + store.layout.count(kind)]
            total = sum(
                xxhash.xxh3_128_intdigest(np.ascontiguousarray(row).data, seed=int(number))
                for number, row in zip(store.finished_rows, tokens, strict=True)
            )
            state.update(f"layer_{layer:02d}/{kind} {total % 2**128:032x}\n".encode())
    assert state.hexdigest() == store.arrays_digest


def test_int8_keeps_its_bound() -> None:
    """R2 of the patches against those of the float32 store, which are the values as given."""
    codes, exact = expected_values("int8")[:, :, 3:], expected_values("float32")[:, :, 3:]
    for place in range(codes.shape[1]):
        good = ~np.isnan(exact[:, place]).any(axis=(1, 2))
        values = exact[good, place].astype(np.float64)
        error = ((codes[good, place] - values) ** 2).sum()
        assert 1 - error / ((values - values.mean(axis=(0, 1))) ** 2).sum() >= 0.999


def test_rows_of_an_int8_store_need_not_reach_its_r2() -> None:
    store = opened("int8-partial")
    assert store.complete
    assert store.manifest.shards == ((0, 1),)
    assert max(store.statistics(layer, "patches").r2 for layer in store.layers) < 0.999


def test_the_copy_of_a_part_agrees_with_the_whole() -> None:
    partial, whole = opened("partial"), opened("bfloat16")
    rows = partial.finished_rows
    assert (
        partial.read(rows, partial.layers).tobytes()
        == whole.read(rows, partial.layers, "cls,patches").tobytes()
    )
