from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from activault.store import ConfigError
from activault.store.selection import by_chunk, check_layers, check_rows

ENDS = st.none() | st.integers(-30, 30)
STEPS = st.none() | st.integers(-5, 5).filter(bool)


@given(ENDS, ENDS, STEPS, st.integers(1, 20))
def test_a_slice_means_what_it_means_to_numpy(
    start: int | None, stop: int | None, step: int | None, num_rows: int
) -> None:
    asked = slice(start, stop, step)
    assert check_rows(asked, num_rows).tolist() == np.arange(num_rows)[asked].tolist()


@pytest.mark.parametrize(
    "rows",
    [[3, 0, 3], range(3, 9, 2), range(8, 0, -3), range(5, 5), [], np.array([9, 1], np.uint8)],
    ids=["list", "range", "range backwards", "empty range", "nothing", "small integers"],
)
def test_row_numbers_keep_their_order(rows: Any) -> None:
    found = check_rows(rows, 10)
    assert (found.dtype, found.tolist()) == (np.int64, list(rows))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        pytest.param([0, 10], "rows are 0 to 9; got 10", id="too high"),
        pytest.param([-1], "rows are 0 to 9; got -1", id="negative"),
        pytest.param(np.array([2**63 + 5], np.uint64), f"got {2**63 + 5}", id="beyond int64"),
        pytest.param(range(10**18), f"got {10**18 - 1}", id="range that no memory holds"),
        pytest.param(range(-1, 3), "got -1", id="range from a negative row"),
        pytest.param(range(2**70, 2**70 + 1), f"got {2**70}", id="range beyond int64"),
        pytest.param([0.0, 1.0], "a slice or whole numbers; got float64", id="floats"),
        pytest.param([[0], [1, 2]], r"a slice or whole numbers; got \[\[0\], \[1, 2\]\]", id="uneven lists"),
        pytest.param(None, "a slice or whole numbers", id="none"),
        pytest.param([[0, 1]], r"got int64 of shape \(1, 2\)", id="two dimensions"),
        pytest.param(3, r"got int64 of shape \(\)", id="one number"),
        pytest.param("01", "a slice or whole numbers", id="text"),
        pytest.param([True, False], r"not a mask of 2; give np\.flatnonzero", id="mask"),
        pytest.param(np.array([1], "m8[s]"), r"got timedelta64\[s\] of shape", id="times"),
        pytest.param(
            np.ma.array([1, 2], mask=[0, 1]), "rows are all meant; got a masked array of 2", id="masked"
        ),
        pytest.param(slice(0, 5, 0), "a slice of rows is of whole numbers", id="step 0"),
        pytest.param(slice(0, 2.5), "a slice of rows is of whole numbers", id="slice of floats"),
    ],
)
def test_other_rows_are_refused(rows: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_rows(rows, 10)


@pytest.mark.parametrize(
    "layers",
    [[7, 0], range(0, 8, 7), np.array([0, 7]), iter([0])],
    ids=["list", "range", "array", "iterator"],
)
def test_layers_keep_their_order(layers: Any) -> None:
    found = check_layers(layers, (0, 1, 7))
    assert found in {(7, 0), (0, 7), (0,)}
    assert {type(layer) for layer in found} == {int}


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        pytest.param("01", "whole numbers from 0, such as .*; got '01'", id="text"),
        pytest.param([0, True], r"whole numbers from 0, such as .*; got \[0, True\]", id="truth value"),
        pytest.param(np.array([True, False]), "whole numbers from 0", id="mask"),
        pytest.param([0.0], r"whole numbers from 0, such as .*; got \[0.0\]", id="float"),
        pytest.param([None], "whole numbers from 0", id="none"),
        pytest.param(1, "whole numbers from 0, such as .*; got 1", id="no sequence"),
        pytest.param([-1], r"some of \(0, 1, 7\), each once; got \(-1,\)", id="negative"),
        pytest.param([0, 2], r"some of \(0, 1, 7\), each once", id="not kept"),
        pytest.param([1, 1], "each once", id="twice"),
        pytest.param([], "each once", id="nothing"),
    ],
)
def test_other_layers_are_refused(layers: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_layers(layers, (0, 1, 7))


@given(st.lists(st.integers(0, 200)), st.integers(1, 40))
def test_every_row_is_in_its_chunk_and_at_its_place(rows: list[int], chunk_rows: int) -> None:
    out = np.full(len(rows), -1)
    parts = list(by_chunk(np.array(rows, np.int64), chunk_rows))
    for part in parts:
        assert part.local.max() < chunk_rows
        out[part.places] = part.chunk * chunk_rows + part.local
    assert out.tolist() == rows
    assert [part.chunk for part in parts] == sorted({row // chunk_rows for row in rows})
