"""`activault extract` on tars, Parquet and tables: flags, what is told, exit codes."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import webdataset
from PIL import Image

from activault.extract.backbone import load_backbone, save_teacher

from .conftest import Command


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    save_teacher(load_backbone("test_vit", image_size=32, random_seed=0), folder)
    return folder / "model.safetensors"


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACTIVAULT_CACHE", str(tmp_path / "cache"))


def png(number: int) -> bytes:
    buffer = BytesIO()
    Image.new("RGB", (32, 32), (number * 9, 80, 200)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    with webdataset.ShardWriter(str(tmp_path / "in-%02d.tar"), maxcount=6, verbose=0) as writer:
        for number in range(18):
            data = b"" if number in (2, 9) else png(number)
            writer.write({"__key__": f"{number:03d}", "png": data, "cls": number % 2})
    return tmp_path


def run(activault: Command, images: object, store: Path, weights: Path, *flags: object) -> Any:
    plain = ("--teacher", "test_vit", "--weights", weights, "--image-size", 32, "--layers", "6", "--json")
    return activault("extract", images, store, *plain, *flags)


def test_a_brace_range_with_a_condition_and_kept_order(
    activault: Command, tars: Path, tmp_path: Path, weights: Path
) -> None:
    flags = ("--order", "kept", "--where", "label=1", "--where", "key!~01*", "--limit", 5)
    answer = run(activault, f"{tars}/in-{{00..02}}.tar", tmp_path / "s.zarr", weights, *flags)
    assert answer.status == 0
    assert answer.json["num_rows"] == 5
    told = activault("info", tmp_path / "s.zarr", "--json").json
    assert told["num_bad"] == 1
    manifest = json.loads((tmp_path / "s.zarr" / "zarr.json").read_text())["attributes"]["activault"]
    assert manifest["row_seed"] is None
    assert manifest["source"]["name"] == "in-{00..02}.tar"
    assert manifest["details"]["where"] == "key!~01* and label=1"


def test_too_many_bad_images_end_with_1_and_a_higher_budget_goes_on(
    activault: Command, tars: Path, tmp_path: Path, weights: Path
) -> None:
    flags = ("--order", "kept", "--shard-rows", 6, "--batch-size", 2, "--workers", 1)
    answer = run(activault, tars, tmp_path / "s.zarr", weights, *flags, "--max-bad", 1)
    assert answer.status == 1
    assert "2 images are bad, and max_bad allows 1" in answer.error_line
    assert "(empty: the file has no bytes)" in answer.error_line
    assert activault("verify", tmp_path / "s.zarr").status == 0
    again = run(activault, tars, tmp_path / "s.zarr", weights, *flags, "--max-bad", "20%")
    assert (again.status, again.json["bad"]) == (0, {"empty": 2})


def test_a_cut_tar_is_told(activault: Command, tars: Path, tmp_path: Path, weights: Path) -> None:
    path = tars / "in-02.tar"
    data = path.read_bytes()
    path.write_bytes(data[: data.rfind(png(17)) + 20])
    answer = run(activault, tars, tmp_path / "s.zarr", weights)
    assert answer.status == 0
    assert "in-02.tar is cut off at byte" in answer.error_line
    assert answer.json["bad"] == {"empty": 2, "truncated": 1}


def test_shuffled_parquet_says_what_it_costs(activault: Command, tmp_path: Path, weights: Path) -> None:
    table = pa.table({"image": [{"bytes": png(n), "path": f"{n}.png"} for n in range(8)], "label": [0] * 8})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=4)
    answer = run(activault, tmp_path / "x.parquet", tmp_path / "s.zarr", weights)
    assert answer.status == 0
    assert "here of 4 rows: shuffled rows read that many times the bytes" in answer.error_line
    assert (
        "activault:"
        not in run(activault, tmp_path / "x.parquet", tmp_path / "t.zarr", weights, "--order", "kept").err
    )


@pytest.mark.parametrize(
    ("flags", "status", "message"),
    [
        (("--where", "label"), 2, "a condition is COLUMN=VALUE"),
        (("--where", "colour=red"), 2, "there are key, label, split"),
        (("--where", "label=none"), 1, "none of the 18 images is chosen where label=none"),
        (("--split", "train"), 1, "by what their source tells of them; this one tells no split"),
        (("--shard-rows", 10**9), 2, "(a row takes "),
        (("--max-bad", "all"), 2, "max_bad is a number of rows or a share"),
        (("--max-pixels", 0), 2, "max_pixels is at least 1; got 0"),
        (("--source", "table"), 1, "no file that ends in .csv or .tsv or .parquet"),
        (("--label-column", "klass"), 2, "no sample has the label column 'klass'"),
    ],
)
def test_flags_that_cannot_be_met(
    activault: Command,
    tars: Path,
    tmp_path: Path,
    weights: Path,
    flags: tuple[object, ...],
    status: int,
    message: str,
) -> None:
    answer = run(activault, tars, tmp_path / "s.zarr", weights, *flags)
    assert answer.status == status
    assert message in answer.error_line
    assert not (tmp_path / "s.zarr").exists()


def test_a_table_with_its_images_elsewhere(activault: Command, tmp_path: Path, weights: Path) -> None:
    for number in range(3):
        (tmp_path / "photos").mkdir(exist_ok=True)
        (tmp_path / "photos" / f"{number}.png").write_bytes(png(number))
    (tmp_path / "list.csv").write_text("file,class\n0.png,a\n2.png,b\n")
    flags = ("--image-root", tmp_path / "photos", "--label-column", "class", "--orientation", "exif")
    answer = run(activault, tmp_path / "list.csv", tmp_path / "s.zarr", weights, *flags)
    assert (answer.status, answer.json["num_rows"]) == (0, 2)


@pytest.mark.parametrize(
    ("images", "store", "message"),
    [
        ("", "s.zarr", "IMAGES is a path or a URL; it is empty here"),
        ("photos", " ", "STORE is a path or a URL; it is empty here"),
        (
            "ftp://x/y.tar",
            "s.zarr",
            "images lie at a path, or at a URL that begins with http, https, s3, file",
        ),
    ],
)
def test_places_that_are_none(activault: Command, images: str, store: str, message: str) -> None:
    answer = activault("extract", images, store, "--teacher", "demo")
    assert answer.status == 2
    assert message in answer.error_line
