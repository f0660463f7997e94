"""Our encoder's bytes are zarr-python's own for every dtype and compression; zarr and zarrs read them."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from activault.store.codecs import (
    array_metadata,
    fill_of,
    pack_chunk,
    round_to_bfloat16,
    stored_type,
    to_stored,
    with_crc,
)
from activault.store.decoding import decode_chunk
from activault.store.manifest import PRECISIONS, Manifest, Quantisation

from .conftest import MakePlan, make_manifest

SHARD_ROWS, CHUNK_ROWS = 8, 4
PIPELINES = {
    "zarr-python": "zarr.core.codec_pipeline.BatchedCodecPipeline",
    "zarrs": "zarrs.ZarrsCodecPipeline",
}


def manifest_of(dtype: str, compression: str) -> Manifest:
    steps = Quantisation(scale=(0.125,) * 8, offset=(0.0,) * 8, variance=1.0)
    return make_manifest(
        dtype=dtype,
        compression=compression,
        num_rows=14,
        shard_rows=SHARD_ROWS,
        chunk_rows=CHUNK_ROWS,
        quantisation=(steps,) * 3 if dtype == "int8" else None,
    )


@pytest.fixture(params=PRECISIONS, ids="-".join)
def manifest(request: pytest.FixtureRequest) -> Manifest:
    return manifest_of(*request.param)


def values_of(manifest: Manifest) -> np.ndarray[Any, Any]:
    """Stored values of all patches; row 3 is bad."""
    random = np.random.default_rng(0)
    dtype, shape = stored_type(manifest, "patches"), manifest.array_shape("patches")
    if dtype == np.int8:
        values = random.integers(-127, 128, shape).astype(np.int8)
    else:
        values = random.standard_normal(shape, dtype=np.float32).astype(dtype)
        if manifest.dtype == "bfloat16":
            values = to_stored(round_to_bfloat16(values))
    values[3] = fill_of(dtype)
    return values


def chunks_of(manifest: Manifest, values: np.ndarray[Any, Any], shard: int) -> Iterator[np.ndarray[Any, Any]]:
    for start in range(shard * SHARD_ROWS, (shard + 1) * SHARD_ROWS, CHUNK_ROWS):
        chunk = np.full(manifest.chunk_shape("patches"), fill_of(values.dtype), values.dtype)
        rows = values[start : start + CHUNK_ROWS]
        chunk[: len(rows)] = rows
        yield chunk


def shard_bytes(manifest: Manifest, values: np.ndarray[Any, Any], shard: int) -> bytes:
    chunks = [
        with_crc(pack_chunk(chunk, manifest.compression)) for chunk in chunks_of(manifest, values, shard)
    ]
    starts = np.cumsum([0, *map(len, chunks)])
    entries = [(start, len(chunk)) for start, chunk in zip(starts, chunks, strict=False)]
    return b"".join(chunks) + with_crc(b"".join(struct.pack("<QQ", *entry) for entry in entries))


def open_array(folder: Path, manifest: Manifest, mode: str) -> Any:
    folder.mkdir(exist_ok=True)
    (folder / "zarr.json").write_text(json.dumps(array_metadata(manifest, "patches")))
    with zarr.config.set({"array.write_empty_chunks": True}):
        return zarr.open_array(str(folder), mode=mode, zarr_format=3)


def test_shard_files_are_zarrs_own_bytes(tmp_path: Path, manifest: Manifest) -> None:
    values = values_of(manifest)
    open_array(tmp_path / "a", manifest, "r+")[:] = values
    for shard in (0, 1):
        assert (tmp_path / f"a/c/{shard}/0/0").read_bytes() == shard_bytes(manifest, values, shard)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "int8"])
def test_a_written_store_is_zarrs_own_bytes(make_plan: MakePlan, tmp_path: Path, dtype: str) -> None:
    """Of the last shard's four chunks one holds rows, and padding; the others are absent."""
    plan = make_plan(dtype=dtype)
    plan.write()
    for folder in (file.parent for file in plan.path.glob("layer_*/*/zarr.json")):
        source = zarr.open_array(str(folder), mode="r")
        copy = tmp_path / "b" / folder.relative_to(plan.path)
        copy.mkdir(parents=True)
        shutil.copy(folder / "zarr.json", copy)
        with zarr.config.set({"array.write_empty_chunks": True}):
            target: Any = zarr.open_array(str(copy), mode="r+")
            target[:] = np.asarray(source[:])
        for file in (file for file in folder.rglob("0") if file.is_file()):
            assert file.read_bytes() == (copy / file.relative_to(folder)).read_bytes()


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_other_readers_read_what_we_encode(tmp_path: Path, manifest: Manifest, pipeline: str) -> None:
    if pipeline == "zarrs":
        pytest.importorskip("zarrs")
    values = values_of(manifest)
    for shard in (0, 1):
        file = tmp_path / f"a/c/{shard}/0/0"
        file.parent.mkdir(parents=True)
        file.write_bytes(shard_bytes(manifest, values, shard))
    with zarr.config.set({"codec_pipeline.path": PIPELINES[pipeline]}):
        read = np.asarray(open_array(tmp_path / "a", manifest, "r")[:])
    assert read.dtype == values.dtype
    assert read.tobytes() == values.tobytes()


def test_a_chunk_comes_back_bit_for_bit(manifest: Manifest) -> None:
    chunk = next(chunks_of(manifest, values_of(manifest), 0))
    encoded = with_crc(pack_chunk(chunk, manifest.compression))
    out = decode_chunk(encoded, np.empty_like(chunk), "chunk", manifest.compression)
    assert out.tobytes() == chunk.tobytes()
