"""The demo teacher on real photographs: the same values from a folder, a tar, Parquet and a table."""

from __future__ import annotations

from pathlib import Path

import pytest

from activault.extract.options import ExtractOptions, SourceOptions
from activault.extract.run import extract
from activault.extract.sources import open_source
from activault.store import open_store

from .conftest import changed
from .make_sources import as_csv, as_parquet, as_tar

DATA = Path(__file__).parents[3] / "shared" / "data"
COLLECTIONS = {"imagenet": ("imagenet_samples", "key~n0[12]*"), "cifar": ("cifar10/test", "key~*/000[0-3]*")}


@pytest.mark.teacher
@pytest.mark.parametrize(("folder", "where"), COLLECTIONS.values(), ids=COLLECTIONS)
def test_the_same_arrays_from_every_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, where: str
) -> None:
    if not (DATA / folder).is_dir():
        pytest.skip(f"no images at {DATA / folder}")
    whole = open_source(DATA / folder)
    made = tmp_path / "made"
    made.mkdir()
    table = SourceOptions(image_root=str(DATA / folder))
    sources = {
        "folder": (DATA / folder, SourceOptions()),
        "tar": (as_tar(whole, made / "x.tar"), SourceOptions(index="none")),
        "parquet": (as_parquet(whole, made / "x.parquet"), SourceOptions()),
        "table": (as_csv(whole, made / "x.csv"), table),
    }
    options = ExtractOptions(
        teacher="demo", teacher_weights=False, image_size=56, where=(where,), limit=8, batch_size=4, workers=2
    )
    digests, labels = set(), set()
    for name, (path, source) in sources.items():
        extract(path, tmp_path / f"{name}.zarr", changed(options, source=source))
        store = open_store(tmp_path / f"{name}.zarr")
        assert (store.num_rows, store.num_bad) == (8, 0)
        digests.add(store.arrays_digest)
        labels.add(tuple(store.samples["label"].to_pylist()))
    assert len(digests) == len(labels) == 1
