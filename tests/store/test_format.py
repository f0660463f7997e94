"""What FORMAT.md lists is what the code writes."""

from __future__ import annotations

import json
import re
from itertools import product
from typing import Any, get_args

import numpy as np
import pytest
import zarr

from activault.store import StoredDtype
from activault.store.codecs import array_metadata
from activault.store.manifest import PRECISIONS

from .conftest import MakePlan, make_manifest
from .plain_zarr import FORMAT as TEXT
from .plain_zarr import plain_floats


def leaves(value: Any, prefix: str = "") -> set[str]:
    if not isinstance(value, dict):
        return {prefix.rstrip(".")}
    return {leaf for key, part in value.items() for leaf in leaves(part, f"{prefix}{key}.")}


def test_every_field_of_the_manifest_is_listed_and_no_other() -> None:
    section = TEXT.split("`attributes.activault` is the manifest")[1].split("Names that this writer puts")[0]
    first_cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    listed = {name for cell in first_cells for name in re.findall(r"`([^`]+)`", cell)}
    assert listed - {"preprocessing"} == leaves(make_manifest().model_dump(mode="json")) | {"details"}


def test_the_array_metadata_shown_are_those_written() -> None:
    shown = json.loads(TEXT.split("```json\n")[1].split("```")[0])
    assert shown == array_metadata(make_manifest(), "patches")


def test_the_bound_of_tables_is_the_stated_one() -> None:
    manifest = make_manifest()
    assert "4 GiB or of more than 64 MiB + 4 KiB a row + 1 KiB an array and shard + 64 bytes an array" in TEXT
    assert manifest.max_table_bytes == 64 * 2**20 + 4096 * 50 + 9 * (1024 * 4 + 64 * 8)
    assert make_manifest(num_rows=2**40).max_table_bytes == 4 * 2**30


def table_of_codecs() -> dict[str, list[str]]:
    """Cells after the first of the table of data types, by dtype."""
    section = TEXT.split("| dtype | data type | fill value |")[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines()[2:]]
    return {first.strip("`"): cells for first, *cells in rows if first}


@pytest.mark.parametrize("dtype", get_args(StoredDtype))
def test_the_table_of_codecs_is_what_is_written(dtype: str) -> None:
    data_type, fill, how, _ = table_of_codecs()[dtype]
    written = array_metadata(make_manifest(dtype=dtype), "patches")
    codecs = written["codecs"][0]["configuration"]["codecs"]
    assert [codec["name"] for codec in codecs] == ["bytes", "blosc", "crc32c"]
    assert written["data_type"] == data_type.removeprefix("patches: ").strip("`")
    assert str(written["fill_value"]) == fill.strip("`")
    said = re.fullmatch(r"`(\w+)`, level (\d+), `(\w+)`, typesize (\d+)(?:, blocksize (\d+))?", how)
    assert said is not None
    cname, level, shuffle, typesize, blocksize = said.groups()
    assert codecs[1]["configuration"] == {
        "cname": cname,
        "clevel": int(level),
        "shuffle": shuffle,
        "typesize": int(typesize),
        "blocksize": int(blocksize or 0),
    }


def test_other_kinds_of_int8_are_as_bfloat16() -> None:
    assert "other kinds as `bfloat16`" in TEXT
    for kind in ("cls", "registers"):
        ours, theirs = (array_metadata(make_manifest(dtype=name), kind) for name in ("int8", "bfloat16"))
        assert ours == theirs


def test_every_dtype_is_in_the_table() -> None:
    assert set(table_of_codecs()) == set(get_args(StoredDtype))


@pytest.mark.parametrize(("dtype", "compression"), PRECISIONS)
def test_plain_zarr_reads_the_same_floats(make_plan: MakePlan, dtype: str, compression: str) -> None:
    plan = make_plan(bad_rows=(7, 20), dtype=dtype, compression=compression)
    store = plan.write()
    ours = store.read(slice(0, store.num_rows), store.layers)
    assert np.isnan(ours[[7, 20]]).all()
    for place, layer in enumerate(store.layers):
        for kind in store.kinds:
            plain = plain_floats(plan.path, layer, kind)
            assert plain.tobytes() == ours[:, place, store.layout.span(kind)].tobytes()


@pytest.mark.parametrize(("dtype", "compression"), PRECISIONS)
def test_plain_zarr_opens_every_array(make_plan: MakePlan, dtype: str, compression: str) -> None:
    plan = make_plan(dtype=dtype, compression=compression)
    plan.write([0])
    group = zarr.open_group(str(plan.path), mode="r")
    for layer, kind in product(plan.manifest.layers, plan.manifest.kinds):
        array: Any = group[f"layer_{layer:02d}/{kind}"]
        assert array.shape == plan.manifest.array_shape(kind)
        assert array.shards == (16, *array.shape[1:])
        assert array.chunks == (4, *array.shape[1:])
        assert array.metadata.dimension_names == ("row", "token", "channel")


def test_a_file_of_the_store_that_is_not_listed_is_not_written(make_plan: MakePlan) -> None:
    """The folder is what FORMAT.md's tree shows, and no more."""
    plan = make_plan()
    plan.write()
    names = {str(file.relative_to(plan.path)) for file in plan.path.rglob("*") if file.is_file()}
    patterns = (
        r"zarr\.json", r"layer_\d\d/zarr\.json", r"layer_\d\d/(cls|registers|patches)/zarr\.json",
        r"layer_\d\d/(cls|registers|patches)/c/\d+/0/0", r"samples\.parquet", r"shards/\d{5}\.json",
        r"shards/\d{5}\.stats\.safetensors", r"index\.parquet", r"teacher/[a-z]+\.[a-z]+", r"CARD\.md",
        r"(shards/)?\.lock",
    )  # fmt: skip
    assert {name for name in names if not any(re.fullmatch(pattern, name) for pattern in patterns)} == set()
    assert all(any(re.fullmatch(pattern, name) for name in names) for pattern in patterns)
