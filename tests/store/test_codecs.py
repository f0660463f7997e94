from __future__ import annotations

import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numcodecs import Blosc

from activault.store.codecs import (
    crc32c,
    fill_of,
    non_finite,
    pack_chunk,
    round_to_bfloat16,
    round_to_float16,
    to_float32,
    with_crc,
)
from activault.store.decoding import decode_chunk
from activault.store.errors import CorruptStoreError

BITS = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=64)


def torch_bfloat16(values: np.ndarray) -> np.ndarray:
    return torch.from_numpy(values).bfloat16().view(torch.int16).numpy().view(np.uint16)


@given(BITS)
def test_rounding_equals_torchs_own_cast(bits: list[int]) -> None:
    values = np.array(bits, np.uint32).view(np.float32)
    ours, theirs = round_to_bfloat16(values), torch_bfloat16(values)
    is_nan = np.isnan(values)
    assert np.array_equal(ours[~is_nan], theirs[~is_nan])
    assert np.isnan(to_float32(ours)[is_nan]).all()


@pytest.mark.parametrize(
    ("bits", "rounded"),
    [
        pytest.param(0x3F808000, 0x3F80, id="tie to even, down"),
        pytest.param(0x3F818000, 0x3F82, id="tie to even, up"),
        pytest.param(0x3F808001, 0x3F81, id="just above a tie"),
        pytest.param(0x7F7FFFFF, 0x7F80, id="overflow to infinity"),
        pytest.param(0x80000000, 0x8000, id="minus zero"),
        pytest.param(0x00000001, 0x0000, id="smallest denormal"),
        pytest.param(0x7F800001, 0x7FC0, id="signalling NaN stays NaN"),
        pytest.param(0xFFFFFFFF, 0x7FC0, id="NaN with every bit set stays NaN"),
    ],
)
def test_rounding_of(bits: int, rounded: int) -> None:
    assert round_to_bfloat16(np.array([bits], np.uint32).view(np.float32))[0] == rounded


@given(st.lists(st.integers(0, 2**16 - 1), min_size=1, max_size=64))
def test_widening_keeps_every_bit(bits: list[int]) -> None:
    held = np.array(bits, np.uint16)
    assert np.array_equal(to_float32(held).view(np.uint32), held.astype(np.uint32) << 16)


@pytest.mark.parametrize("dtype", [np.uint16, np.float32])
def test_non_finite_finds_nan_and_infinities(dtype: type) -> None:
    values = np.array([0.0, 1.0, np.nan, np.inf, -np.inf, -3e38], np.float32)
    held = round_to_bfloat16(values) if dtype is np.uint16 else values
    assert non_finite(held).tolist() == [False, False, True, True, True, False]


@given(BITS)
def test_float16_rounding_equals_torchs_own_cast(bits: list[int]) -> None:
    values = np.array(bits, np.uint32).view(np.float32)
    ours, theirs = round_to_float16(values), torch.from_numpy(values).half().numpy()
    is_nan = np.isnan(values)
    assert np.array_equal(ours[~is_nan].view(np.uint16), theirs[~is_nan].view(np.uint16))
    assert np.isnan(ours[is_nan]).all()


def test_codes_are_decoded_with_two_roundings() -> None:
    scale, offset = np.array([0.1, 3.7e-3], np.float32), np.array([1e3, -2.5], np.float32)
    codes = np.array([[-127, 5], [127, -128]], np.int8)
    expected = np.float32(codes.astype(np.float32) * scale) + offset
    expected[1, 1] = np.nan
    assert np.array_equal(to_float32(codes, scale, offset), expected, equal_nan=True)
    assert non_finite(codes).tolist() == [[False, False], [False, True]]


@pytest.mark.parametrize("dtype", [np.uint16, np.float16, np.float32, np.int8])
def test_fill_is_no_value(dtype: type) -> None:
    filled = np.full(2, fill_of(np.dtype(dtype)), dtype)
    assert non_finite(filled).all()
    assert np.isnan(to_float32(filled, np.float32([1, 1]), np.float32([0, 0]))).all()


def chunk(payload: bytes) -> bytes:
    return payload + struct.pack("<I", crc32c(payload))


def test_decode_refuses_a_flipped_bit() -> None:
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    data = bytearray(chunk(Blosc("lz4", shuffle=Blosc.BITSHUFFLE).encode(values)))
    out = np.empty_like(values)
    decode_chunk(bytes(data), out, "chunk")
    assert np.array_equal(out, values)
    data[len(data) // 2] ^= 1
    with pytest.raises(CorruptStoreError, match=r"chunk is not what was written \(crc32c disagrees\)"):
        decode_chunk(bytes(data), out, "chunk")


@pytest.mark.parametrize("payload", [b"", b"short", Blosc("lz4").encode(np.zeros(10**6, np.float32))])
def test_decode_refuses_another_size_before_it_allocates(payload: bytes) -> None:
    with pytest.raises(CorruptStoreError, match="must hold 96 bytes of values; its header says otherwise"):
        decode_chunk(chunk(payload), np.empty((2, 3, 4), np.float32), "chunk")


@pytest.mark.parametrize("values", [np.zeros(23, np.float32), np.zeros(25, np.float32)])
def test_decode_without_compression_refuses_another_size(values: np.ndarray) -> None:
    with pytest.raises(CorruptStoreError, match=f"must hold 96 bytes of values; it holds {values.nbytes}"):
        decode_chunk(with_crc(pack_chunk(values, "none")), np.empty((2, 3, 4), np.float32), "chunk", "none")
