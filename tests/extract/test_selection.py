"""What a store says of the choice and the order of its rows, and how it holds a resumption to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from activault.extract.options import ExtractOptions
from activault.extract.run import extract
from activault.extract.sources import open_source
from activault.store import StoreMismatchError, open_store

from .conftest import MakeFolder, changed
from .make_sources import as_tar, picture, write_samples


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACTIVAULT_CACHE", str(tmp_path / "cache"))


def keys(store: Path) -> list[str]:
    return [str(key) for key in open_store(store).samples["key"].to_pylist()]


def test_kept_order(make_folder: MakeFolder, tmp_path: Path, options: ExtractOptions) -> None:
    folder = make_folder(20)
    extract(folder, tmp_path / "s.zarr", changed(options, order="kept"))
    assert keys(tmp_path / "s.zarr") == open_source(folder).keys
    assert open_store(tmp_path / "s.zarr").manifest.row_seed is None


def test_conditions_and_a_limit(make_folder: MakeFolder, tmp_path: Path, options: ExtractOptions) -> None:
    asked = changed(options, where=("label=class1",), limit=4)
    extract(make_folder(20), tmp_path / "s.zarr", asked)
    store = open_store(tmp_path / "s.zarr")
    assert store.num_rows == 4
    assert set(store.samples["label"].to_pylist()) == {"class1"}
    assert dict(store.manifest.details)["where"] == "label=class1"


@pytest.mark.parametrize(
    ("first", "then", "message"),
    [
        (
            {"where": ("label=class0",)},
            {"where": ("label=class1",)},
            "'label=class0' there and 'label=class1' here; .* with --where label=class0",
        ),
        ({"where": ("label=class0",)}, {}, "where is 'label=class0' there and not given here"),
        (
            {},
            {"where": ("label=class0",)},
            "not given there and 'label=class0' here; .* without --where$",
        ),
        ({}, {"limit": 9}, "rows is 18 there and 9 here; .* ask for what is there; more images"),
        ({"order": "kept"}, {}, "order is 'kept' there and 'shuffled' here; .* with --order kept$"),
        ({}, {"seed": 1}, "seed is 0 there and 1 here; .* there with --seed 0$"),
        (
            {},
            {"max_pixels": 10_000},
            "is 67108864 there and 10000 here; .* with --max-pixels 67108864$",
        ),
        ({}, {"orientation": "exif"}, "orientation is 'stored' there and 'exif' here"),
        ({"split": "train"}, {}, "split is 'train' there and not given here; .* with --split train$"),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, dict) else None,
)
@pytest.mark.parametrize("is_finished", [True, False], ids=["finished", "begun"])
def test_another_choice_is_not_a_resumption(
    make_folder: MakeFolder,
    tmp_path: Path,
    options: ExtractOptions,
    first: dict[str, Any],
    then: dict[str, Any],
    message: str,
    is_finished: bool,
) -> None:
    folder = make_folder(18)
    if "split" in first:
        folder.rename(tmp_path / "train")
        (tmp_path / "photos").mkdir()
        (tmp_path / "train").rename(folder / "train")
    extract(folder, tmp_path / "s.zarr", changed(options, layers="6", **first))
    if not is_finished:
        (tmp_path / "s.zarr" / "index.parquet").unlink()
        (tmp_path / "s.zarr" / "shards" / "00000.json").unlink()
    with pytest.raises(StoreMismatchError, match=message):
        extract(folder, tmp_path / "s.zarr", changed(options, layers="6", **then))


def test_the_same_conditions_in_another_order_are_the_same_request(
    make_folder: MakeFolder, tmp_path: Path, options: ExtractOptions
) -> None:
    folder, conditions = make_folder(12), ("label!=class1", "key~*.png")
    extract(folder, tmp_path / "s.zarr", changed(options, where=conditions))
    assert extract(folder, tmp_path / "s.zarr", changed(options, where=conditions[::-1])).num_new == 0


def test_a_tar_that_changed_is_not_gone_on_with(
    make_folder: MakeFolder, tmp_path: Path, options: ExtractOptions
) -> None:
    tar = as_tar(open_source(make_folder(12)), tmp_path / "x.tar")
    extract(tar, tmp_path / "s.zarr", options)
    write_samples(tar, [(f"{n}", {"png": picture(n)}) for n in range(12)])
    with pytest.raises(StoreMismatchError, match=r"source(\.fingerprint)? is"):
        extract(tar, tmp_path / "s.zarr", options)
