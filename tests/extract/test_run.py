"""The whole extraction: rows, labels, bad images, resumption after every kind of stop, and refusals."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from activault.extract import run as module
from activault.extract.backbone import Backbone, load_teacher
from activault.extract.run import ExtractOptions, extract
from activault.store import (
    ConfigError,
    ImageSourceError,
    NotAStoreError,
    StoreMismatchError,
    WeightsError,
    open_store,
    verify_store,
)

from .conftest import MakeFolder, colour


@pytest.fixture
def options(tiny_weights: Path) -> ExtractOptions:
    return ExtractOptions(
        teacher="test_vit",
        weights=tiny_weights,
        image_size=32,
        resize=32,
        layers="0,6",
        shard_rows=8,
        batch_size=4,
        workers=2,
        device="cpu",
    )


def changed(options: ExtractOptions, **fields: Any) -> ExtractOptions:
    return ExtractOptions(**{**vars(options), **fields})


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


def test_two_runs_of_one_request_have_one_digest_and_other_seeds_another(
    make_folder: MakeFolder, tmp_path: Path, options: ExtractOptions
) -> None:
    folder = make_folder(20)
    first = extract(folder, tmp_path / "a.zarr", options)
    again = extract(folder, tmp_path / "b.zarr", changed(options, workers=1))
    other = extract(folder, tmp_path / "c.zarr", changed(options, seed=1))
    assert first.digest == again.digest != other.digest


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
    for _ in range(2):
        with pytest.raises(ImageSourceError, match=r"none of the 3 images .* \(1 empty, 2 not-an-image\)"):
            extract(tmp_path / "photos", tmp_path / "s.zarr", options)


def test_a_finished_store_is_left_as_it_is(
    make_folder: MakeFolder, tmp_path: Path, options: ExtractOptions
) -> None:
    folder, path = make_folder(9), tmp_path / "s.zarr"
    first = extract(folder, path, options)
    before = {p: p.stat().st_mtime_ns for p in path.rglob("*") if p.is_file()}
    again = extract(folder, path, changed(options, batch_size=2, workers=1, shard_rows=None))
    assert (again.digest, again.num_new, again.num_rows) == (first.digest, 0, 9)
    assert before == {p: p.stat().st_mtime_ns for p in path.rglob("*") if p.is_file()}


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch, tiny: Backbone, options: ExtractOptions) -> ExtractOptions:
    """A request whose teacher comes from timm's hub, here the tiny teacher; it may be loaded once."""
    info = tiny.info.model_copy(update={"weights": "timm hub, test_vit"})
    loads = iter([0])

    def load(*_: object, **__: object) -> Backbone:
        if next(loads, None) is None:
            pytest.fail("the teacher's weights were loaded again")
        return Backbone(load_vit(tiny), info, tiny.preprocessing)

    monkeypatch.setattr(module, "load_backbone", load)
    return changed(options, weights=None)


def load_vit(tiny: Backbone) -> Any:
    from activault.extract.backbone import _build
    from activault.extract.weights import assign

    vit = _build("test_vit")
    assign(vit, tiny.tensors(), "")
    return vit


def test_a_finished_store_of_a_named_teacher_is_known_without_its_weights(
    make_folder: MakeFolder, tmp_path: Path, named: ExtractOptions
) -> None:
    folder = make_folder(9)
    first = extract(folder, tmp_path / "s.zarr", named)
    assert extract(folder, tmp_path / "s.zarr", named).digest == first.digest


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"teacher": "test_vit3"}, "teacher is 'test_vit' there and 'test_vit3' here"),
        ({"teacher": "demo"}, "teacher is 'test_vit' there and 'demo' here"),
        ({"image_size": 64, "resize": 64}, r"image_size is \(32, 32\) there and \(64, 64\) here"),
        ({"resize": None}, "resize is 32 there and 37 here"),
        ({"layers": "0-3"}, r"layers is \(0, 6\) there and \(0, 1, 2, 3\) here"),
        ({"tokens": "cls"}, "tokens is .* here"),
        ({"dtype": "float32"}, "dtype is 'bfloat16' there and 'float32' here"),
        ({"shard_rows": 4}, "shard_rows is 8 there and 4 here"),
        ({"seed": 1}, "seed is 0 there and 1 here"),
        ({"limit": 3}, "rows is 9 there and 3 here; choose another path"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_another_request_for_a_finished_store_of_a_named_teacher(
    make_folder: MakeFolder, tmp_path: Path, named: ExtractOptions, fields: dict[str, Any], message: str
) -> None:
    folder = make_folder(9)
    extract(folder, tmp_path / "s.zarr", named)
    with pytest.raises(StoreMismatchError, match=message):
        extract(folder, tmp_path / "s.zarr", changed(named, **fields))


def test_other_images_for_a_finished_store(
    make_folder: MakeFolder, tmp_path: Path, named: ExtractOptions
) -> None:
    folder = make_folder(9)
    extract(folder, tmp_path / "s.zarr", named)
    (folder / "class0" / "000.png").rename(folder / "class0" / "009.png")
    with pytest.raises(StoreMismatchError, match=r"source is .* here"):
        extract(folder, tmp_path / "s.zarr", named)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"seed": 1}, "row_seed is 0 there and 1 here"),
        ({"layers": "1-2"}, "layers is"),
        ({"limit": 4}, "num_rows is"),
    ],
    ids=["seed", "layers", "limit"],
)
def test_another_request_for_a_store_of_a_weights_file(
    make_folder: MakeFolder, tmp_path: Path, options: ExtractOptions, fields: dict[str, Any], message: str
) -> None:
    folder = make_folder(9)
    digest = extract(folder, tmp_path / "s.zarr", options).digest
    with pytest.raises(StoreMismatchError, match=message):
        extract(folder, tmp_path / "s.zarr", changed(options, **fields))
    assert open_store(tmp_path / "s.zarr").digest == digest


