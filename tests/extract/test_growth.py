"""A finished store takes in more images, or more layers of the same ones, as if it had always had them."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from activault.extract import SourceOptions
from activault.extract import growth_append as append_module
from activault.extract.backbone import Backbone, load_backbone, save_teacher
from activault.extract.capture import capture
from activault.extract.growth import append, extend
from activault.extract.growth_rows import places_of
from activault.extract.images import ImageFolder
from activault.extract.run import ExtractOptions, extract, row_decoder
from activault.store import (
    ConfigError,
    ImageSourceError,
    IncompleteStoreError,
    StoreMismatchError,
    WeightsError,
    create_store,
    open_store,
    plan_samples,
    pull,
    verify_store,
)
from activault.store.growing import GROWING

from .conftest import MakeFolder, changed, colour

RUN: dict[str, Any] = {"device": "cpu", "batch_size": 1, "workers": 2}
"""A batch of one: what a row becomes does not depend on which rows are beside it."""


@pytest.fixture(autouse=True)
def _no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test here cuts the power."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture(scope="module")
def three(tiny_weights: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder of three images, and a finished store of them; not to be changed."""
    place = tmp_path_factory.mktemp("three")
    for number in range(3):
        (place / "photos" / f"class{number}").mkdir(parents=True)
        Image.new("RGB", (32, 32), colour(number)).save(
            place / "photos" / f"class{number}" / f"00{number}.png"
        )
    options = ExtractOptions(
        teacher="test_vit", weights=tiny_weights, image_size=32, resize=32, layers="2,6", shard_rows=8, **RUN
    )
    extract(place / "photos", place / "three.zarr", options)
    return place / "photos", place / "three.zarr"


@pytest.fixture
def finished(three: tuple[Path, Path], tmp_path: Path) -> Path:
    """The same store, to be changed."""
    return shutil.copytree(three[1], tmp_path / "finished.zarr")


@pytest.fixture
def single(options: ExtractOptions) -> ExtractOptions:
    return changed(options, batch_size=1, tokens="cls,patches", layers="2,6")


def add(folder: Path, name: str, content: bytes) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)


def at_once(path: Path, grown: Path, folder: Path, backbone: Backbone) -> str:
    """`arrays_digest` of the same rows in the same order, extracted by one plan with the same steps."""
    store, source = open_store(grown), ImageFolder(folder)
    keys, labels = map(str, store.samples["key"].to_pylist()), store.samples["label"].to_pylist()
    samples = plan_samples(list(keys), labels, "photos")
    options = ExtractOptions(teacher="test_vit", **RUN)
    with create_store(path, store.manifest, samples, {}) as writer:
        decode = row_decoder(source, places_of(samples, source), backbone, options)
        capture(writer, backbone, decode, batch_size=1, workers=2)
        writer.complete()
    reference = open_store(path)
    for array in [(layer, kind) for layer in store.layers for kind in store.kinds]:
        assert reference.statistics(*array) == store.statistics(*array)
    assert reference.samples.drop(["source"]).equals(store.samples.drop(["source"]))
    return reference.arrays_digest


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_a_folder_that_got_more_images(
    make_folder: MakeFolder, tmp_path: Path, single: ExtractOptions, tiny: Backbone, dtype: Any
) -> None:
    folder, path = make_folder(13), tmp_path / "s.zarr"
    add(folder, "class0/bad.png", b"no image")
    extract(folder, path, changed(single, dtype=dtype))
    old = open_store(path)
    values, samples = old.read(slice(None), old.layers), old.samples
    make_folder(20)
    add(folder, "new class/bad.png", b"\x89PNG")
    grown = append(folder, path, **RUN)
    assert (grown.num_appended, grown.num_known, grown.store.num_new, grown.store.num_rows) == (8, 14, 8, 22)
    assert grown.store.bad == {"not-an-image": 1, "unreadable": 1}
    store = open_store(path)
    assert np.array_equal(store.read(slice(0, 14), store.layers), values, equal_nan=True)
    assert store.samples.slice(0, 14).equals(samples)
    assert store.classes == ("class0", "class1", "class2", "new class")
    assert store.manifest.source == ImageFolder(folder).info
    assert dict(store.manifest.details)["appended"] == "14-21 photos"
    assert verify_store(path, values=True, complete=True).faults == ()
    assert store.arrays_digest == at_once(tmp_path / "reference.zarr", path, folder, tiny)
    images = [store._shards.record(shard).images for shard in range(3)]
    assert images == [open_store(tmp_path / "reference.zarr")._shards.record(n).images for n in range(3)]
    assert append(folder, path, **RUN).num_appended == 0
    with pytest.raises(StoreMismatchError, match=r"rows that came to it later \(14-21 photos\).* --append"):
        extract(folder, path, changed(single, dtype=dtype))


