"""What may be said of a store that is to grow, and which stores do not."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from activault.extract import SourceOptions
from activault.extract.backbone import load_backbone, save_teacher
from activault.extract.growth import append, extend
from activault.extract.run import ExtractOptions, extract
from activault.store import (
    ConfigError,
    IncompleteStoreError,
    NotAStoreError,
    StoreError,
    StoreMismatchError,
    WeightsError,
)

from .conftest import MakeFolder, changed, colour
from .growing import RUN


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
    for call, asked in ((append, {}), (extend, {"layers": "2"})):  # nothing is computed
        assert call(folder, path, weights=single.weights, **asked).store.num_new == 0
        with pytest.raises(WeightsError, match="holds other weights"):
            call(folder, path, weights=tmp_path / "other" / "model.safetensors", **asked)


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
        ({"patches": "mean"}, "patches is 'all' in .* and 'mean' here"),
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
        (extend, {}, "say which, by --layers or --tokens$"),
        (extend, {"patches": "all"}, "by --layers or --tokens; which patches it keeps was settled when"),
        (
            extend,
            {"layers": "0", "where": ("label=cat",)},
            "what comes is of the rows that a store has; leave --where out",
        ),
        (extend, {"layers": "0-9"}, "0-6"),
    ],
    ids=["limit", "weights", "nothing", "patches", "where", "no such layer"],
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


@pytest.mark.parametrize("place", ["photos", "nowhere.zarr", "list.csv"])
def test_nothing_is_written_into_what_is_no_store(
    make_folder: MakeFolder, tmp_path: Path, place: str
) -> None:
    folder = make_folder(1)
    (tmp_path / "list.csv").write_text("path\n")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(NotAStoreError, match=f"{place} (is not an activation store|does not exist)"):
        append(folder, tmp_path / place)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_store_that_may_not_be_written_to(finished: Path, make_folder: MakeFolder) -> None:
    (finished / ".lock").unlink()
    (finished / ".lock").mkdir()
    for call, asked in ((append, {}), (extend, {"layers": "0"})):
        with pytest.raises(StoreError, match=r"finished.zarr could not be written \(.*\); remove the folder"):
            call(make_folder(3), finished, **asked)


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
    again = append(make_folder(4, "renamed"), finished, source=SourceOptions(), **RUN)
    assert (again.num_appended, again.num_known, again.known_elsewhere) == (0, 4, 0)


def test_images_that_were_not_chosen_are_not_told(finished: Path, make_folder: MakeFolder) -> None:
    folder = make_folder(3, "renamed")
    (folder / "class0/000.png").rename(folder / "class0/009.png")
    grown = append(folder, finished, where=("label=class0",), **RUN)
    assert (grown.num_appended, grown.num_known, grown.known_elsewhere) == (1, 0, 0)
