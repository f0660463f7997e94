"""Single rows of a chunk cost the blocks that hold them, and are the rows that all of it would give."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numcodecs import blosc

from activault.store import decoding
from activault.store.codecs import encode_chunk, with_crc
from activault.store.decoding import decode_chunk
from activault.store.errors import CorruptStoreError

ROWS, TOKENS, DIM = 24, 64, 96


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
    data = encode_chunk(values, compression)
    if compression == "blosc":
        data = with_crc(blosc.compress(values, b"lz4", 5, blosc.BITSHUFFLE, blocksize))
    scratch = np.full_like(values, 99)
    found = decode_chunk(data, scratch, "chunk", compression, np.array(rows))
    assert np.array_equal(found[rows], values[rows])


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
    with pytest.raises(CorruptStoreError, match="chunk cannot be decompressed"):
        decode_chunk(with_crc(bytes(packed)), np.empty_like(values), "chunk", "blosc", np.array([0, 4]))
