"""The demo teacher on real photographs: the same values from a folder, a tar, Parquet and a table.

The photographs are the demo's crops. A folder of one's own comes in addition by variables:

    ACTIVAULT_IMAGES=photos/ ACTIVAULT_IMAGE_SIZE=224 ACTIVAULT_LIMIT=120 pytest -rP -m teacher tests/extract
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from activault.extract.demo_crops import DemoImages, demo_images
from activault.extract.options import ExtractOptions, SourceOptions
from activault.extract.run import extract
from activault.extract.sources import open_source
from activault.store import open_store

from .conftest import changed
from .make_sources import as_csv, as_parquet, as_tar

COLLECTIONS = ["crops", *(["given"] if "ACTIVAULT_IMAGES" in os.environ else [])]


@pytest.fixture
def images(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, int, int]:
    """A folder, the pixels of the teacher's input, and how many images."""
    if request.param == "crops":
        return demo_images(tmp_path / "crops", DemoImages(num_train=3, num_test=1)), 98, 36
    size, limit = (int(os.environ.get(f"ACTIVAULT_{name}", 98)) for name in ("IMAGE_SIZE", "LIMIT"))
    return Path(os.environ["ACTIVAULT_IMAGES"]).absolute(), size, limit


@pytest.mark.teacher
@pytest.mark.parametrize("images", COLLECTIONS, indirect=True)
def test_the_same_arrays_from_every_source(images: tuple[Path, int, int], tmp_path: Path) -> None:
    folder, size, limit = images
    whole, made = open_source(folder), tmp_path / "made"
    made.mkdir()
    table = SourceOptions(image_root=str(folder))
    sources = {
        "folder": (folder, SourceOptions()),
        "tar": (as_tar(whole, made / "x.tar"), SourceOptions(index="none")),
        "parquet": (as_parquet(whole, made / "x.parquet"), SourceOptions()),
        "table": (as_csv(whole, made / "x.csv"), table),
    }
    options = ExtractOptions(
        teacher="demo", teacher_weights=False, image_size=size, limit=limit, batch_size=8, workers=2
    )
    digests, labels = set(), set()
    for name, (path, source) in sources.items():
        extract(path, tmp_path / f"{name}.zarr", changed(options, source=source))
        store = open_store(tmp_path / f"{name}.zarr")
        assert (store.num_rows, store.num_bad) == (limit, 0)
        digests.add(store.arrays_digest)
        labels.add(tuple(store.samples["label"].to_pylist()))
        print(f"{name}: {limit} images at {size} pixels, arrays_digest {store.arrays_digest}")
    assert len(digests) == len(labels) == 1
