"""Files made to do harm, every hash and checksum right: refused in words, soon, and with little memory.

Tables that do harm are in `test_hostile_tables.py`.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numcodecs import blosc

from activault.store import CorruptStoreError, StoreError, open_store, verify_store
from activault.store.codecs import crc32c
from activault.store.files import canonical_json, xxh3

from .conftest import Plan


def rewrite_record(store: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the record of shard 1, and let it be the only one: no index."""
    (store / "index.parquet").unlink(missing_ok=True)
    file = store / "shards" / "00001.json"
    body = json.loads(file.read_bytes())
    del body["checksum"]
    change(body)
    file.write_bytes(canonical_json(body | {"checksum": xxh3(canonical_json(body))}))


def put_array(store: Path, content: bytes) -> None:
    """Make `content` the file of shard 1 of the first array, with a record that agrees."""
    (store / "layer_00/cls/c/1/0/0").write_bytes(content)
    rewrite_record(store, lambda body: body["files"][0].update(bytes=len(content), hash=xxh3(content)))


def with_index(chunks: list[bytes]) -> bytes:
    """A shard file of chunks, each with its checksum, and its index."""
    payload, entries, offset = b"", [], 0
    for chunk in chunks:
        chunk += struct.pack("<I", crc32c(chunk))
        entries += [offset, len(chunk)]
        payload += chunk
        offset += len(chunk)
    return payload + sealed_index(entries)


def sealed_index(entries: list[int]) -> bytes:
    index = np.array(entries, "<u8").tobytes()
    return index + struct.pack("<I", crc32c(index))


def header(decoded: int, stored: int, block: int, flags: int = 0x21, typesize: int = 4) -> bytes:
    return struct.pack("<BBBBIII", 2, 1, flags, typesize, decoded, block, stored)


