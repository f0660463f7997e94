"""Single rows of a chunk cost the blocks that hold them, and are the rows that all of it would give."""

from __future__ import annotations

import itertools
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numcodecs import blosc

from activault.store import decoding
from activault.store.codecs import pack_chunk, round_to_bfloat16, to_stored, with_crc
from activault.store.decoding import decode_chunk
from activault.store.errors import CorruptStoreError

ROWS, TOKENS, DIM = 24, 64, 96
NOT_READ = "chunk (cannot be decompressed|must hold bfloat16 values)"


def chunk_of(dtype: Any) -> np.ndarray:
    values = np.random.default_rng(0).normal(0, 20, (ROWS, TOKENS, DIM))
    return values.astype(np.float16).astype(dtype)


@settings(max_examples=30, deadline=None)
@given(
    rows=st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=ROWS, unique=True).map(sorted),
    dtype=st.sampled_from([np.float32, np.float16, np.int8]),
    compression=st.sampled_from(["blosc", "none"]),
    blocksize=st.sampled_from([0, 1 << 13, 5000, 1 << 16]),
)
def test_rows_are_those_of_the_whole(rows: list[int], dtype: Any, compression: Any, blocksize: int) -> None:
    values = chunk_of(dtype)
    data = with_crc(pack_chunk(values, compression))
    if compression == "blosc":
        data = with_crc(blosc.compress(values, b"lz4", 5, blosc.BITSHUFFLE, blocksize))
    scratch = np.full_like(values, 99)
    found = decode_chunk(data, scratch, "chunk", compression, np.array(rows))
    assert np.array_equal(found[rows], values[rows])


@settings(max_examples=30, deadline=None)
@given(
    rows=st.none() | st.lists(st.integers(0, ROWS - 1), min_size=1, unique=True).map(sorted),
    shape=st.sampled_from([(ROWS, TOKENS, DIM), (ROWS, 1, DIM), (ROWS, 1, 1), (ROWS, 5, 7)]),
    codec=st.sampled_from([b"lz4", b"zstd"]),
    shuffle=st.sampled_from([blosc.BITSHUFFLE, blosc.SHUFFLE, blosc.NOSHUFFLE]),
    blocksize=st.sampled_from([0, 1 << 13, 5000, 1 << 16]),
)
def test_bit_patterns_are_the_upper_halves(
    rows: list[int] | None, shape: tuple[int, ...], codec: bytes, shuffle: int, blocksize: int
) -> None:
    bits = round_to_bfloat16(np.random.default_rng(0).standard_normal(shape, dtype=np.float32))
    bits[3] = 0x7FC0
    data = with_crc(blosc.compress(to_stored(bits), codec, 5, shuffle, blocksize))
    wanted = None if rows is None else np.array(rows)
    found = decode_chunk(data, np.full_like(bits, 99), "chunk", "blosc", wanted)
    taken = slice(None) if rows is None else rows
    assert np.array_equal(found[taken], bits[taken])


@pytest.mark.parametrize("dtype", [np.uint16, np.float32])
def test_only_bytes_that_may_be_written_to_are(dtype: Any) -> None:
    values = to_stored(round_to_bfloat16(chunk_of(np.float32)))
    data = with_crc(blosc.compress(values, b"lz4", 5, blosc.BITSHUFFLE, 5000))
    before = bytes(bytearray(data))
    own = np.frombuffer(bytearray(data), np.uint8)
    rows = np.array([3, 7])
    found = [
        decode_chunk(source, np.empty(values.shape, dtype), "chunk", "blosc", rows)[rows]
        for source in (data, own)
    ]
    assert np.array_equal(*found)
    assert data == before
    assert own.tobytes() != before


@pytest.mark.parametrize("compression", ["blosc", "none"])
@pytest.mark.parametrize("shape", [(ROWS, TOKENS, DIM), (ROWS, 1, 8)], ids=["blocks", "one block"])
def test_values_with_more_bits_than_bfloat16_are_refused(compression: Any, shape: tuple[int, ...]) -> None:
    values = to_stored(np.full(shape, 0x3F80, np.uint16))
    values[-1, -1, -1] = 1 + 2**-23
    data = with_crc(pack_chunk(values, compression))
    with pytest.raises(CorruptStoreError, match="chunk must hold bfloat16 values; some have more bits"):
        decode_chunk(data, np.empty(shape, np.uint16), "chunk", compression)
    assert np.array_equal(decode_chunk(data, np.empty_like(values), "chunk", compression), values)


def test_one_row_takes_one_or_two_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    values = chunk_of(np.float32)
    data = with_crc(blosc.compress(values, b"lz4", 5, blosc.BITSHUFFLE, 1 << 15))
    seen: list[int] = []

    class Counting:
        @staticmethod
        def decompress(source: bytes, out: np.ndarray) -> None:
            seen.append(out.nbytes)
            blosc.decompress(source, out)

    monkeypatch.setattr(decoding, "blosc", Counting)
    decode_chunk(data, np.empty_like(values), "chunk", "blosc", np.array([5]))
    assert len(seen) == 2
    assert sum(seen) < values.nbytes / 2
    seen.clear()
    decode_chunk(data, np.empty_like(values), "chunk", "blosc", np.arange(20))
    assert seen == [values.nbytes]


@pytest.mark.parametrize("place", [0, 1, 5])
@pytest.mark.parametrize("value", [0, 7, 2**31, 2**32 - 1])
def test_false_places_of_blocks_are_not_followed(place: int, value: int) -> None:
    """Its crc32c is right and its blocks lie elsewhere: refused, or left to blosc's own checks."""
    values = chunk_of(np.float32)
    packed = bytearray(blosc.compress(values, b"lz4", 5, blosc.BITSHUFFLE, 1 << 15))
    struct.pack_into("<I", packed, 16 + 4 * place, value)
    data = with_crc(bytes(packed))
    for dtype, rows in itertools.product((np.float32, np.uint16), (np.array([0, 4]), None)):
        with pytest.raises(CorruptStoreError, match=NOT_READ):
            decode_chunk(data, np.empty(values.shape, dtype), "chunk", "blosc", rows)


@pytest.mark.parametrize("stream", [0, 1, 2, 3])
@pytest.mark.parametrize("length", [0, 3, 2**31, 2**32 - 1])
def test_false_lengths_of_streams_are_not_followed(stream: int, length: int) -> None:
    values = to_stored(round_to_bfloat16(chunk_of(np.float32)))
    packed = bytearray(blosc.compress(values, b"lz4", 5, blosc.BITSHUFFLE, 1 << 15))
    place = struct.unpack_from("<I", packed, 16)[0]
    for _ in range(stream):
        place += 4 + struct.unpack_from("<I", packed, place)[0]
    struct.pack_into("<I", packed, place, length)
    with pytest.raises(CorruptStoreError, match=NOT_READ):
        decode_chunk(with_crc(bytes(packed)), np.empty(values.shape, np.uint16), "chunk")