def test_another_folder_and_then_more_layers(
    make_folder: MakeFolder, tmp_path: Path, single: ExtractOptions, tiny: Backbone
) -> None:
    folder, path = make_folder(8), tmp_path / "s.zarr"
    extract(folder, path, changed(single, order="kept", seed=5))
    for number in range(3):
        add(
            tmp_path / "more",
            f"dogs/{number}.png",
            (folder / f"class{number % 3}/00{number}.png").read_bytes(),
        )
    grown = append(tmp_path / "more", path, **RUN)
    store = open_store(path)
    assert (grown.num_appended, grown.num_known) == (3, 0)
    assert store.samples["key"].to_pylist()[8:] == [f"dogs/{number}.png" for number in range(3)]
    assert store.samples["source"].to_pylist()[7:9] == ["photos", "more"]
    assert (store.manifest.source.kind, store.manifest.source.name) == ("folder", "photos, more")
    with pytest.raises(
        StoreMismatchError, match=r"3 of 11 are not in photos \(first: row 8, dogs/0.png, which"
    ):
        extend(folder, path, layers="0-2", **RUN)
    shutil.copytree(folder, tmp_path / "all")
    shutil.copytree(tmp_path / "more" / "dogs", tmp_path / "all" / "dogs")
    longer = extend(tmp_path / "all", path, layers="0-2", **RUN)
    assert (longer.layers, longer.store.num_new, open_store(path).layers) == ((0, 1), 11, (0, 1, 2, 6))
    assert open_store(path).arrays_digest == at_once(tmp_path / "r.zarr", path, tmp_path / "all", tiny)
    assert verify_store(path, values=True, complete=True).faults == ()


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_layers_one_after_the_other_are_those_of_one_run(
    make_folder: MakeFolder, tmp_path: Path, single: ExtractOptions, dtype: Any
) -> None:
    folder, path = make_folder(11), tmp_path / "s.zarr"
    add(folder, "class0/bad.png", b"no image")
    whole = extract(folder, tmp_path / "whole.zarr", changed(single, dtype=dtype, layers="0-2"))
    extract(folder, path, changed(single, dtype=dtype, layers="1"))
    extend(folder, path, layers="0", **RUN)
    assert extend(folder, path, layers="2", **RUN).store.digest == whole.digest
    assert verify_store(path, values=True, complete=True).faults == ()


def test_layers_and_tokens_at_once_and_patches_chosen_late(
    make_folder: MakeFolder, tmp_path: Path, single: ExtractOptions
) -> None:
    folder, path = make_folder(5), tmp_path / "s.zarr"
    asked = changed(single, layers="0,3", patches="mean", shard_rows=4)
    whole = extract(folder, tmp_path / "whole.zarr", asked)
    extract(folder, path, changed(asked, layers="3", tokens="cls", patches="all"))
    grown = extend(folder, path, layers="0", tokens="all", patches="mean", **RUN)
    assert (grown.layers, grown.kinds, grown.store.digest) == ((0,), ("patches",), whole.digest)
    again = extend(folder, path, layers="0,3", tokens="cls", **RUN)
    assert (again.layers, again.kinds, again.store.num_new) == ((), (), 0)


def test_layers_of_a_pulled_part(make_folder: MakeFolder, tmp_path: Path, single: ExtractOptions) -> None:
    folder = make_folder(20)
    extract(folder, tmp_path / "whole.zarr", single)
    asked = pull(tmp_path / "whole.zarr", tmp_path / "asked.zarr", rows="8:16")
    path = pull(tmp_path / "whole.zarr", tmp_path / "part.zarr", rows="8:16", layers="6")
    assert extend(folder, path, layers="2", **RUN).store.num_new == 8
    assert open_store(path).digest == open_store(asked).digest
    with pytest.raises(ConfigError, match="is a partial copy; add them to the whole store"):
        append(make_folder(22), path, **RUN)


