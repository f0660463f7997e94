"""What a manifest says beside the arrays: patches kept, preprocessing, details, contents of images."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from pydantic import ValidationError

from activault.store import (
    ConfigError,
    Outcome,
    StoreMismatchError,
    TokenLayout,
    open_store,
    verify_store,
)
from activault.store.layout import require_all_tokens
from activault.store.merging import merge
from activault.store.transfer import pull

from .conftest import MakePlan, Plan

GRID = {"num_cls": 1, "num_registers": 2, "grid": (2, 3)}


@pytest.mark.parametrize(("kept", "count"), [(None, 6), ("mean", 1), ((0, 5), 2)], ids=str)
def test_patches_that_are_kept(make_plan: MakePlan, tmp_path: Path, kept: Any, count: int) -> None:
    layout = TokenLayout(**GRID, kept_patches=kept)
    assert (layout.count("patches"), layout.num_tokens) == (count, 3 + count)
    plan = make_plan(layout=layout)
    store = plan.write()
    assert store.read(slice(None), store.layers).shape == (50, 3, 3 + count, 8)
    np.testing.assert_array_equal(store.read(slice(None), store.layers), plan.stored)
    assert verify_store(plan.path, deep=True, complete=True).faults == ()
    assert store.info()["kept_patches"] == (list(kept) if isinstance(kept, tuple) else kept)
    copy = open_store(pull(plan.path, tmp_path / "part.zarr", layers="0"))
    assert copy.layout == layout


@pytest.mark.parametrize("kept", [(), (0, 0), (3, 1), (6,), (-1,), tuple(range(6)), "some"], ids=str)
def test_no_patches_of_the_grid(kept: Any) -> None:
    with pytest.raises(ValidationError, match="kept_patches"):
        TokenLayout(**GRID, kept_patches=kept)


@pytest.mark.parametrize(
    ("kept", "kinds", "lacking"),
    [((0, 1), ("cls", "registers", "patches"), "most patches"), (None, ("cls", "patches"), "registers")],
    ids=["patches", "kinds"],
)
def test_a_use_of_all_tokens_refuses_a_part(kept: Any, kinds: Any, lacking: str) -> None:
    with pytest.raises(ConfigError, match=f"a roll-out takes all tokens .* without {lacking}; extract"):
        require_all_tokens(TokenLayout(**GRID, kept_patches=kept), kinds, "a roll-out")


def test_all_tokens_are_all(written: Plan) -> None:
    require_all_tokens(written.manifest.layout, written.manifest.kinds, "a roll-out")


def test_details_are_kept_whatever_they_are(make_plan: MakePlan, tmp_path: Path) -> None:
    details = {"autocast": "off", "max_pixels": 7, "compiled": False, "scale": 0.5, "note": None}
    store = make_plan(details=details).write()
    assert store.info()["details"] == details
    kinds = [type(value) for _, value in store.manifest.details]
    assert kinds == [str, bool, int, type(None), float]
    assert open_store(pull(store.path, tmp_path / "b.zarr")).manifest == store.manifest
    assert "max_pixels `7`" in (tmp_path / "b.zarr" / "CARD.md").read_text()


@pytest.mark.parametrize(
    "details",
    [{"No": 1}, {"": 1}, {"a": "x" * 1001}, {f"n{n}": n for n in range(65)}, {"a": [1]}, {"a": float("nan")}],
    ids=["capital", "empty", "long", "many", "list", "nan"],
)
def test_what_is_no_detail_is_refused(make_plan: MakePlan, details: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="details"):
        make_plan(details=details)


def test_a_crop_from_the_centre_has_a_resize(written: Plan) -> None:
    steps = written.manifest.preprocessing
    assert steps is not None
    with pytest.raises(ValidationError, match="cuts from the centre has a resize"):
        type(steps).model_validate(steps.model_dump() | {"resize": None})
    assert type(steps).model_validate(steps.model_dump() | {"resize": None, "crop_mode": "squash"})


def publish(plan: Plan, contents: dict[int, str | None]) -> None:
    """One complete store whose images have these content hashes."""
    with plan.open() as writer:
        for shard in writer.unfinished:
            buffer = writer.buffer(shard)
            for place, layer in enumerate(plan.manifest.layers):
                buffer.write(layer, 0, plan.values[buffer.rows.start : buffer.rows.stop, place])
            writer.publish(buffer, [Outcome(status="ok", content=contents.get(row)) for row in buffer.rows])
        writer.complete()


def images_of(path: Path) -> list[str | None]:
    return [json.loads(file.read_text())["images"] for file in sorted((path / "shards").glob("*.json"))]


def hashes(salt: str) -> dict[int, str | None]:
    return {row: hashlib.md5(f"{salt}{row}".encode()).hexdigest() for row in range(50)}


def test_a_record_has_the_hash_of_its_images(make_plan: MakePlan, tmp_path: Path) -> None:
    plan, contents = make_plan(), hashes("a") | {40: None}
    publish(plan, contents)
    expected: list[str | None] = [
        xxhash.xxh3_128_hexdigest("".join(str(contents[row]) for row in range(first, first + 16)).encode())
        for first in (0, 16)
    ]
    found = images_of(plan.path)
    assert found[:2] == expected
    assert found[2] is None
    assert images_of(pull(plan.path, tmp_path / "b.zarr", layers="0")) == found


def test_layers_of_other_images_are_not_merged(make_plan: MakePlan, tmp_path: Path) -> None:
    """The same keys and sizes, and other contents."""
    one, other, unknown = make_plan(), make_plan("other.zarr"), make_plan("unknown.zarr")
    publish(one, hashes("a"))
    publish(other, hashes("b"))
    publish(unknown, {})
    first = pull(one.path, tmp_path / "first.zarr", layers="0")
    with pytest.raises(StoreMismatchError, match=re.escape("the contents of the images differ between")):
        merge([first, pull(other.path, tmp_path / "b.zarr", layers="2")], tmp_path / "ab.zarr")
    joined = merge([pull(unknown.path, tmp_path / "c.zarr", layers="2"), first], tmp_path / "ac.zarr")
    assert images_of(joined) == images_of(one.path)


def test_a_store_may_hold_folders_of_later_writers(copy: Path, tmp_path: Path) -> None:
    (copy / "targets").mkdir()
    (copy / "targets" / "depth.bin").write_bytes(b"1")
    report = verify_store(copy, deep=True, complete=True)
    assert (report.faults, [note.where for note in report.notes]) == ((), ["targets"])
    assert not (pull(copy, tmp_path / "b.zarr") / "targets").exists()
