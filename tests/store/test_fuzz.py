"""Mutated metadata with checksums that agree: a `StoreError` or the same store, and nothing else.

Values of a store's `zarr.json`, of a record and of the index are replaced, removed and repeated at random, as
somebody would who wants to do harm; the hashes over them are made right again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from activault.store import CorruptStoreError, Store, StoreError, open_store, verify_store
from activault.store.files import canonical_json, parse_json, pretty_json, xxh3
from activault.store.sealed import write_sealed

from .conftest import Plan, make_manifest
from .test_flips import STEPS, is_named

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(
        [0, -1, 1, 2, 4, 49, 51, 2**31, 2**32, 2**40, 2**53 + 1, 2**63, 2**64, 10**400, 1e308, 0.5]
    ),
    st.sampled_from(
        ["", "x", "ok", "pending", "absent", "../x", "/etc/passwd", "a\0b", "\x1b[2J", "cls", "1"]
    ),
    st.sampled_from(["teacher/x\0", "f" * 64, "float64", "layer_00/cls/c/0/0/0", "shards/00001.json"]),
    st.sampled_from([[], {}, [[]], [1, 2], [0, 1], [[0, 1]], [[0, 2**40]], {"a": 1}, [None], ["x"], [1.5]]),
)
FUZZ = settings(
    max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place of a JSON value, as the keys on the way there."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        yield from places(part, (*path, key))


@st.composite
def mutation(draw: st.DrawFn, value: Any) -> Any:
    """The value with one to three of its parts replaced, removed or repeated."""
    changed = json.loads(json.dumps(value))
    for _ in range(draw(st.integers(1, 3))):
        options = list(places(changed))
        if not options:
            break
        *path, last = draw(st.sampled_from(options))
        parent = changed
        for key in path:
            parent = parent[key]
        action = draw(st.sampled_from(["replace", "replace", "replace", "remove", "repeat", "add"]))
        if action == "replace":
            parent[last] = deepcopy(draw(VALUES))
        elif action == "remove":
            del parent[last]
        elif action == "repeat" and isinstance(parent, list):
            parent.insert(last, parent[last])
        elif isinstance(parent, dict):
            parent[draw(st.sampled_from(["surprise", "format", "../x"]))] = deepcopy(draw(VALUES))
    return changed


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An int8 store, whose manifest has the most in it."""
    manifest = make_manifest(
        num_rows=20, layers=(0, 2), shard_rows=8, dtype="int8", quantisation=(STEPS, STEPS)
    )
    path = tmp_path_factory.mktemp("fuzz") / "a.zarr"
    Plan(path, manifest, frozenset((7,))).write()
    return path


@pytest.fixture(scope="module")
def sound(victim: Path) -> tuple[Any, ...]:
    return use(victim)


def use(path: Path) -> tuple[Any, ...]:
    """All that a reader and `verify` do; only a `StoreError` may come of it."""
    verify_store(path, deep=True)
    store: Store = open_store(path)
    values = store.read(slice(None), store.layers)
    assert len(store.valid_rows) + store.num_bad == len(store.label_ids)
    json.dumps(store.info(), allow_nan=False)
    statistics = [store.statistics(layer, kind) for layer in store.layers for kind in store.kinds]
    return values, store.samples, statistics


def same_or_refused(path: Path, sound: tuple[Any, ...]) -> None:
    try:
        found = use(path)
    except StoreError:
        return
    assert np.array_equal(found[0], sound[0], equal_nan=True)
    assert (
        found[1]
        .drop_columns(["status", "reason", "width", "height"])
        .equals(sound[1].drop_columns(["status", "reason", "width", "height"]))
    )