def test_ctrl_c_stops_the_threads_and_the_next_run_goes_on(
    make_folder: MakeFolder, tmp_path: Path, options: ExtractOptions
) -> None:
    folder = make_folder(30)

    def interrupt(done: int, _: int) -> None:
        if done >= 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extract(folder, tmp_path / "s.zarr", options, progress=interrupt)
    assert not [t for t in threading.enumerate() if t.name.startswith(("decode", "publish"))]
    store = open_store(tmp_path / "s.zarr")
    assert not store.complete
    assert store.finished_rows.tolist() == list(range(16))
    assert verify_store(tmp_path / "s.zarr", deep=True).ok
    resumed = extract(folder, tmp_path / "s.zarr", options)
    assert resumed.num_new == 14
    assert resumed.digest == extract(folder, tmp_path / "fresh.zarr", options).digest


PROGRAM = """
    import sys, time
    from pathlib import Path
    import torch
    torch.set_num_threads(1)
    from activault.extract import ExtractOptions, extract

    def progress(done, total):
        print(done, flush=True)
        time.sleep(0.03)

    images, store, weights = map(Path, sys.argv[1:])
    options = ExtractOptions(teacher="test_vit", weights=weights, image_size=32, resize=32, layers="0,6",
                             shard_rows=8, batch_size=4, workers=2, device="cpu")
    extract(images, store, options, progress=progress)
"""


def test_a_killed_process_is_resumed_to_the_same_digest(
    make_folder: MakeFolder, tmp_path: Path, options: ExtractOptions
) -> None:
    folder, store = make_folder(60), tmp_path / "s.zarr"
    program = [sys.executable, "-c", textwrap.dedent(PROGRAM)]
    arguments = [str(folder), str(store), str(options.weights)]
    for stop, until in ((signal.SIGKILL, 17), (signal.SIGINT, 42)):
        with subprocess.Popen(
            [*program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if int(line) >= until:
                    process.send_signal(stop)
                    began = time.monotonic()
                    break
            _, errors = process.communicate(timeout=60)
        assert time.monotonic() - began < 20
        assert process.returncode != 0, errors
        assert verify_store(store, deep=True).ok
        assert 0 < len(open_store(store).finished_rows) < 60
    resumed = extract(folder, store, options)
    assert 0 < resumed.num_new < 60
    assert resumed.digest == extract(folder, tmp_path / "fresh.zarr", options).digest
    assert not [path for path in store.rglob("*") if path.name.endswith((".tmp", ".partial"))]


def test_a_store_that_was_begun_keeps_its_grid(
    make_folder: MakeFolder, tmp_path: Path, options: ExtractOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_folder(20)
    extract(folder, tmp_path / "s.zarr", options)
    (tmp_path / "s.zarr" / "index.parquet").unlink()
    (tmp_path / "s.zarr" / "shards" / "00001.json").unlink()
    monkeypatch.setattr(module, "memory_bytes", lambda: 1 << 20)
    assert extract(folder, tmp_path / "s.zarr", changed(options, shard_rows=None)).num_new == 8


def test_shards_are_smaller_where_memory_is(
    make_folder: MakeFolder, tmp_path: Path, options: ExtractOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_folder(20)
    monkeypatch.setattr(module, "memory_bytes", lambda: 8 * 4 * 2 * 5 * 64 * 2)
    extract(folder, tmp_path / "s.zarr", changed(options, shard_rows=None))
    assert open_store(tmp_path / "s.zarr").manifest.shard_rows == 4


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
