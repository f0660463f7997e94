from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activault.store import ConfigError, StoredDtype, TokenLayout, choose_grid
from activault.store.grid import CHUNK_BYTES, MAX_SHARD_ROWS, SHARD_BUFFER_BYTES

VIT_B = TokenLayout(num_cls=1, num_registers=4, grid=(16, 16))
KINDS = ("cls", "registers", "patches")


def test_a_vit_b_at_224_pixels_gets_the_stated_grid() -> None:
    shard_rows, chunk_rows = choose_grid(
        num_rows=1_281_167, layout=VIT_B, kinds=KINDS, num_layers=13, dim=768
    )
    assert chunk_rows == 32
    assert shard_rows % 32 == 0
    files = -(-1_281_167 // shard_rows) * (13 * 3 + 2)
    assert files < 70_000


@given(
    st.integers(1, 10**7),
    st.integers(1, 64),
    st.integers(1, 40),
    st.sampled_from([192, 384, 768, 1536]),
    st.sampled_from(["bfloat16", "float16", "float32", "int8"]),
)
def test_targets_are_kept(num_rows: int, side: int, num_layers: int, dim: int, dtype: StoredDtype) -> None:
    layout = TokenLayout(num_cls=1, num_registers=0, grid=(side, side))
    shard_rows, chunk_rows = choose_grid(
        num_rows=num_rows,
        layout=layout,
        kinds=("cls", "patches"),
        num_layers=num_layers,
        dim=dim,
        dtype=dtype,
    )
    patch_bytes = {"float32": 4, "int8": 1}.get(dtype, 2)
    row_bytes = num_layers * dim * (side * side * patch_bytes + (4 if dtype == "float32" else 2))
    assert shard_rows % chunk_rows == 0
    assert chunk_rows == 1 or chunk_rows * side * side * dim * 4 <= CHUNK_BYTES
    assert 1 <= shard_rows <= MAX_SHARD_ROWS
    assert shard_rows == 1 or shard_rows * row_bytes <= SHARD_BUFFER_BYTES


@pytest.mark.parametrize("shard_rows", [1, 7, 32, 48, 100])
def test_asked_rows_a_shard_are_kept(shard_rows: int) -> None:
    found, chunk_rows = choose_grid(
        num_rows=1000, layout=VIT_B, kinds=KINDS, num_layers=13, dim=768, shard_rows=shard_rows
    )
    assert found == shard_rows
    assert shard_rows % chunk_rows == 0
    assert chunk_rows <= 32


@pytest.mark.parametrize("shard_rows", [0, -1, 10**6])
def test_a_buffer_that_does_not_fit_is_refused(shard_rows: int) -> None:
    with pytest.raises(ConfigError, match="rows a shard are 1 to 824 here"):
        choose_grid(num_rows=1000, layout=VIT_B, kinds=KINDS, num_layers=13, dim=768, shard_rows=shard_rows)