SIZE = 4 * 1 * 8 * 4
"""Bytes of a chunk of the first array: 4 rows of 1 token of width 8."""
RIGHT = blosc.compress(bytes(SIZE), b"lz4", 5, 2)
LIES = {
    "decoded size of 4 GiB": header(2**32 - 1, 40, 128) + bytes(24),
    "decoded size of 0": header(0, 16, 0),
    "stored size": header(SIZE, 2**31, SIZE) + bytes(40),
    "block of 4 GiB": header(SIZE, 56, 2**32 - 1) + bytes(40),
    "block of 0": header(SIZE, 56, 0) + bytes(40),
    "block of 1": header(SIZE, 56, 1) + bytes(40),
    "typesize 0": header(SIZE, 56, SIZE, typesize=0) + bytes(40),
    "typesize 255": header(SIZE, 56, SIZE, typesize=255) + bytes(40),
    "unknown codec": header(SIZE, 56, SIZE, flags=0xE1) + bytes(40),
    "stored as it is, too short": header(SIZE, 56, SIZE, flags=0x02) + bytes(40),
    "block offsets outside": header(SIZE, 56, 32) + b"\xff" * 40,
    "negative block offsets": header(SIZE, 56, 32) + b"\x00\x00\x00\x80" * 10,
    "no header": b"\x02\x01",
    "empty": b"",
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_blosc_header_that_lies(copy: Path, lie: bytes) -> None:
    put_array(copy, with_index([lie, RIGHT, RIGHT, RIGHT]))
    store = open_store(copy)
    with pytest.raises(CorruptStoreError, match=r"rows 16 to 19 \(shard 1\)"):
        store.read([16], [0], "cls")
    assert store.read([20], [0], "cls").shape == (1, 1, 1, 8), "other chunks are read"


def test_random_harm_to_blosc_with_the_checksum_right(copy: Path) -> None:
    random = np.random.default_rng(0)
    real = blosc.compress(random.standard_normal(SIZE // 4).astype(np.float32).tobytes(), b"lz4", 5, 2)
    for _ in range(100):
        lie = bytearray(real)
        for place in random.integers(0, len(lie), 3):
            lie[place] = random.integers(0, 256)
        put_array(copy, with_index([bytes(lie), RIGHT, RIGHT, RIGHT]))
        try:
            assert open_store(copy).read([16], [0], "cls").shape == (1, 1, 1, 8)
        except StoreError:
            continue


INDICES = {
    "beyond the file": [10**6, 10, *[0, 10] * 3],
    "whole of 2^64": [2**63, 2**63, *[0, 10] * 3],
    "length of 2^62": [0, 2**62, *[0, 10] * 3],
    "never written": [2**64 - 1, 2**64 - 1, *[0, 10] * 3],
    "no bytes": [0, 0, *[0, 10] * 3],
}


@pytest.mark.parametrize("entries", INDICES.values(), ids=INDICES)
def test_a_shard_index_that_lies(copy: Path, entries: list[int]) -> None:
    put_array(copy, bytes(200) + sealed_index(entries))
    with pytest.raises(CorruptStoreError, match=r"layer_00/cls/c/1/0/0: chunk 0|at most \d+ bytes"):
        open_store(copy).read([16], [0], "cls")


def test_a_chunk_of_a_terabyte_is_not_read(copy: Path) -> None:
    size = 1 << 40
    index = sealed_index([0, size - 68, *[0, 10] * 3])
    with (copy / "layer_00/cls/c/1/0/0").open("wb") as file:
        file.truncate(size - len(index))
        file.seek(0, os.SEEK_END)
        file.write(index)
    rewrite_record(copy, lambda body: body["files"][0].update(bytes=size))
    with pytest.raises(
        CorruptStoreError, match=r"a chunk has at most 4224 bytes; the index says 1099511627708"
    ):
        open_store(copy).read([16], [0], "cls")


def test_statistics_of_a_terabyte_are_not_read(copy: Path) -> None:
    with (copy / "shards/00001.stats.safetensors").open("wb") as file:
        file.truncate(1 << 40)
    rewrite_record(copy, lambda body: body["statistics"].update(bytes=1 << 40))
    with pytest.raises(CorruptStoreError, match=r"holds at most \d+ bytes; it has 1099511627776"):
        open_store(copy).statistics(0, "cls")


def safetensors(entries: dict[str, Any], data: bytes = b"") -> bytes:
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + data


def tensor(dtype: str, shape: list[int], stop: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [0, stop]}


NAN = struct.pack("<d", np.nan)
STATISTICS = {
    "empty": b"",
    "header of 2^63": struct.pack("<Q", 2**63) + b"{}",
    "header beyond the file": struct.pack("<Q", 10**6) + b"{}",
    "deep header": struct.pack("<Q", 200_000) + b"[" * 200_000,
    "no tensors": safetensors({}),
    "shape of 2^62": safetensors({"layer_00.cls.count": tensor("I64", [2**62], 8)}, bytes(8)),
    "no values of 2^60 rows": safetensors({"layer_00.cls.count": tensor("I64", [2**60, 0], 0)}),
    "unknown type": safetensors({"layer_00.cls.count": tensor("BF16", [4], 8)}, bytes(8)),
    "count of another type": safetensors(
        {"layer_00.cls.count": tensor("F64", [1], 8)}, struct.pack("<d", np.nan)
    ),
    "scalar count": safetensors({"layer_00.cls.count": tensor("I64", [], 8)}, bytes(8)),
}


@pytest.mark.parametrize("content", STATISTICS.values(), ids=STATISTICS)
def test_statistics_that_lie(copy: Path, content: bytes) -> None:
    (copy / "shards/00001.stats.safetensors").write_bytes(content)
    size = max(len(content), 1)
    rewrite_record(copy, lambda body: body["statistics"].update(bytes=size, hash=xxh3(content)))
    with pytest.raises(CorruptStoreError, match=r"shards/00001\.stats\.safetensors"):
        open_store(copy).statistics(0, "cls")


NAMES = (
    "zarr.json",
    "layer_00/cls/zarr.json",
    "layer_00/cls/c/1/0/0",
    "shards/00001.json",
    "shards/00001.stats.safetensors",
    "index.parquet",
    "samples.parquet",
    "teacher/config.json",
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("target", ["pipe", "/dev/zero", "/etc/passwd", "folder", "loop"])
def test_links_and_pipes_are_refused_and_not_waited_for(copy: Path, name: str, target: str) -> None:
    file = copy / name
    file.unlink()
    if target == "pipe":
        os.mkfifo(file)
    elif target == "folder":
        file.mkdir()
    else:
        file.symlink_to(file if target == "loop" else target)
    said = []
    for work in (
        lambda: said.extend(str(fault) for fault in verify_store(copy, deep=True).faults),
        lambda: open_store(copy).read([16], [0], "cls"),
        lambda: open_store(copy).samples,
    ):
        try:
            work()
        except StoreError as exc:
            said.append(str(exc))
    assert any(name in line for line in said)
    assert not any("root:" in line for line in said), "what a link leads to is not told"


def test_a_link_to_the_same_bytes_is_followed(copy: Path, written: Plan, tmp_path: Path) -> None:
    """Parts of a store may lie on another disk."""
    shutil.move(copy / "layer_00", tmp_path / "elsewhere")
    (copy / "layer_00").symlink_to(tmp_path / "elsewhere")
    assert verify_store(copy, deep=True, complete=True).ok
    assert np.array_equal(open_store(copy).read([0], [0]), written.stored[:1, :1])
