from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from activault.store import (
    ConfigError,
    CorruptStoreError,
    IncompleteStoreError,
    NotAStoreError,
    Store,
    open_store,
    shard_files,
)
from activault.store.transfer import pull

from .conftest import TEACHER, MakePlan, Plan
from .lying_store import lie
from .plain_zarr import plain_floats


@pytest.mark.parametrize(
    ("rows", "numbers"),
    [
        (slice(0, 10), list(range(10))),
        (slice(None), list(range(50))),
        (slice(40, 1000), list(range(40, 50))),
        (slice(30, 3, -7), [30, 23, 16, 9]),
        ([49, 0, 17, 17, 3], [49, 0, 17, 17, 3]),
        (np.array([5], np.int32), [5]),
        (range(14, 18), [14, 15, 16, 17]),
        ([], []),
    ],
    ids=str,
)
def test_rows_are_read_in_the_order_asked(
    store: Store, written: Plan, rows: object, numbers: list[int]
) -> None:
    read = store.read(rows, [0, 2, 4])  # type: ignore[arg-type]
    assert read.dtype == np.float32
    assert read.shape == (len(numbers), 3, 9, 8)
    assert np.array_equal(read, written.stored[numbers], equal_nan=True)


@pytest.mark.parametrize(
    ("tokens", "places"),
    [
        ("all", list(range(9))),
        ("cls", [0]),
        ("patches,cls", [0, 3, 4, 5, 6, 7, 8]),
        (["registers"], [1, 2]),
    ],
    ids=str,
)
def test_kinds_stand_in_the_layouts_order(
    store: Store, written: Plan, tokens: str, places: list[int]
) -> None:
    read = store.read(slice(21, 30), [4, 0], tokens)
    assert np.array_equal(read, written.stored[21:30, [2, 0]][:, :, places])


