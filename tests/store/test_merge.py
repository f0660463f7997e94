from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from activault.store import (
    ConfigError,
    CorruptStoreError,
    StoreMismatchError,
    open_store,
    verify_store,
)
from activault.store.fetching import Retries
from activault.store.merging import merge, plan_merge
from activault.store.transfer import pull

from .conftest import MakePlan, Plan
from .test_pull import tree

PARTS: dict[str, list[dict[str, Any]]] = {
    "layers": [{"layers": "0"}, {"layers": "2,4"}],
    "kinds": [{"tokens": "patches"}, {"tokens": "cls"}, {"tokens": "registers"}],
    "rows": [{"rows": "32:"}, {"rows": "0:32"}],
    "rows and layers": [
        {"rows": "16:", "layers": "4"},
        {"rows": ":16"},
        {"rows": "16:", "layers": "0,2", "tokens": "cls,registers"},
        {"rows": "16:", "layers": "0,2", "tokens": "patches"},
    ],
    "parts that overlap": [{"rows": "0:33"}, {"rows": "17:50"}],
}


@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
def test_the_parts_of_a_store_are_the_store(
    written: Plan, tmp_path: Path, parts: list[dict[str, Any]]
) -> None:
    pulled = [pull(written.path, tmp_path / f"{n}.zarr", **part) for n, part in enumerate(parts)]
    out = merge(pulled, tmp_path / "all.zarr")
    assert open_store(out).digest == open_store(written.path).digest
    assert tree(out) == tree(written.path)


def test_two_machines_with_shards_of_one_plan(make_plan: MakePlan, written: Plan, tmp_path: Path) -> None:
    one, two = make_plan("one.zarr", bad_rows=(7, 20)), make_plan("two.zarr", bad_rows=(7, 20))
    one.write([0, 3])
    two.write([1])
    out = merge([one.path, two.path], tmp_path / "all.zarr")
    assert verify_store(out, deep=True).faults == ()
    assert (open_store(out).complete, len(open_store(out).finished_rows)) == (False, 34)
    two.write([1, 2])
    merge([one.path, two.path], out)  # it goes on with what has come
    assert tree(out) == tree(written.path)


def test_a_merger_of_parts_that_are_not_all(written: Plan, tmp_path: Path) -> None:
    a = pull(written.path, tmp_path / "a.zarr", layers="0", rows="0:16")
    b = pull(written.path, tmp_path / "b.zarr", layers="0", rows="48:50")
    store = open_store(merge([a, b], tmp_path / "ab.zarr"))
    assert (store.complete, store.layers, store.manifest.shards) == (True, (0,), ((0, 1), (3, 4)))
    assert verify_store(tmp_path / "ab.zarr", deep=True, complete=True).faults == ()


