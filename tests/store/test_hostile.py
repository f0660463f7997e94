"""Stores made to do harm: refused with a reason, and before anything large is allocated."""

from __future__ import annotations

import json
import shutil
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from activault.store import CorruptStoreError, NotAStoreError, StoreError, open_store
from activault.store.codecs import array_metadata
from activault.store.files import canonical_json, pretty_json, xxh3
from activault.store.merging import merge
from activault.store.records import array_folder, arrays_of, parse_record
from activault.store.sealed import write_sealed
from activault.store.transfer import plan_pull

from .conftest import Plan

Change = Callable[[dict[str, Any]], object]


@contextmanager
def little_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < 10e6
    finally:
        tracemalloc.stop()


def rewrite_root(store: Path, change: Change) -> None:
    """Change the manifest or the plan, and make the checksum agree, as an attacker would."""
    value = json.loads((store / "zarr.json").read_bytes())
    change(value["attributes"])
    manifest, plan = value["attributes"]["activault"], value["attributes"]["activault_plan"]
    body = {"manifest": manifest, "samples": plan["samples"], "teacher": plan["teacher"]}
    plan["checksum"] = xxh3(canonical_json(body))
    (store / "zarr.json").write_bytes(pretty_json(value))


def set_manifest(**fields: Any) -> Change:
    return lambda attributes: attributes["activault"].update(fields)


def set_teacher(name: str) -> Change:
    return lambda attributes: attributes["activault_plan"]["teacher"].update(
        {name: {"bytes": 1, "sha256": "0" * 64}}
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(set_manifest(num_rows=2**60), "num_rows", id="rows"),
        pytest.param(set_manifest(num_rows=10**12), "must be", id="rows that arrays do not have"),
        pytest.param(set_manifest(shard_rows=2**40), "shard_rows", id="shard"),
        pytest.param(set_manifest(shard_rows=10), "not a multiple of chunk_rows", id="unaligned"),
        pytest.param(
            set_manifest(layout={"num_cls": 1, "num_registers": 2, "grid": [10**9, 10**9]}), "grid", id="grid"
        ),
        pytest.param(
            set_manifest(layout={"num_cls": 1, "num_registers": 2, "grid": [4096, 4096]}),
            "a chunk is at most",
            id="chunk",
        ),
        pytest.param(set_manifest(layers=[0, 99]), "layers ascend within 0-4", id="layers"),
        pytest.param(set_manifest(layers=[-1, 0]), "layers ascend within 0-4", id="negative layer"),
        pytest.param(set_manifest(kinds=["../../etc"]), "kinds", id="traversal in a kind"),
        pytest.param(set_manifest(kinds=["patches", "cls"]), "in this order", id="kinds in another order"),
        pytest.param(set_manifest(dtype="object"), "dtype", id="dtype"),
        pytest.param(set_manifest(extra=1), "Extra inputs", id="unknown field"),
        pytest.param(
            set_teacher("teacher/../../x"), "teacher files are teacher/NAME", id="traversal in the teacher"
        ),
        pytest.param(set_teacher("/etc/passwd"), "teacher files are teacher/NAME", id="absolute path"),
        pytest.param(set_teacher("teacher/.hidden"), "teacher files are teacher/NAME", id="hidden file"),
    ],
)
def test_a_hostile_manifest_is_refused(copy: Path, change: Change, message: str) -> None:
    rewrite_root(copy, change)
    with little_memory(), pytest.raises(CorruptStoreError, match=message):
        open_store(copy)


def test_another_format_is_refused(copy: Path) -> None:
    rewrite_root(copy, set_manifest(format=2))
    with pytest.raises(NotAStoreError, match="is of format 2; this activault reads format 1"):
        open_store(copy)


@pytest.mark.parametrize(
    "text",
    [b"[" * 100_000, b"{" + b'"a":{' * 50_000, b"\xff\xfe", b"", b"null", b"[1]"],
    ids=["deep list", "deep object", "not UTF-8", "empty", "null", "list"],
)
def test_json_that_is_no_store_is_refused(copy: Path, text: bytes) -> None:
    (copy / "zarr.json").write_bytes(text)
    with pytest.raises(StoreError, match=r"must be JSON|without activations"):
        open_store(copy)