def test_an_image_that_is_another_now(
    make_folder: MakeFolder, tmp_path: Path, single: ExtractOptions
) -> None:
    folder, path = make_folder(12), tmp_path / "s.zarr"
    digest = extract(folder, path, changed(single, order="kept")).digest
    image, other = folder / "class0/000.png", folder / "class1/001.png"
    content = image.read_bytes()
    image.write_bytes(other.read_bytes())
    message = r"rows 0 to 7 \(shard 0: class0/000.png to class1/.*are not those that .* was made from"
    with pytest.raises(StoreMismatchError, match=message):
        extend(folder, path, layers="0", **RUN)
    image.write_bytes(b"cut")
    with pytest.raises(StoreMismatchError, match=r"status of row 0 \(class0/000.png, shard 0\) is 'ok'"):
        extend(folder, path, layers="0", **RUN)
    assert open_store(path).digest == digest
    image.write_bytes(content)
    assert extend(folder, path, layers="0", **RUN).layers == (0,)


def test_an_old_image_at_the_seam_that_is_another_now(
    make_folder: MakeFolder, tmp_path: Path, single: ExtractOptions
) -> None:
    folder, path = make_folder(9), tmp_path / "s.zarr"
    extract(folder, path, changed(single, order="kept"))
    (folder / "class2/008.png").write_bytes((folder / "class0/000.png").read_bytes())
    make_folder(8)
    add(folder, "zebras/1.png", (folder / "class0/000.png").read_bytes())
    with pytest.raises(StoreMismatchError, match=r"rows 8 to 8 .*are not those that"):
        append(folder, path, **RUN)


def test_where_chooses_among_the_new(make_folder: MakeFolder, tmp_path: Path, single: ExtractOptions) -> None:
    folder, path = make_folder(6), tmp_path / "s.zarr"
    extract(folder, path, changed(single, where=("label=class0",)))
    grown = append(folder, path, where=("label=class1",), **RUN)
    assert (grown.num_appended, grown.num_known) == (2, 0)
    assert set(open_store(path).samples["label"].to_pylist()) == {"class0", "class1"}
    assert dict(open_store(path).manifest.details)["appended"] == "2-3 photos, where label=class1"