@pytest.mark.parametrize(
    ("rows", "layers", "tokens", "message"),
    [
        ([50], [0], "all", "rows are 0 to 49; got 50"),
        ([-1], [0], "all", "rows are 0 to 49; got -1"),
        ([0.5], [0], "all", "rows are a slice or whole numbers; got float64"),
        ([[1]], [0], "all", "got int64 of shape"),
        ([0], [1], "all", r"layers are some of \(0, 2, 4\), each once; got \(1,\)"),
        ([0], [0, 0], "all", "each once"),
        ([0], [], "all", "each once"),
        ([0], [0], 5, "token kinds are 'all', 'cls,patches' or a sequence of kinds; got 5"),
        ([0], [0], "clss", "token kinds are cls, registers, patches or all; got 'clss'"),
    ],
)
def test_what_is_not_there_is_refused(
    store: Store, rows: object, layers: list[int], tokens: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        store.read(rows, layers, tokens)  # type: ignore[arg-type]


def test_kinds_that_are_not_kept_are_refused(make_plan: MakePlan) -> None:
    plan = make_plan(kinds=("cls",))
    store = plan.write()
    assert np.array_equal(store.read(slice(None), [2]), plan.stored[:, 1:2, :1])
    with pytest.raises(ConfigError, match="token kinds here are cls; got patches"):
        store.read([0], [0], "patches")


def test_rows_that_are_not_written_are_an_error(plan: Plan) -> None:
    store = plan.write([0, 2])
    assert store.finished_rows.tolist() == [*range(16), *range(32, 48)]
    assert 7 not in store.valid_rows
    assert np.array_equal(store.read(range(32, 48), [0]), plan.stored[32:48, :1])
    with pytest.raises(
        IncompleteStoreError, match=r"rows 16 to 31 are not written yet \(shard 1 has no record\)"
    ):
        store.read([0, 20], [0])


def test_each_chunk_is_decompressed_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    original = shard_files.decode_chunk

    def counted(data: bytes, scratch: np.ndarray, what: str, *more: Any) -> np.ndarray:
        seen.append(what)
        return original(data, scratch, what, *more)

    monkeypatch.setattr(shard_files, "decode_chunk", counted)
    store.read(np.random.default_rng(0).permutation(50).repeat(2), [0, 4])
    assert len(seen) == len(set(seen)) == 13 * 2 * 3


def test_plain_zarr_reads_what_the_format_shows(written: Plan) -> None:
    assert np.array_equal(plain_floats(written.path, 2, "patches"), written.stored[:, 1, 3:], equal_nan=True)


def test_plain_zarr_agrees_on_every_array(written: Plan) -> None:
    group = zarr.open_group(str(written.path), mode="r")
    parts = [
        np.concatenate(
            [group[f"layer_{layer:02d}/{kind}"][:] for kind in ("cls", "registers", "patches")], axis=1
        )
        for layer in (0, 2, 4)
    ]
    assert np.array_equal(np.stack(parts, axis=1), written.stored, equal_nan=True)


def test_samples_have_the_outcomes(store: Store) -> None:
    row = store.samples.slice(7, 1).to_pylist()[0]
    assert row["status"] == "truncated"
    assert row["reason"] == "image file is truncated"
    assert store.samples.slice(9, 1).to_pylist()[0]["width"] == 41
    assert store.valid_rows.tolist() == [row for row in range(50) if row not in (7, 20)]


def test_labels_become_places_in_classes(store: Store) -> None:
    assert store.classes == ("class 0", "class 1", "class 2")
    assert store.label_ids[:6].tolist() == [0, 1, 2, -1, 1, 2]


def test_rows_and_labels_do_not_import_pandas(written: Plan, tmp_path: Path) -> None:
    """Where it is installed, pyarrow imports it for `to_numpy` and `array`: half a second."""
    pandas = "print('imported')\n__version__ = '3.0.0'\ndef __getattr__(name): return type(name, (), {})\n"
    (tmp_path / "pandas.py").write_text(pandas)
    code = f"from activault.store import open_store; s = open_store({str(written.path)!r}); "
    code += "print(s.label_ids[0], len(s.valid_rows))"
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    run = [sys.executable, "-c", code]
    found = subprocess.run(run, capture_output=True, text=True, check=True, env=environment)
    assert found.stdout.strip() == "0 48"


def test_info_is_json(store: Store) -> None:
    info = json.loads(json.dumps(store.info()))
    assert info["num_rows"] == 50
    assert info["num_bad"] == 2
    assert info["complete"] is True
    assert info["tokens"] == {"cls": 1, "registers": 2, "patches": 6}
    assert info["float32_bytes"] == 50 * 3 * 9 * 8 * 4
    assert info["digest"] == store.digest
    assert info["num_bytes"] == sum(
        file.stat().st_size for file in store.storage.folder.glob("layer_*/*/c/*/0/0") if file.is_file()
    )


def test_a_complete_store_needs_no_records(copy: Path, written: Plan) -> None:
    for file in (copy / "shards").iterdir():
        file.unlink()
    store = open_store(copy)
    assert np.array_equal(store.read(slice(None), [0, 2, 4]), written.stored, equal_nan=True)
    assert store.statistics(0, "cls").count == 48


def test_an_unfinished_store_knows_as_much_as_the_complete_one(copy: Path, store: Store) -> None:
    (copy / "index.parquet").unlink()
    unfinished = open_store(copy)
    assert not unfinished.complete
    assert unfinished.digest == store.digest
    assert unfinished.arrays_digest == store.arrays_digest
    assert unfinished.num_bad == store.num_bad
    assert unfinished.statistics(4, "patches") == store.statistics(4, "patches")


def test_a_store_can_be_pickled(store: Store) -> None:
    assert pickle.loads(pickle.dumps(store)).digest == store.digest


@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(lambda path: None, "does not exist", id="nothing"),
        pytest.param(lambda path: path.mkdir(), "is not an activation store", id="empty folder"),
        pytest.param(lambda path: path.write_text("x"), "is not an activation store", id="file"),
        pytest.param(
            lambda path: zarr.open_group(str(path), mode="w"), "without activations", id="other Zarr"
        ),
    ],
)
def test_what_is_no_store_is_refused(tmp_path: Path, make: object, message: str) -> None:
    make(tmp_path / "x")  # type: ignore[operator]
    with pytest.raises(NotAStoreError, match=message):
        open_store(tmp_path / "x")


def damaged_array(copy: Path, shard: int = 1) -> Path:
    return copy / "layer_02" / "patches" / "c" / str(shard) / "0" / "0"


