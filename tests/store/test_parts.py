from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from activault.store import ConfigError
from activault.store.held import HeldShards
from activault.store.layout import parse_layers
from activault.store.manifest import Manifest
from activault.store.merging import _joined
from activault.store.parts import choose_part, parse_rows, part_samples, shard_ranges

from .conftest import make_manifest, make_samples

STEP = {"scale": (0.5,) * 8, "offset": (0.0,) * 8, "variance": 1.0}


@given(st.sets(st.integers(0, 60), min_size=1))
def test_ranges_hold_exactly_their_shards(shards: set[int]) -> None:
    ranges = shard_ranges(sorted(shards))
    assert [shard for first, stop in ranges for shard in range(first, stop)] == sorted(shards)
    bounds = [bound for pair in ranges for bound in pair]
    assert bounds == sorted(set(bounds))
    assert shard_ranges(HeldShards(ranges)) == ranges
    assert _joined([*reversed(ranges), *((shard, shard + 1) for shard in shards)]) == ranges


@given(st.data())
def test_rows_are_widened_to_whole_shards_and_no_further(data: st.DataObject) -> None:
    manifest = make_manifest()
    first = data.draw(st.integers(0, 49))
    stop = data.draw(st.integers(first + 1, 50))
    part = choose_part(manifest, rows=f"{first}:{stop}")
    assert part.asked_rows == range(first, stop)
    assert set(part.asked_rows) <= set(part.rows)
    held = [row for shard in part.manifest.held_shards for row in manifest.shard_range(shard)]
    assert held == list(part.rows)
    for shard in part.manifest.held_shards:
        assert set(manifest.shard_range(shard)) & set(part.asked_rows)


@pytest.mark.parametrize(
    ("text", "rows"),
    [("0:50", (0, 50)), (":7", (0, 7)), ("8:", (8, 50)), (" 1 : 2 ", (1, 2)), (":", (0, 50))],
)
def test_rows_as_text(text: str, rows: tuple[int, int]) -> None:
    assert parse_rows(text, 50) == range(*rows)


@pytest.mark.parametrize("rows", ["5", "a:b", "-3:5", "7:7", "9:3", "0:51", slice(0, 9, 2)], ids=str)
def test_rows_that_mean_nothing_are_refused(rows: Any) -> None:
    with pytest.raises(ConfigError, match="rows"):
        parse_rows(rows, 50)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        pytest.param("0:" + "9" * 5000, r"rows are first:stop, .* got 0:9{75}\.\.\.$", id="5,000 digits"),
        pytest.param(5, "text such as 0:10000, a range or a slice; got 5", id="one number"),
        pytest.param([1, 2], r"a range or a slice; got \[1, 2\]", id="list"),
        pytest.param((0, 16), r"a range or a slice; got \(0, 16\)", id="pair"),
        pytest.param(
            slice("a", None), r"of whole numbers; got slice\('a', None, None\)", id="text in a slice"
        ),
        pytest.param(slice(0, 2.5), "of whole numbers", id="slice of floats"),
    ],
)
def test_rows_of_another_kind_are_refused(rows: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        choose_part(make_manifest(), rows=rows)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ("0-4", "layer 1 in '0-4' is not kept; there are layers 0, 2, 4"),
        ("2-3", "layer 3 in '2-3' is not kept"),
        ("0-5", "layer 5 in '0-5' is out of range"),
        ("0-999999999", "layer 999999999 in '0-999999999' is out of range"),
        ("0-" + "9" * 5000, r"layers are numbers and ranges .* got '0-9{75}'\.\.\.$"),
        ("9" * 5000, "layers are numbers and ranges"),
    ],
    ids=["gap", "its end", "beyond", "far beyond", "5,000 digits", "5,000 digits alone"],
)
def test_every_layer_of_a_range_must_be_there(layers: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        choose_part(make_manifest(), layers=layers)
    with pytest.raises(ConfigError, match=r"there are layers 0-3, 7$"):
        parse_layers("0-7", (0, 1, 2, 3, 7))


def test_all_is_the_manifest_itself() -> None:
    manifest = make_manifest()
    assert choose_part(manifest).manifest == manifest
    assert choose_part(manifest, "all", "all", ":").manifest.sha256() == manifest.sha256()


def test_a_part_of_a_part_is_within_it() -> None:
    manifest = make_manifest().with_parts((0, 2), ("cls", "patches"), ((0, 1), (2, 4)))
    assert choose_part(manifest, layers=[2]).manifest.shards == manifest.shards
    assert choose_part(manifest, rows="40:").manifest.shards == ((2, 4),)
    with pytest.raises(ConfigError, match=r"it lacks 16:32 \(shard 1\)"):
        choose_part(manifest, rows="0:40")
    with pytest.raises(ConfigError, match="layer 4"):
        choose_part(manifest, layers="4")
    with pytest.raises(ConfigError, match="token kinds here are cls, patches; got registers"):
        choose_part(manifest, tokens="registers")


@pytest.mark.parametrize("tokens", ["patches", "cls"])
def test_scales_of_int8_stay_with_their_layers(tokens: str) -> None:
    steps = [STEP | {"variance": float(layer)} for layer in (0, 2, 4)]
    manifest = make_manifest(dtype="int8", quantisation=steps)
    part = choose_part(manifest, layers=(4, 0), tokens=tokens).manifest
    assert part.quantisation is not None
    assert [step.variance for step in part.quantisation] == [0.0, 4.0]
    assert Manifest.model_validate(part.model_dump(mode="json")) == part


@given(st.sets(st.integers(0, 3), min_size=1))
def test_the_table_of_a_part_says_which_rows_are_absent(shards: set[int]) -> None:
    manifest = make_manifest().with_parts((0,), ("cls",), shard_ranges(sorted(shards)))
    status = np.array(part_samples(make_samples(50), manifest)["status"].to_pylist())
    for row in range(50):
        assert status[row] == ("pending" if row // 16 in shards else "absent")
