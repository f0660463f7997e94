"""`extract --append` and `--extend` from the command line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from activault.jobs.said import remembered, said
from activault.store import open_store
from activault.store.repair_plan import read_plan

from .conftest import Command, write_images


@pytest.fixture
def grown(store: Path, images: Path, tmp_path: Path) -> tuple[Path, Path]:
    """The folder with more images, and a store of those that it had."""
    folder = shutil.copytree(images, tmp_path / "photos")
    write_images(folder, 3, "val")
    return folder, shutil.copytree(store, tmp_path / "s.zarr")


def test_more_rows_and_more_layers(activault: Command, grown: tuple[Path, Path]) -> None:
    folder, path = grown
    answer = activault("extract", folder, path, "--append", "--device", "cpu", "--dtype", "bfloat16")
    assert answer.status == 0, answer.err
    assert "3 rows; 24 images were there already" in answer.out
    answer = activault("extract", folder, path, "--append", "--json")
    assert (answer.json["num_appended"], answer.json["num_known"], answer.json["store"]["num_rows"]) == (
        0,
        27,
        27,
    )
    answer = activault("extract", folder, path, "--extend", "--layers", "0-6")
    assert "nothing: all of it was there already" in answer.out
    assert open_store(path).num_rows == 27
    (path / "layer_03/cls/c/1/0/0").unlink()
    (path / "layer_00/zarr.json").unlink()
    answer = activault("verify", path, "--deep", "--repair-plan", plan := path.parent / "plan.json")
    assert answer.status == 1
    assert "only a copy of the store mends (2):" in answer.out
    assert "it is missing; restore it from a copy of the store: rows came to it later (24-26 " in answer.out
    assert "--repair" not in answer.out
    assert (read_plan(plan).shards, len(read_plan(plan).from_copy)) == ((), 2)


@pytest.mark.parametrize(
    ("flags", "status", "message"),
    [
        (("--append", "--dtype", "int8"), 1, "dtype is 'bfloat16' in "),
        (("--append", "--image-size=64"), 1, "image_size is (32, 32) in "),
        (("--append", "--limit", "3"), 2, "limit is not for a store that grows"),
        (("--append", "--no-teacher-weights"), 2, "teacher_weights is not for a store that grows"),
        (("--append", "--extend"), 2, "give one of them"),
        (("--extend",), 2, "say which, by --layers or --tokens"),
        ((), 2, "say which by --teacher"),
    ],
    ids=lambda value: "".join(value) if isinstance(value, tuple) else "",
)
def test_what_is_refused(
    activault: Command, store: Path, images: Path, flags: tuple[str, ...], status: int, message: str
) -> None:
    answer = activault("extract", images, store, *flags)
    assert answer.status == status
    assert message in answer.error_line


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("s3://bucket/s.zarr", "s3://bucket/s.zarr is a URL; `activault pull` it"),
        ("nothing.zarr", "nothing.zarr"),
    ],
)
def test_a_store_that_cannot_grow_is_refused_before_images_are_looked_at(
    activault: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for flag in ("--append", "--extend"):
        answer = activault("extract", "no images", place, flag, "--layers", "0")
        assert answer.status != 0
        assert message in answer.error_line
        assert "no images" not in answer.error_line


def test_verify_tells_of_an_addition_under_way(
    activault: Command, grown: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from activault.extract import growth

    folder, path = grown
    monkeypatch.setattr(growth, "join_growth", lambda _: False)
    activault("extract", folder, path, "--append", "--device", "cpu")
    answer = activault("verify", path)
    assert answer.status == 0
    assert ".growing" in answer.out + answer.err
    assert "1 of 1 shards are there, and nobody reads them yet" in " ".join((answer.out + answer.err).split())
    assert activault("info", path, "--json").json["num_rows"] == 24


def test_flags_that_were_said() -> None:
    with remembered(["extract", "photos", "s.zarr", "--append", "--batch-size", "8", "--dtype=int8"]):
        assert said() == {"append", "batch_size", "dtype"}
    assert said() == frozenset()