def test_a_huge_zarr_json_is_not_read(copy: Path) -> None:
    with (copy / "layer_00" / "cls" / "zarr.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(CorruptStoreError, match="holds at most 67108864 bytes; it has 1099511627776"):
        open_store(copy)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("shape", [10**15, 1, 8]),
        ("data_type", "float64"),
        ("fill_value", 0.0),
        ("codecs", [{"name": "bytes"}]),
        ("chunk_grid", {"name": "regular", "configuration": {"chunk_shape": [1, 1, 8]}}),
        ("storage_transformers", [{"name": "x"}]),
        ("surprise", 1),
    ],
)
def test_array_metadata_must_agree_with_the_manifest(copy: Path, field: str, value: object) -> None:
    file = copy / "layer_00" / "cls" / "zarr.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {field: value}))
    with pytest.raises(CorruptStoreError, match=f"layer_00/cls/zarr.json: {field} must be"):
        open_store(copy)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(
            lambda r: r["files"][0].update(path="../../etc/passwd"), "files must be", id="traversal"
        ),
        pytest.param(lambda r: r["files"].pop(), "files must be", id="file left out"),
        pytest.param(lambda r: r["statistics"].update(path="/tmp/x"), "statistics must be", id="statistics"),
        pytest.param(lambda r: r.update(rows=[0, 10**12]), "rows must be", id="rows"),
        pytest.param(lambda r: r.update(shard=2), "shard must be 1", id="shard"),
        pytest.param(lambda r: r.update(sizes=[[1, 1, 10**12]]), "sizes must be 16", id="sizes"),
        pytest.param(
            lambda r: r.update(sizes=[[1, 1, 17], [1, 1, -1]]), "sizes must be 16", id="negative sizes"
        ),
        pytest.param(lambda r: r.update(bad=[[99, "x", None]]), "bad must be", id="bad row elsewhere"),
        pytest.param(
            lambda r: r.update(bad=[[16, "ok", None]]), "needs a reason code", id="bad row that is ok"
        ),
        pytest.param(lambda r: r.update(manifest="0" * 64), "manifest must be", id="manifest"),
        pytest.param(lambda r: r.update(more=1), "Extra inputs", id="unknown field"),
    ],
)
def test_a_lying_record_is_refused(written: Plan, change: Change, message: str) -> None:
    body = json.loads((written.path / "shards" / "00001.json").read_bytes())
    del body["checksum"]
    change(body)
    text = canonical_json(body | {"checksum": xxh3(canonical_json(body))})
    with pytest.raises(CorruptStoreError, match=message):
        parse_record(text, written.manifest, 1)


@pytest.mark.parametrize("num_rows", [50 + 16, 2**40])
def test_a_complete_store_that_claims_more_rows_is_refused(copy: Path, written: Plan, num_rows: int) -> None:
    rewrite_root(copy, set_manifest(num_rows=num_rows))
    manifest = written.manifest.model_copy(update={"num_rows": num_rows})
    for array in arrays_of(manifest):
        file = copy / array_folder(array.layer, array.kind) / "zarr.json"
        file.write_bytes(pretty_json(array_metadata(manifest, array.kind)))
    table = pq.read_table(copy / "index.parquet")
    summary = json.loads(table.schema.metadata[b"activault.index"]) | {"manifest": manifest.sha256()}
    table = table.replace_schema_metadata(None)
    write_sealed(copy / "index.parquet", table, {"activault.index": json.dumps(summary)})
    with (
        little_memory(),
        pytest.raises(CorruptStoreError, match=r"index.parquet must have \d+ rows; it has 13"),
    ):
        open_store(copy)


@pytest.mark.parametrize("name", ["index.parquet", "samples.parquet"])
def test_a_huge_table_is_not_read(copy: Path, name: str) -> None:
    with (copy / name).open("wb") as file:
        file.truncate(1 << 40)
    with little_memory(), pytest.raises(CorruptStoreError, match=f"{name} holds at most .* bytes"):
        _ = open_store(copy).samples


def test_samples_of_another_number_are_refused(copy: Path, written: Plan) -> None:
    write_sealed(copy / "samples.parquet", written.samples.slice(0, 49))
    with pytest.raises(CorruptStoreError, match=r"samples.parquet must have 50 rows; it has 49"):
        _ = open_store(copy).samples


def test_a_huge_statistics_file_is_not_read(copy: Path) -> None:
    (copy / "index.parquet").unlink()
    with (copy / "shards" / "00001.stats.safetensors").open("wb") as file:
        file.truncate(1 << 40)
    store = open_store(copy)
    with (
        little_memory(),
        pytest.raises(CorruptStoreError, match=r"holds at most \d+ bytes; it has 1099511627776"),
    ):
        store.statistics(0, "cls")


@pytest.fixture
def claims_too_much(copy: Path) -> Path:
    """2 kB that claim 2^36 shards."""
    rewrite_root(copy, set_manifest(num_rows=2**40))
    (copy / "index.parquet").unlink()
    return copy


@pytest.mark.parametrize("rows", [None, "0:1099511627776", "16:1000000000000"])
def test_a_copy_counts_no_shards_that_are_only_claimed(
    claims_too_much: Path, tmp_path: Path, rows: str | None
) -> None:
    with little_memory():
        planned = plan_pull(claims_too_much, rows=rows)
        assert planned.num_files == 2
        with pytest.raises(StoreError, match=r"samples.parquet"):
            planned.run(tmp_path / "out.zarr")
    assert not (tmp_path / "out.zarr").exists()


def test_a_merger_counts_no_shards_that_are_only_claimed(claims_too_much: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.zarr"
    shutil.copytree(claims_too_much, other)
    rewrite_root(claims_too_much, set_manifest(shards=[[0, 2**35], [2**35 + 1, 2**36]]))
    with little_memory(), pytest.raises(StoreError, match=r"samples.parquet"):
        merge([claims_too_much, other], tmp_path / "out.zarr")
    assert not (tmp_path / "out.zarr").exists()
