"""Going on: after Ctrl-C, after a kill, with a finished store, and never with another request's."""

from __future__ import annotations

import re
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from fork_server import forked
from killed_runs import INTERRUPTED, extract_until

from activault.extract import planning
from activault.extract import run as module
from activault.extract.backbone import Backbone
from activault.extract.options import OF_RUN
from activault.extract.run import ExtractOptions, extract
from activault.store import ImageSourceError, StoreMismatchError, open_store, verify_store
from activault.store.locks import at_work

from .conftest import MakeFolder, changed


def test_two_runs_of_one_request_have_one_digest_and_other_seeds_another(
    make_folder: MakeFolder, tmp_path: Path, options: ExtractOptions
) -> None:
    folder = make_folder(20)
    first = extract(folder, tmp_path / "a.zarr", options)
    again = extract(folder, tmp_path / "b.zarr", changed(options, workers=1))
    other = extract(folder, tmp_path / "c.zarr", changed(options, seed=1))
    assert first.digest == again.digest != other.digest


def test_a_finished_store_is_left_as_it_is(
    make_folder: MakeFolder, tmp_path: Path, options: ExtractOptions
) -> None:
    """Defect of the reference: a second start wipes the store."""
    folder, path = make_folder(9), tmp_path / "s.zarr"
    first = extract(folder, path, options)
    before = {p: p.stat().st_mtime_ns for p in path.rglob("*") if p.is_file()}
    again = extract(folder, path, changed(options, batch_size=2, workers=1, shard_rows=None))
    assert (again.digest, again.num_new, again.num_rows) == (first.digest, 0, 9)
    assert before == {p: p.stat().st_mtime_ns for p in path.rglob("*") if p.is_file()}


LOST = {
    "array": ("layer_06/patches/c/1/0/0",),
    "statistics": ("shards/00001.stats.safetensors",),
    "record": ("shards/00001.json",),
    "all records": ("shards/00000.json", "shards/00001.json", "shards/00002.json"),
    "samples": ("samples.parquet",),
}


@pytest.mark.parametrize("names", LOST.values(), ids=LOST)
@pytest.mark.parametrize("harm", ["missing", "short"])
def test_a_finished_store_that_lost_files_is_made_whole(
    make_folder: MakeFolder, tmp_path: Path, named: ExtractOptions, names: tuple[str, ...], harm: str
) -> None:
    folder, path = make_folder(20), tmp_path / "s.zarr"
    first = extract(folder, path, named)
    for name in names:
        if harm == "missing":
            (path / name).unlink()
        else:
            (path / name).write_bytes(b"x")
    again = extract(folder, path, named)
    assert again.digest == first.digest
    kept = names[0].endswith((".json", ".parquet"))  # records are there a second time, in the index
    assert again.num_new == (0 if kept else 8)
    assert verify_store(path, deep=True, complete=True).ok
    assert extract(folder, path, named).num_new == 0


def test_an_absent_index_is_written_again(
    make_folder: MakeFolder, tmp_path: Path, named: ExtractOptions
) -> None:
    folder, path = make_folder(20), tmp_path / "s.zarr"
    first = extract(folder, path, named)
    (path / "index.parquet").unlink()
    again = extract(folder, path, named)
    assert (again.digest, again.num_new) == (first.digest, 0)


ROTTEN = (
    "layer_06/patches/c/1/0/0",
    "shards/00001.json",
    "shards/00001.stats.safetensors",
    "samples.parquet",
    "index.parquet",
)


@pytest.mark.parametrize("name", ROTTEN)
def test_following_the_remedy_for_a_flipped_bit_mends_the_store(
    make_folder: MakeFolder, tmp_path: Path, named: ExtractOptions, name: str
) -> None:
    folder, path = make_folder(20), tmp_path / "s.zarr"
    first = extract(folder, path, named)
    content = bytearray((path / name).read_bytes())
    content[len(content) // 2] ^= 4
    (path / name).write_bytes(content)
    faults = [fault for fault in verify_store(path, deep=True).faults if fault.where == name]
    assert "run again what made the store" in faults[0].detail
    for asked in re.findall(r"delete (\S+) and run", faults[0].detail):
        (path / asked).unlink()
    assert extract(folder, path, named).digest == first.digest
    assert verify_store(path, deep=True, complete=True).ok


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch, tiny: Backbone, options: ExtractOptions) -> ExtractOptions:
    """A request whose teacher comes from timm's hub, here the tiny teacher."""
    info = tiny.info.model_copy(update={"weights": "timm hub, test_vit"})

    def load(*_: object, **__: object) -> Backbone:
        return Backbone(load_vit(tiny), info, tiny.preprocessing)

    monkeypatch.setattr(module, "load_backbone", load)
    return changed(options, weights=None)


def load_vit(tiny: Backbone) -> Any:
    from activault.extract.architectures import build
    from activault.extract.weights import assign

    vit = build("test_vit")
    assign(vit, tiny.tensors(), "")
    return vit