def test_a_missing_shard_is_an_error(copy: Path, written: Plan) -> None:
    damaged_array(copy).unlink()
    store = open_store(copy)
    with pytest.raises(
        CorruptStoreError, match=r"rows 16 to 19 \(shard 1\): layer_02/patches/c/1/0/0 is missing"
    ):
        store.read([16], [2])
    assert np.array_equal(store.read(slice(32, 50), [2]), written.stored[32:, 1:2])


def test_a_truncated_shard_is_an_error(copy: Path) -> None:
    file = damaged_array(copy)
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(CorruptStoreError, match="layer_02/patches/c/1/0/0 must have"):
        open_store(copy).read([16], [2])


def test_a_missing_inner_chunk_is_an_error(copy: Path) -> None:
    from activault.store.codecs import crc32c

    file = damaged_array(copy)
    content = bytearray(file.read_bytes())
    start = len(content) - 4 - 16 * 4
    content[start : start + 16] = b"\xff" * 16
    content[-4:] = crc32c(bytes(content[start:-4])).to_bytes(4, "little")
    file.write_bytes(content)
    with pytest.raises(CorruptStoreError, match=r"layer_02/patches/c/1/0/0: chunk 0 is missing"):
        open_store(copy).read([16], [2])


def test_an_ok_row_that_reads_as_fill_is_an_error(copy: Path) -> None:
    with zarr.config.set({"array.write_empty_chunks": True}):
        zarr.open_array(str(copy / "layer_02" / "patches"), mode="r+")[16:20] = np.nan
    store = open_store(copy)
    files = list(store.chunks.files(1))  # made to lie about the file's new size
    files[5] = files[5].model_copy(update={"bytes": damaged_array(copy).stat().st_size})
    object.__setattr__(store.chunks, "files", lambda _: files)
    with pytest.raises(
        CorruptStoreError, match="row 16 is ok by its record, but reads as fill in layer 2, patches"
    ):
        store.read([16], [2])


@pytest.mark.parametrize("seed", range(8))
def test_a_flipped_byte_of_an_array_is_never_returned(copy: Path, written: Plan, seed: int) -> None:
    random = np.random.default_rng(seed)
    file = damaged_array(copy, shard=int(random.integers(0, 4)))
    content = bytearray(file.read_bytes())
    content[random.integers(0, len(content))] ^= 1 << int(random.integers(0, 8))
    file.write_bytes(content)
    with pytest.raises(CorruptStoreError, match="is not what was written"):
        open_store(copy).read(slice(None), [2])
    assert np.array_equal(open_store(copy).read(slice(None), [0]), written.stored[:, :1], equal_nan=True)


def test_bad_rows_are_counted_by_reason(make_plan: MakePlan, tmp_path: Path) -> None:
    plan = make_plan(bad_rows=(7, 20, 40))
    assert plan.write([0, 1]).bad_counts == {"truncated": 2}  # of finished shards
    assert plan.write().bad_counts == {"truncated": 3}
    assert open_store(pull(plan.path, tmp_path / "b.zarr", rows="16:32")).bad_counts == {"truncated": 1}
    assert make_plan("sound.zarr").write().bad_counts == {}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "int8"])
@pytest.mark.parametrize("dim", [8, 1024], ids=["small rows", "large rows"])
def test_a_bad_row_reads_as_nan_whatever_the_array_holds(make_plan: MakePlan, dtype: str, dim: int) -> None:
    plan = make_plan(dtype=dtype, num_rows=20, teacher=TEACHER.model_copy(update={"dim": dim}))
    plan.write()
    bad = [3, 8, 9, 10, 11]  # one of a chunk, and a whole one
    lie(plan.path, plan.samples, lambda record: record.update(bad=[[row, "empty", None] for row in bad]))
    store = open_store(plan.path)
    read = store.read(slice(None), [0, 2, 4])
    assert np.isnan(read[bad]).all()
    others = np.setdiff1d(np.arange(20), bad)
    assert np.array_equal(read[others], plan.stored[others])
    assert (store.read([9], [0], dtype="bfloat16") == 0x7FC0).all()
    assert np.isnan(store.read([9], [0], dtype="float16")).all()
