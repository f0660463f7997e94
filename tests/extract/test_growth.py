"""A finished store takes in more images as if it had always had them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from activault.extract import growth_append as append_module
from activault.extract.backbone import Backbone
from activault.extract.growth import append, extend
from activault.extract.images import ImageFolder
from activault.extract.run import ExtractOptions, extract
from activault.store import (
    ImageSourceError,
    StoreMismatchError,
    open_store,
    verify_store,
)
from activault.store.growing import GROWING

from .conftest import MakeFolder, changed
from .growing import RUN, add, at_once


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
        StoreMismatchError, match=r"4 rows are being added to .* from photos, which is not others; .* remove"
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
    for number in range(11):
        add(folder, f"bad/{number}.png", b"x" * number)
    with pytest.raises(ImageSourceError, match="images are bad, and max_bad allows 1"):
        append(folder, path, max_bad="1", **RUN)
    with pytest.raises(
        ImageSourceError, match=r"none of the 11 new images could be decoded; nothing was added; .* 100%"
    ):
        append(folder, path, max_bad="20", **RUN)
    assert open_store(path).digest == digest
    assert append(folder, path, max_bad="100%", **RUN).store.bad == {"not-an-image": 10, "empty": 1}


def test_a_bad_image_that_came_alone_is_a_bad_row(
    make_folder: MakeFolder, tmp_path: Path, single: ExtractOptions
) -> None:
    folder, path = make_folder(4), tmp_path / "s.zarr"
    extract(folder, path, single)
    add(folder, "class0/bad.png", b"no image")
    grown = append(folder, path, **RUN)
    assert (grown.num_appended, grown.store.bad) == (1, {"not-an-image": 1})
    make_folder(5)
    assert append(folder, path, **RUN).num_appended == 1
