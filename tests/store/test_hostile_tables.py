"""Tables and numbers of shards made to do harm, read by a process of little memory and time."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from activault.store import CorruptStoreError, open_store, plan_samples, verify_store
from activault.store.codecs import array_metadata
from activault.store.files import pretty_json, xxh3
from activault.store.manifest import Manifest
from activault.store.records import array_folder, arrays_of
from activault.store.root import read_root
from activault.store.samples import samples_schema
from activault.store.sealed import sealed_bytes
from activault.store.storage import Folder

from .conftest import Plan
from .test_hostile import rewrite_root, set_manifest

GIBIBYTE = 1 << 30
USE = """
import os, resource, sys
from activault.store import StoreError, open_store, verify_store
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]), int(sys.argv[2])))
said = []
for work in (
    lambda: [str(fault) for fault in verify_store(sys.argv[1], deep=True).faults],
    lambda: open_store(sys.argv[1]).read(slice(16, 32), [0]),
    lambda: open_store(sys.argv[1]).samples,
    lambda: open_store(sys.argv[1]).statistics(0, "patches"),
):
    try:
        found = work()
        said += found if isinstance(found, list) else []
    except StoreError as exc:
        said.append(str(exc))
print(len(said))
print("\\n".join(said), flush=True)
os._exit(0)  # Arrow's threads, were one still at work after an error, would end an orderly exit by an abort
"""


def refusals(path: Path, memory: int = 3 * GIBIBYTE) -> str:
    """What reading and verifying the store say of it, in a process of little memory and time."""
    done = subprocess.run(
        [sys.executable, "-c", USE, str(path), str(memory)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "ARROW_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def put_samples(store: Path, name: str, column: Any) -> None:
    table = pq.read_table(store / "samples.parquet").replace_schema_metadata(None)
    table = table.set_column(table.column_names.index(name), name, column)
    (store / "samples.parquet").write_bytes(sealed_bytes(table))


def long_strings(store: Path) -> None:
    """50 rows whose reason is the same 64 MiB: 3 GiB in memory, some kilobytes on disk."""
    places = pa.array([0] * 50, pa.int32())
    put_samples(store, "reason", pa.DictionaryArray.from_arrays(places, pa.array(["x" * (64 << 20)])))


def many_columns(store: Path) -> None:
    table = pa.table({f"c{number}": pa.array([0] * 50, pa.int8()) for number in range(5000)})
    (store / "samples.parquet").write_bytes(sealed_bytes(table))


def rows_of_nothing(store: Path) -> None:
    """2^27 rows of nulls: gigabytes in memory, some kilobytes on disk; the manifest agrees."""
    num_rows, at_once = 1 << 27, 1 << 20
    rewrite_root(store, set_manifest(num_rows=num_rows))
    rewrite_arrays(store)
    (store / "index.parquet").unlink()
    schema = samples_schema()
    nothing = pa.table({field.name: pa.nulls(at_once, field.type) for field in schema}, schema=schema)
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, schema, compression="zstd", store_schema=False) as writer:
        for _ in range(num_rows // at_once):
            writer.write_table(nothing)
        writer.add_key_value_metadata({"activault.seal": "0" * 32})
    data = bytearray(sink.getvalue().to_pybytes())
    start = data.rfind(b"0" * 32)
    data[start : start + 32] = xxh3(data).encode()
    (store / "samples.parquet").write_bytes(data)


def rewrite_arrays(store: Path) -> Manifest:
    """Every array's `zarr.json` by the manifest that is there now."""
    manifest = read_root(Folder(store)).manifest
    for array in arrays_of(manifest):
        file = store / array_folder(array.layer, array.kind) / "zarr.json"
        file.write_bytes(pretty_json(array_metadata(manifest, array.kind)))
    return manifest


def not_utf8(store: Path) -> None:
    put_samples(store, "key", pa.array([b"\xff\xfe"] * 50, pa.binary()).view(pa.string()))


TABLES = {
    "long strings": long_strings,
    "many columns": many_columns,
    "rows of nothing": rows_of_nothing,
    "keys that are no text": not_utf8,
}


@pytest.mark.parametrize("harm", TABLES.values(), ids=TABLES)
def test_a_table_that_blows_up(copy: Path, harm: Callable[[Path], None]) -> None:
    harm(copy)
    assert "samples.parquet" in refusals(copy)


def test_the_tables_of_a_store_of_other_images(written: Plan, copy: Path, tmp_path: Path) -> None:
    """The same manifest and other keys: what both files say agrees, but not with what was planned."""
    other = Plan(tmp_path / "other.zarr", written.manifest, written.bad_rows)
    keys = [f"another/{row}.jpg" for row in range(50)]
    other.samples = plan_samples(keys, [None] * 50, "images")
    other.write()
    for name in ("index.parquet", "samples.parquet"):
        shutil.copyfile(other.path / name, copy / name)
    with pytest.raises(CorruptStoreError, match=r"index\.parquet belongs to another store; delete index"):
        open_store(copy)
    assert {fault.where for fault in verify_store(copy).faults} == {"index.parquet", "samples.parquet"}


def test_an_index_of_another_format(copy: Path) -> None:
    table = pq.read_table(copy / "index.parquet")
    found = json.loads(table.schema.metadata[b"activault.index"]) | {"format": 2}
    data = sealed_bytes(table.replace_schema_metadata(None), {"activault.index": json.dumps(found)})
    (copy / "index.parquet").write_bytes(data)
    with pytest.raises(CorruptStoreError, match="belongs to another store"):
        open_store(copy)


def test_shards_that_are_counted_and_not_spelled_out(copy: Path) -> None:
    half, num_rows = 2**39, 2**40
    shards = [[0, half], [half + 1, num_rows]]
    rewrite_root(copy, set_manifest(num_rows=num_rows, shard_rows=1, chunk_rows=1, shards=shards))
    assert len(rewrite_arrays(copy).held_shards) == num_rows - 1
    assert "index.parquet" in refusals(copy)
    (copy / "index.parquet").unlink()
    assert "samples.parquet must have 1099511627776 rows; it has 50" in refusals(copy)


def test_little_memory_is_enough_for_a_sound_store(written: Plan) -> None:
    """Otherwise the other tests would say nothing."""
    assert refusals(written.path).splitlines()[0] == "0"