def test_images_that_came_after_the_start_are_left_for_the_next_time(
    make_folder: MakeFolder, tmp_path: Path, single: ExtractOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, path = make_folder(10), tmp_path / "s.zarr"
    extract(folder, path, single)

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    make_folder(14)
    with monkeypatch.context() as patch:
        patch.setattr(append_module, "compute_part", interrupted)
        with pytest.raises(KeyboardInterrupt):
            append(folder, path, **RUN)
    planned = open_store(path / GROWING).samples["key"]
    make_folder(17)
    with pytest.raises(StoreMismatchError, match=r"something else is being added to .* 14 rows; finish that"):
        extend(folder, path, layers="0", **RUN)
    with pytest.raises(
        StoreMismatchError, match=r"4 rows are being added to .*; finish that first, or remove"
    ):
        append(make_folder(3, "others"), path, **RUN)
    grown = append(folder, path, **RUN)
    assert (grown.num_appended, grown.num_later) == (4, 3)
    assert open_store(path).samples["key"].equals(pa.chunked_array(planned.chunks))
    assert append(folder, path, **RUN).num_appended == 3
    assert open_store(path).num_rows == 17


def test_too_many_bad_images_leave_the_store_as_it_is(
    make_folder: MakeFolder, tmp_path: Path, single: ExtractOptions
) -> None:
    folder, path = make_folder(6), tmp_path / "s.zarr"
    digest = extract(folder, path, single).digest
    for number in range(3):
        add(folder, f"bad/{number}.png", b"x" * number)
    with pytest.raises(ImageSourceError, match="images are bad, and max_bad allows 1"):
        append(folder, path, max_bad="1", **RUN)
    with pytest.raises(
        ImageSourceError, match="none of the 3 new images could be decoded; nothing was added"
    ):
        append(folder, path, **RUN)
    assert open_store(path).digest == digest


def test_the_teacher_may_be_left_out_of_the_store(
    make_folder: MakeFolder, tmp_path: Path, single: ExtractOptions
) -> None:
    folder, path = make_folder(4), tmp_path / "s.zarr"
    extract(folder, path, changed(single, teacher_weights=False))
    make_folder(6)
    other = load_backbone("test_vit", image_size=32, resize=32, random_seed=1)
    (tmp_path / "other").mkdir()
    save_teacher(other, tmp_path / "other")
    with pytest.raises(WeightsError, match=r"holds other weights .* than .*s.zarr was made with"):
        append(folder, path, weights=tmp_path / "other" / "model.safetensors", **RUN)
    assert append(folder, path, weights=single.weights, **RUN).num_appended == 2


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            {"teacher": "demo"},
            "teacher is 'test_vit' in .* and 'demo' here; leave --teacher out, or extract to",
        ),
        ({"image_size": 64}, r"image_size is \(32, 32\) in .* and \(64, 64\) here"),
        ({"resize": 40}, "resize is 32 in .* and 40 here"),
        ({"crop_mode": "squash"}, "crop_mode is 'center' in .* and 'squash' here"),
        ({"preprocessing": "teacher"}, "is .* in .* here"),
        ({"orientation": "exif"}, "orientation is 'stored' in .* and 'exif' here"),
        ({"layers": "0-6"}, "layers is .2, 6. in .* here"),
        ({"tokens": "cls"}, "tokens is .* here"),
        ({"patches": "mean"}, "patches is None in .* and 'mean' here"),
        ({"dtype": "float16"}, "dtype is 'bfloat16' in .* and 'float16' here"),
        ({"shard_rows": 4}, "shard_rows is 8 in .* and 4 here"),
        ({"seed": 1}, "seed is 0 in .* and 1 here"),
        ({"order": "kept"}, "order is 'shuffled' in .* and 'kept' here"),
        ({"max_pixels": 99}, "max_pixels is 67108864 in .* and 99 here"),
        ({"license": "MIT"}, "license is 'unknown' in .* and 'MIT' here"),
        ({"autocast": "bfloat16"}, "autocast is 'off' in .* and 'bfloat16' here"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_is_said_must_be_what_the_store_says(
    three: tuple[Path, Path], asked: dict[str, Any], message: str
) -> None:
    with pytest.raises(StoreMismatchError, match=message):
        append(*three, **asked)


def test_what_may_be_said_again(finished: Path, make_folder: MakeFolder, single: ExtractOptions) -> None:
    said = {field.name: getattr(single, field.name) for field in dataclasses.fields(single)}
    del said["teacher_weights"]
    said["tokens"] = "all"
    assert append(make_folder(4), finished, **said).num_appended == 1


@pytest.mark.parametrize(
    ("call", "asked", "message"),
    [
        (append, {"limit": 3}, "limit is not for a store that grows"),
        (append, {"teacher_weights": False}, "teacher_weights is not for a store that grows"),
        (extend, {}, "say which, by --layers or --tokens"),
        (extend, {"layers": "0", "where": ("label=cat",)}, "of the rows that a store has; leave --where out"),
        (extend, {"layers": "0-9"}, "0-6"),
    ],
    ids=["limit", "weights", "nothing", "where", "no such layer"],
)
def test_what_has_no_meaning(
    three: tuple[Path, Path], call: Any, asked: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        call(*three, **asked)


@pytest.mark.parametrize("url", ["s3://bucket/s.zarr", "https://example.org/s.zarr"])
def test_only_stores_on_this_machine_grow(three: tuple[Path, Path], url: str) -> None:
    with pytest.raises(ConfigError, match="is a URL; `activault pull` it"):
        append(three[0], url)


def test_only_finished_and_whole_stores_grow(finished: Path, make_folder: MakeFolder) -> None:
    path = finished
    (path / "layer_02/cls/c/0/0/0").unlink()
    with pytest.raises(
        IncompleteStoreError, match=r"files of .* are missing or cut short; `activault verify"
    ):
        append(make_folder(3), path)
    (path / "index.parquet").unlink()
    with pytest.raises(
        IncompleteStoreError, match=r"finished stores grow; .* has 3 of 3 rows; run again what"
    ):
        extend(make_folder(3), path, layers="0")


def test_images_of_another_name_are_told(finished: Path, make_folder: MakeFolder) -> None:
    grown = append(make_folder(4, "renamed"), finished, **RUN)
    assert (grown.num_appended, grown.num_known, grown.known_elsewhere) == (1, 3, 3)
    assert append(make_folder(4, "renamed"), finished, source=SourceOptions(), **RUN).num_appended == 0
