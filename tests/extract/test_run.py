"""The whole extraction: rows, labels, bad images, the manifest, and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from activault.extract import planning
from activault.extract.backbone import Backbone, load_teacher
from activault.extract.estimates import estimate
from activault.extract.run import ExtractOptions, extract
from activault.store import (
    ConfigError,
    ImageSourceError,
    NotAStoreError,
    WeightsError,
    open_store,
    verify_store,
)

from .conftest import MakeFolder, changed, colour


def number_of(key: str) -> int:
    return int(Path(key).stem)


@torch.inference_mode()
def test_every_image_ends_up_in_its_row_with_its_label(
    make_folder: MakeFolder, tmp_path: Path, options: ExtractOptions, tiny: Backbone
) -> None:
    seen: list[tuple[int, int]] = []
    summary = extract(make_folder(30), tmp_path / "s.zarr", options, progress=lambda *at: seen.append(at))
    store = open_store(tmp_path / "s.zarr")
    samples = store.samples.to_pydict()
    assert samples["key"] != sorted(samples["key"]), "the order is shuffled"
    layer0 = store.read(slice(0, 30), [0])[:, 0]
    for row, (key, label) in enumerate(zip(samples["key"], samples["label"], strict=True)):
        number = number_of(key)
        assert label == f"class{number % 3}"
        one = np.full((1, 32, 32, 3), colour(number), np.uint8)
        own = tiny.embed(tiny.prepare(torch.from_numpy(one)))[0]
        np.testing.assert_allclose(layer0[row], own.numpy(), rtol=2**-8, atol=1e-6)
    assert (summary.num_rows, summary.num_new, summary.bad, summary.digest) == (30, 30, {}, store.digest)
    assert seen[-1] == (30, 30)
    assert store.complete
    assert verify_store(tmp_path / "s.zarr", deep=True, complete=True).ok
    assert load_teacher(store.teacher_dir).info == store.manifest.teacher


def test_the_manifest_says_what_was_done(
    make_folder: MakeFolder, tmp_path: Path, options: ExtractOptions
) -> None:
    extract(
        make_folder(9),
        tmp_path / "s.zarr",
        changed(options, layers="0,3-5", tokens="cls", dtype="float32", seed=7, limit=5, resize=None),
    )
    manifest = open_store(tmp_path / "s.zarr").manifest
    assert (manifest.layers, manifest.kinds, manifest.dtype) == ((0, 3, 4, 5), ("cls",), "float32")
    assert (manifest.num_rows, manifest.row_seed, manifest.source.name) == (5, 7, "photos")
    assert (manifest.preprocessing.image_size, manifest.preprocessing.resize) == ((32, 32), 37)
    assert manifest.teacher.weights == "file"


def test_a_limit_keeps_the_first_rows_of_the_same_order(
    make_folder: MakeFolder, tmp_path: Path, options: ExtractOptions
) -> None:
    folder = make_folder(20)
    extract(folder, tmp_path / "all.zarr", options)
    extract(folder, tmp_path / "few.zarr", changed(options, limit=6))
    keys = [open_store(tmp_path / name).samples["key"].to_pylist() for name in ("all.zarr", "few.zarr")]
    assert keys[1] == keys[0][:6]


def test_bad_images_keep_their_rows_and_are_counted(
    make_folder: MakeFolder, tmp_path: Path, options: ExtractOptions
) -> None:
    folder = make_folder(12)
    bad = folder / "class0"
    good = (bad / "000.png").read_bytes()
    (bad / "100.png").write_bytes(good[: len(good) - 30])
    (bad / "101.jpg").write_bytes(b"")
    (bad / "102.jpg").write_bytes(b"<html>not found</html>")
    Image.new("RGB", (100_000, 1)).save(bad / "103.png")
    (bad / "104.a.b.png").write_bytes(good)
    summary = extract(folder, tmp_path / "s.zarr", options)
    assert summary.bad == {"empty": 1, "not-an-image": 1, "too-large": 1, "truncated": 1}
    store = open_store(tmp_path / "s.zarr")
    assert (store.num_rows, store.num_bad, len(store.valid_rows)) == (17, 4, 13)
    by_key = {row["key"]: row for row in store.samples.to_pylist()}
    assert by_key["class0/100.png"]["status"] == "truncated"
    assert by_key["class0/100.png"]["width"] == 32
    assert by_key["class0/103.png"]["status"] == "too-large"
    assert by_key["class0/104.a.b.png"]["status"] == "ok"
    assert by_key["class0/102.jpg"]["reason"] == "no decoder knows these bytes"


def test_no_image_at_all_is_an_error_each_time(tmp_path: Path, options: ExtractOptions) -> None:
    (tmp_path / "photos").mkdir()
    for number in range(3):
        (tmp_path / "photos" / f"{number}.jpg").write_bytes(b"text" * number)
    message = r"none of the 3 images .* \(1 empty, 2 not-an-image\); look .* then remove .*s\.zarr"
    for _ in range(2):
        with pytest.raises(ImageSourceError, match=message):
            extract(tmp_path / "photos", tmp_path / "s.zarr", options)
    with pytest.raises(ImageSourceError, match=message):
        estimate(tmp_path / "photos", tmp_path / "s.zarr", options)


def test_shards_are_smaller_where_memory_is(
    make_folder: MakeFolder, tmp_path: Path, options: ExtractOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_folder(20)
    monkeypatch.setattr(planning, "memory_bytes", lambda: 8 * 4 * 2 * 5 * 64 * 2)
    extract(folder, tmp_path / "s.zarr", changed(options, shard_rows=None))
    assert open_store(tmp_path / "s.zarr").manifest.shard_rows == 4
    extract(folder, tmp_path / "two.zarr", changed(options, shard_rows=None, local_world=2))
    assert open_store(tmp_path / "two.zarr").manifest.shard_rows == 2, "two workers share the memory"
    extract(folder, tmp_path / "more.zarr", changed(options, shard_rows=8))
    assert open_store(tmp_path / "more.zarr").manifest.shard_rows == 8
    with pytest.raises(ConfigError, match="rows a shard are 1 to 8 here"):
        extract(folder, tmp_path / "most.zarr", changed(options, shard_rows=9))


def test_a_path_that_is_something_else_is_refused_before_the_teacher_is_loaded(
    make_folder: MakeFolder, tmp_path: Path, options: ExtractOptions
) -> None:
    folder = make_folder(3)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name in ("notes", "file"):
        with pytest.raises(NotAStoreError):
            extract(folder, tmp_path / name, changed(options, weights=tmp_path / "absent.pth"))
    assert (tmp_path / "notes" / "a.txt").read_text() == "mine"


def test_what_a_run_killed_at_its_first_file_left_is_a_place_for_a_store(
    make_folder: MakeFolder, tmp_path: Path, options: ExtractOptions
) -> None:
    (tmp_path / "s.zarr").mkdir()
    (tmp_path / "s.zarr" / ".planning.0123.tmp").write_bytes(b"")
    assert extract(make_folder(3), tmp_path / "s.zarr", options).num_new == 3


def test_an_empty_folder_is_a_place_for_a_store(
    make_folder: MakeFolder, tmp_path: Path, options: ExtractOptions
) -> None:
    (tmp_path / "s.zarr").mkdir()
    assert extract(make_folder(3), tmp_path / "s.zarr", options).num_new == 3


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"layers": "0-7"}, ConfigError, "layer 7 in '0-7' is out of range; there are layers 0-6"),
        ({"layers": "first"}, ConfigError, "layers are numbers and ranges"),
        ({"tokens": "registers"}, ConfigError, "none of the token kinds"),
        ({"teacher": "test_vut"}, ConfigError, "timm has no model 'test_vut'; nearest names: test_vit"),
        ({"image_size": 33}, ConfigError, "multiple of the patch size 16"),
        ({"device": "tpu9"}, ConfigError, "device is auto, cpu, mps, cuda or cuda:N; got 'tpu9'"),
        ({"device": "cuda:99"}, ConfigError, "the device 'cuda:99' is not available here"),
        ({"weights": Path("/absent.pth")}, WeightsError, "there is no weights file at"),
    ],
    ids=["layer", "layers", "tokens", "teacher", "size", "device", "cuda", "weights"],
)
def test_requests_that_cannot_be_met_leave_nothing_behind(
    make_folder: MakeFolder,
    tmp_path: Path,
    options: ExtractOptions,
    fields: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=message) as caught:
        extract(make_folder(3), tmp_path / "s.zarr", changed(options, **fields))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "s.zarr").exists()


@pytest.mark.parametrize("name", ["batch_size", "workers", "shard_rows", "limit"])
def test_counts_are_at_least_one(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is at least 1; got 0"):
        ExtractOptions(teacher="demo", **{name: 0})


def test_the_seed_is_not_negative() -> None:
    with pytest.raises(ConfigError, match="seed is at least 0; got -1"):
        ExtractOptions(teacher="demo", seed=-1)


def test_non_square_inputs_go_through(
    make_folder: MakeFolder, tmp_path: Path, options: ExtractOptions
) -> None:
    extract(make_folder(4), tmp_path / "s.zarr", changed(options, image_size=(32, 48), resize=None))
    store = open_store(tmp_path / "s.zarr")
    assert store.layout.grid == (2, 3)
    assert store.read(slice(0, 4), [6]).shape == (4, 1, 7, 64)
