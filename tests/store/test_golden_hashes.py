"""Every hash of the golden stores again, from their bytes and FORMAT.md, with json, hashlib and xxhash alone.

Nothing of activault is imported here: what agrees with itself only is not yet what the document says.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import xxhash

ASSETS = Path(__file__).parents[1] / "assets" / "format1"
NAMES = sorted(path.stem for path in ASSETS.glob("*.zarr"))
COMPLETE = [name for name in NAMES if (ASSETS / f"{name}.zarr" / "index.parquet").exists()]
golden = pytest.mark.parametrize("name", NAMES)


def canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def sha256(value: Any) -> str:
    return hashlib.sha256(canonical(value)).hexdigest()


def xxh3(data: bytes) -> str:
    return xxhash.xxh3_128(data).hexdigest()


def attributes(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Manifest and plan."""
    found = json.loads((ASSETS / f"{name}.zarr" / "zarr.json").read_text())["attributes"]
    return found["activault"], found["activault_plan"]


def records(name: str) -> list[dict[str, Any]]:
    files = sorted((ASSETS / f"{name}.zarr" / "shards").glob("*.json"))
    return [json.loads(file.read_bytes()) for file in files]


def digest(name: str) -> str:
    manifest, plan = attributes(name)
    return sha256(
        {
            "manifest": sha256(manifest),
            "samples": plan["samples"],
            "teacher": {path: file["sha256"] for path, file in plan["teacher"].items()},
            "records": [[record["shard"], record["checksum"]] for record in records(name)],
        }
    )


@golden
def test_the_plans_checksum(name: str) -> None:
    manifest, plan = attributes(name)
    body = {"manifest": manifest, "samples": plan["samples"], "teacher": plan["teacher"]}
    assert xxh3(canonical(body)) == plan["checksum"]


@golden
def test_the_teachers_files(name: str) -> None:
    _, plan = attributes(name)
    assert plan["teacher"]
    for path, file in plan["teacher"].items():
        data = (ASSETS / f"{name}.zarr" / path).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (file["bytes"], file["sha256"])


@golden
def test_the_records(name: str) -> None:
    """Their own checksums, the manifest's hash, and the hashes of all the files that they speak of."""
    manifest, _ = attributes(name)
    assert records(name)
    for record in records(name):
        body = dict(record)
        assert xxh3(canonical({key: body[key] for key in body if key != "checksum"})) == record["checksum"]
        assert record["manifest"] == sha256(manifest)
        for file in (*record["files"], record["statistics"]):
            data = (ASSETS / f"{name}.zarr" / file["path"]).read_bytes()
            assert (len(data), xxh3(data)) == (file["bytes"], file["hash"]), file["path"]


@golden
def test_the_digest(name: str) -> None:
    assert digest(name) == json.loads((ASSETS / "expected.json").read_text())[name]["digest"]


@golden
@pytest.mark.parametrize("table", ["samples.parquet", "index.parquet"])
def test_the_seal(name: str, table: str) -> None:
    file = ASSETS / f"{name}.zarr" / table
    if name not in COMPLETE and table == "index.parquet":
        assert not file.exists()
        return
    seal = pq.read_metadata(file).metadata[b"activault.seal"]
    data = file.read_bytes()
    assert data.count(seal) == 1
    assert xxh3(data.replace(seal, b"0" * 32)).encode() == seal


@pytest.mark.parametrize("name", COMPLETE)
def test_the_index_sums_up(name: str) -> None:
    folder = ASSETS / f"{name}.zarr"
    manifest, plan = attributes(name)
    summary = json.loads(pq.read_metadata(folder / "index.parquet").metadata[b"activault.index"])
    assert summary["format"] == 1
    assert summary["manifest"] == sha256(manifest)
    assert summary["samples"] == plan["samples"]
    assert summary["samples_hash"] == xxh3((folder / "samples.parquet").read_bytes())
    assert summary["digest"] == digest(name)
    found = [row["record"] for row in pq.read_table(folder / "index.parquet").to_pylist() if row["record"]]
    assert found == [file.read_text() for file in sorted((folder / "shards").glob("*.json"))]


@golden
def test_the_content_hash_of_the_samples(name: str) -> None:
    """Fewer rows than the 65,536 that are hashed at a time."""
    _, plan = attributes(name)
    table = pq.read_table(ASSETS / f"{name}.zarr" / "samples.parquet")
    state = hashlib.sha256()
    for column in ("key", "label", "source"):
        texts = [None if text is None else text.encode() for text in table[column].to_pylist()]
        state.update(column.encode())
        for text in texts:
            state.update((-1 if text is None else len(text)).to_bytes(8, "little", signed=True))
        state.update(b"".join(text or b"" for text in texts))
    assert state.hexdigest() == plan["samples"]
