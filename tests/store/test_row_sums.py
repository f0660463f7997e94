"""Row sums and what is made of them: the digest of the values alone."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import xxhash

from activault.store import Store
from activault.store.records import read_record
from activault.store.row_sums import add_row_sums, row_sum

from .conftest import MakePlan


def digest_by_hand(store: Store) -> str:
    """As FORMAT.md says it, from what the store reads."""
    state = hashlib.sha256()
    for layer in store.layers:
        for kind in store.kinds:
            values = store.read(slice(None), [layer], kind)[:, 0]
            total = sum(xxhash.xxh3_128_intdigest(x.tobytes(), seed) for seed, x in enumerate(values))
            state.update(f"layer_{layer:02d}/{kind} {total % 2**128:032x}\n".encode())
    return state.hexdigest()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "int8"])
def test_the_arrays_digest_is_that_of_the_format(make_plan: MakePlan, dtype: str) -> None:
    store = make_plan(dtype=dtype, bad_rows=(7, 20)).write()
    assert store.arrays_digest == digest_by_hand(store)


@pytest.mark.parametrize("grid", [(8, 8), (50, 1), (64, 64), (12, 3)])
def test_the_arrays_digest_does_not_depend_on_the_grid(make_plan: MakePlan, grid: tuple[int, int]) -> None:
    whole = make_plan(bad_rows=(7, 20)).write()
    other = make_plan("b.zarr", bad_rows=(7, 20), shard_rows=grid[0], chunk_rows=grid[1]).write()
    assert other.arrays_digest == whole.arrays_digest
    assert other.digest != whole.digest


def test_equal_rows_in_other_places_are_told_apart() -> None:
    values = np.random.default_rng(0).standard_normal((2, 3, 4), dtype=np.float32)
    assert row_sum(range(2), values) != row_sum(range(2), values[::-1].copy())


def test_sums_of_disjoint_rows_add_up() -> None:
    values = np.random.default_rng(0).standard_normal((9, 3, 4), dtype=np.float32)
    parts = [row_sum(range(start, stop), values[start:stop]) for start, stop in ((0, 4), (4, 9))]
    assert add_row_sums(parts) == add_row_sums([row_sum(range(9), values)])
    assert add_row_sums([2**128 - 1, 2]) == f"{1:032x}"


def test_a_record_has_the_sums_of_its_own_rows(make_plan: MakePlan) -> None:
    store = make_plan().write()
    found = read_record(store.storage, store.manifest, 2)
    assert found is not None
    values = store.read(slice(32, 48), [2], "registers")[:, 0]
    assert found[0].files[4].row_sum == row_sum(range(32, 48), values)