@FUZZ
@given(data=st.data())
def test_a_mutated_manifest(victim: Path, sound: tuple[Any, ...], data: st.DataObject) -> None:
    file = victim / "zarr.json"
    kept = file.read_bytes()
    value = data.draw(mutation(json.loads(kept)["attributes"]))
    try:
        plan = value["activault_plan"]
        body = {"manifest": value["activault"], "samples": plan["samples"], "teacher": plan["teacher"]}
        plan["checksum"] = xxh3(canonical_json(body))
    except (KeyError, TypeError, IndexError):
        pass
    file.write_bytes(pretty_json({"zarr_format": 3, "node_type": "group", "attributes": value}))
    try:
        same_or_refused(victim, sound)
    finally:
        file.write_bytes(kept)


@FUZZ
@given(data=st.data())
def test_a_mutated_record(victim: Path, sound: tuple[Any, ...], data: st.DataObject) -> None:
    record, index = victim / "shards" / "00001.json", victim / "index.parquet"
    kept = record.read_bytes(), index.read_bytes()
    body = json.loads(kept[0])
    del body["checksum"]
    value = data.draw(mutation(body))
    if isinstance(value, dict):
        value["checksum"] = xxh3(canonical_json(value))
    record.write_bytes(canonical_json(value))
    index.unlink()
    try:
        same_or_refused(victim, sound)
    finally:
        record.write_bytes(kept[0])
        index.write_bytes(kept[1])


@FUZZ
@given(data=st.data())
def test_a_mutated_index(victim: Path, sound: tuple[Any, ...], data: st.DataObject) -> None:
    file = victim / "index.parquet"
    kept = file.read_bytes()
    table = pq.read_table(file)
    summary = json.loads(table.schema.metadata[b"activault.index"])
    rows = data.draw(mutation(table.to_pylist()))
    try:
        changed = pa.Table.from_pylist(rows, schema=table.schema.remove_metadata())
    except (pa.ArrowException, TypeError, AttributeError, OverflowError, ValueError):
        return  # no table at all
    metadata = {"activault.index": json.dumps(data.draw(st.one_of(st.just(summary), mutation(summary))))}
    write_sealed(file, changed, metadata)
    try:
        same_or_refused(victim, sound)
    finally:
        file.write_bytes(kept)


@FUZZ
@given(data=st.data())
def test_mutated_array_metadata(victim: Path, sound: tuple[Any, ...], data: st.DataObject) -> None:
    file = victim / "layer_02" / "patches" / "zarr.json"
    kept = file.read_bytes()
    file.write_bytes(json.dumps(data.draw(mutation(json.loads(kept)))).encode())
    try:
        same_or_refused(victim, sound)
    finally:
        file.write_bytes(kept)


@pytest.mark.parametrize(
    "text",
    [
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b'{"a": 1e999}',
        b'{"a": 1, "a": 1}',
        b'{"a": ' + b"9" * 1_000_000 + b"}",
        b"[" * 1_000_000,
        b'{"a":' * 200_000,
        b'{"a": "\xff"}',
        b"\xef\xbb\xbf{}",
        b"{} {}",
        b"\0",
    ],
    ids=lambda text: repr(text[:12]),
)
def test_json_that_canonical_json_has_not(text: bytes) -> None:
    with pytest.raises(CorruptStoreError, match="x must be JSON; it is not"):
        parse_json(text, "x")


@pytest.mark.parametrize(
    "name", ["zarr.json", "layer_00/zarr.json", "layer_00/cls/zarr.json", "shards/00001.json"]
)
@pytest.mark.parametrize(
    "text", [b"[" * 1_000_000, b'{"a": NaN}', b"9" * 100_000, b"\0" * 64], ids=lambda t: repr(t[:4])
)
def test_such_json_wherever_it_is_read(victim: Path, tmp_path: Path, name: str, text: bytes) -> None:
    path = shutil.copytree(victim, tmp_path / "a.zarr")
    (path / name).write_bytes(text)
    (path / "index.parquet").unlink()
    assert is_named(path, name)
    if name != "layer_00/zarr.json":  # nothing reads by it
        with pytest.raises(StoreError):
            open_store(path).read(slice(None), [0])