def test_layers_that_do_not_cover_the_same_rows(written: Plan, tmp_path: Path) -> None:
    a = pull(written.path, tmp_path / "a.zarr", layers="0,2")
    b = pull(written.path, tmp_path / "b.zarr", layers="4", rows="0:32")
    lacking = (
        "no source has finished layer_04/cls, layer_04/registers, layer_04/patches of rows 32:48 (shard 2)"
    )
    with pytest.raises(StoreMismatchError, match=re.escape(lacking)):
        merge([a, b], tmp_path / "ab.zarr")
    assert not (tmp_path / "ab.zarr").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"row_seed": 1}, "row_seed is 0 in the first and 1 in the second"),
        ({"dtype": "float32"}, "dtype is 'bfloat16' in the first and 'float32' in the second"),
        ({"license": "mit"}, "license is 'unknown' in the first and 'mit' in the second"),
    ],
    ids=["seed", "dtype", "license"],
)
def test_strangers_are_refused_with_both_values(
    written: Plan, make_plan: MakePlan, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    other = make_plan("other.zarr", **changes)
    other.open().close()
    with pytest.raises(StoreMismatchError, match=f"are not parts of one store: {words}"):
        merge([written.path, other.path], tmp_path / "ab.zarr")


def test_other_images_are_refused(written: Plan, make_plan: MakePlan, tmp_path: Path) -> None:
    other = make_plan("other.zarr")
    label = other.samples.schema.get_field_index("label")
    other.samples = other.samples.set_column(label, "label", other.samples["key"])
    other.open().close()
    with pytest.raises(StoreMismatchError, match="the sample table is"):
        merge([written.path, other.path], tmp_path / "ab.zarr")


def test_another_teacher_file_is_refused(written: Plan, make_plan: MakePlan, tmp_path: Path) -> None:
    from activault.store import create_store

    other = make_plan("other.zarr")
    write = {"config.json": written.path / "teacher/model.safetensors"}
    create_store(other.path, other.manifest, other.samples, write).close()
    with pytest.raises(StoreMismatchError, match=r"teacher/config.json is TeacherFile"):
        merge([written.path, other.path], tmp_path / "ab.zarr")


def test_conflicting_shards_are_refused_with_both_hashes(
    written: Plan, make_plan: MakePlan, tmp_path: Path
) -> None:
    other = make_plan("other.zarr", bad_rows=(7, 20))
    other.values[20, 1] += 1  # shard 1, layer 2
    other.values[21, 1] += 1
    other.write([1])
    hashes = [open_store(path)._shards.record(1).files[3].hash for path in (written.path, other.path)]
    with pytest.raises(StoreMismatchError) as caught:
        merge([written.path, other.path], tmp_path / "ab.zarr")
    assert "shard 1 is not the same in both: layer_02/cls/c/1/0/0" in str(caught.value)
    assert all(hash in str(caught.value) for hash in hashes)


def test_other_outcomes_of_the_same_rows_are_refused(
    written: Plan, make_plan: MakePlan, tmp_path: Path
) -> None:
    a = pull(written.path, tmp_path / "a.zarr", layers="0")
    other = make_plan("other.zarr", bad_rows=(7, 20, 21))
    other.write()
    b = pull(other.path, tmp_path / "b.zarr", layers="2")
    with pytest.raises(StoreMismatchError, match=r"shards/00001.json: (sizes|bad) differ"):
        merge([a, b], tmp_path / "ab.zarr")


def test_a_damaged_source_is_told_and_the_merger_goes_on(written: Plan, tmp_path: Path) -> None:
    a = pull(written.path, tmp_path / "a.zarr", rows="0:32")
    b = pull(written.path, tmp_path / "b.zarr", rows="32:")
    shutil.copytree(b, tmp_path / "damaged.zarr")
    name = "layer_04/patches/c/3/0/0"
    data = bytearray((b / name).read_bytes())
    data[100] ^= 4
    (tmp_path / "damaged.zarr" / name).write_bytes(data)
    out = tmp_path / "all.zarr"
    with pytest.raises(CorruptStoreError, match=f"{name} arrived from .*damaged.zarr with another hash"):
        merge([a, tmp_path / "damaged.zarr"], out, retries=Retries(first_s=0.0))
    assert not (out / name).exists()
    merge([a, b], out)
    assert tree(out) == tree(written.path)


def test_a_merger_is_of_two_and_lies_elsewhere(written: Plan, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="two or more stores; got 1"):
        plan_merge([written.path])
    a, b = (pull(written.path, tmp_path / f"{rows}.zarr", rows=rows) for rows in ("0:32", "32:"))
    with pytest.raises(ConfigError, match="a copy lies outside its source"):
        merge([a, b], a)


STEP = {"scale": (5 / 128,) * 8, "offset": (0.0,) * 8, "variance": 1.0}


@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
def test_the_parts_of_an_int8_store_are_the_store(
    make_plan: MakePlan, tmp_path: Path, parts: list[dict[str, Any]]
) -> None:
    """Codes, scales, squared errors and clipped codes come through; parts without patches too."""
    whole = make_plan("whole.zarr", bad_rows=(7, 20), dtype="int8", quantisation=[STEP] * 3)
    whole.write()
    pulled = [pull(whole.path, tmp_path / f"{n}.zarr", **part) for n, part in enumerate(parts)]
    for path in pulled:
        assert verify_store(path, deep=True, complete=True).faults == ()
    assert tree(merge(pulled, tmp_path / "all.zarr")) == tree(whole.path)


def test_other_scales_are_refused(make_plan: MakePlan, tmp_path: Path) -> None:
    names = {"one.zarr": 5 / 128, "two.zarr": 6 / 128}
    for name, scale in names.items():
        make_plan(name, dtype="int8", quantisation=[STEP | {"scale": (scale,) * 8}] * 3).open().close()
    with pytest.raises(StoreMismatchError, match="the quantisation of layer 0 differs"):
        plan_merge([tmp_path / name for name in names])