def test_a_finished_store_of_a_named_teacher_is_known_without_its_weights(
    make_folder: MakeFolder, tmp_path: Path, named: ExtractOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_folder(9)
    first = extract(folder, tmp_path / "s.zarr", named)
    monkeypatch.setattr(
        module, "load_backbone", lambda *_, **__: pytest.fail("the weights were loaded again")
    )
    assert extract(folder, tmp_path / "s.zarr", named).digest == first.digest


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"teacher": "test_vit3"}, "teacher is 'test_vit' there and 'test_vit3' here"),
        ({"teacher": "demo"}, "teacher is 'test_vit' there and 'demo' here"),
        (
            {"image_size": 64, "resize": 64},
            r"image_size is \(32, 32\) there and \(64, 64\) here; .* with --image-size 32x32$",
        ),
        ({"resize": None}, "resize is 32 there and 37 here"),
        ({"layers": "0-3"}, r"layers is \(0, 6\) there and \(0, 1, 2, 3\) here"),
        ({"tokens": "cls"}, "tokens is .* here"),
        ({"dtype": "float32"}, "dtype is 'bfloat16' there and 'float32' here"),
        ({"shard_rows": 4}, "shard_rows is 8 there and 4 here"),
        ({"patches": "mean"}, "patches is 'all' there and 'mean' here"),
        ({"patches": "random:3"}, "patches is 'all' there and '3 places .* here"),
        ({"interpolation": "box"}, "interpolation is 'bicubic' there and 'box' here"),
        ({"crop_mode": "border"}, "crop_mode is 'center' there and 'border' here"),
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
        ({"seed": 1}, "seed is 0 there and 1 here"),
        ({"layers": "1-2"}, "layers is"),
        ({"limit": 4}, "rows is 9 there and 4 here"),
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
    # A shard whose last batch was begun is finished before it is over.
    finished = len(store.finished_rows)
    assert finished in {16, 24}
    assert store.finished_rows.tolist() == list(range(finished))
    assert verify_store(tmp_path / "s.zarr", deep=True).ok
    resumed = extract(folder, tmp_path / "s.zarr", options)
    assert resumed.num_new == 30 - finished
    assert resumed.digest == extract(folder, tmp_path / "fresh.zarr", options).digest


def test_a_killed_process_is_resumed_to_the_same_digest(
    make_folder: MakeFolder, tmp_path: Path, options: ExtractOptions
) -> None:
    """Defect of the reference: an extraction that is cut off starts at the first image again."""
    folder, store = make_folder(60), tmp_path / "s.zarr"
    for stop, status, row, record in (
        (signal.SIGKILL, -signal.SIGKILL, 17, 0),
        (signal.SIGINT, INTERRUPTED, 42, 3),
    ):
        process = forked().Process(target=extract_until, args=(folder, store, options, stop, row, record))
        process.start()
        process.join(250)
        assert process.exitcode == status
        assert verify_store(store, deep=True).ok
        assert 8 * (record + 1) <= len(open_store(store).finished_rows) < 60
    resumed = extract(folder, store, options)
    assert 0 < resumed.num_new < 60
    assert resumed.digest == extract(folder, tmp_path / "fresh.zarr", options).digest
    assert not [path for path in store.rglob("*") if path.name.endswith((".tmp", ".partial"))]


def test_what_says_how_a_store_is_computed_may_change_from_run_to_run(
    make_folder: MakeFolder, tmp_path: Path, options: ExtractOptions
) -> None:
    folder, others = make_folder(9), dict[str, Any]()
    extract(folder, tmp_path / "s.zarr", options)
    others |= {"max_bad": "3", "batch_size": 3, "workers": 1, "device": "auto", "lease": 60.0}
    others |= {"rank": 1, "world": 4, "local_world": 2}
    assert sorted(others) == sorted(OF_RUN)
    assert extract(folder, tmp_path / "s.zarr", changed(options, **others)).num_new == 0


def test_a_store_that_was_begun_keeps_its_grid(
    make_folder: MakeFolder, tmp_path: Path, options: ExtractOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_folder(20)
    extract(folder, tmp_path / "s.zarr", options)
    (tmp_path / "s.zarr" / "index.parquet").unlink()
    (tmp_path / "s.zarr" / "shards" / "00001.json").unlink()
    monkeypatch.setattr(planning, "memory_bytes", lambda: 1 << 20)
    assert extract(folder, tmp_path / "s.zarr", changed(options, shard_rows=None)).num_new == 8


def test_a_plan_with_nothing_finished_may_be_removed(
    make_folder: MakeFolder, tmp_path: Path, options: ExtractOptions
) -> None:
    """What a newcomer needs who gave a wrong flag first; not where there is something to lose."""
    folder, path = make_folder(9), tmp_path / "s.zarr"
    with pytest.raises(ImageSourceError, match=r"\d images? (is|are) bad, and max_bad allows 0"):
        extract(folder, path, changed(options, max_pixels=100, max_bad="0"))
    told = f"nothing is finished in {path}: it may be removed, and planned anew by this command"
    for other in ({}, {"max_pixels": 100, "layers": "0"}):
        with pytest.raises(StoreMismatchError) as caught:
            extract(folder, path, changed(options, **other))
        assert told in str(caught.value)
    with at_work(path), pytest.raises(StoreMismatchError) as caught:
        extract(folder, path, options)
    assert "nothing is finished" not in str(caught.value)
    shutil.rmtree(path)
    extract(folder, path, options)
    with pytest.raises(StoreMismatchError) as caught:
        extract(folder, path, changed(options, max_pixels=100))
    assert "nothing is finished" not in str(caught.value)
