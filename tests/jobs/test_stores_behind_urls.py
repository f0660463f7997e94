"""Commands that look at a store, on one behind a web server: the same figures, nothing copied beforehand."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from http_server import StaticServer, Status

from activault.extract.backbone import load_backbone, save_teacher
from activault.jobs.cli import main
from activault.jobs.teachers import rotary_of, teacher_if_there, teacher_of
from activault.store import WeightsError, open_store

from .conftest import RECIPE, Command

Serve = Callable[[Path], StaticServer]


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_phases_training_probe_and_report(
    activault: Command, store: Path, serve: Serve, temporary: Path, tmp_path: Path
) -> None:
    url = f"{serve(store.parent).url}/{store.name}"
    for name, place in (("here", str(store)), ("there", url)):
        (tmp_path / f"{name}.toml").write_text(RECIPE.format(store=place))
        answer = activault("train", tmp_path / f"{name}.toml", "--out", tmp_path / name, "--device", "cpu")
        assert answer.status == 0, answer.err
    for command in (("phases", "--k", "2"), ("probe", "--run", tmp_path / "here")):
        told = [activault(command[0], place, *command[1:], "--json") for place in (store, url)]
        assert told[1].status == 0, told[1].err
        assert told[0].json == told[1].json
    answer = activault("analyze", url, "--run", tmp_path / "there", "--out", tmp_path / "report")
    assert answer.status == 0, answer.err
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("here", "there")]
    assert weights[0] == weights[1], "initialised from the teacher's blocks, both"
    assert not list(temporary.iterdir())


@pytest.mark.parametrize("is_kept", [False, True])
def test_training_from_afar_without_a_cache_is_told(
    activault: Command,
    store: Path,
    serve: Serve,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_kept: bool,
) -> None:
    url = f"{serve(store.parent).url}/{store.name}"
    if is_kept:
        monkeypatch.setenv("ACTIVAULT_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "r.toml").write_text(RECIPE.format(store=url))
    answer = activault("train", tmp_path / "r.toml", "--out", tmp_path / "run", "--device", "cpu")
    assert answer.status == 0, answer.err
    assert ("every epoch fetches its rows anew; set ACTIVAULT_CACHE_DIR" in answer.err) is not is_kept


@pytest.fixture
def rotary_store(images: Path, tmp_path: Path) -> Path:
    """Four images by a teacher with rotary positions."""
    name, weights = "vit_small_patch16_dinov3", tmp_path / "model.safetensors"
    save_teacher(load_backbone(name, image_size=32, resize=32, random_seed=0), tmp_path)
    flags = ("--teacher", name, "--weights", str(weights), "--image-size", "32", "--resize", "32")
    path = tmp_path / "served" / "rotary.zarr"
    given = (str(images), str(path), *flags, "--layers", "1", "--limit", "4", "--json")
    assert main(["extract", *given]) == 0
    return path


def test_rotary_tables_come_without_the_weights(rotary_store: Path, serve: Serve, temporary: Path) -> None:
    server = serve(rotary_store.parent)
    tables = rotary_of(open_store(f"{server.url}/rotary.zarr"))
    whole = rotary_of(open_store(rotary_store))
    assert tables is not None
    assert whole is not None
    assert tables.pairs == whole.pairs
    assert tables.sin.equal(whole.sin)
    assert not [each.path for each in server.requests if each.path.endswith("model.safetensors")]
    assert not list(temporary.iterdir())


def test_a_teacher_that_is_not_there_whole_is_told(store: Path, serve: Serve, temporary: Path) -> None:
    server = serve(store.parent)
    there = open_store(f"{server.url}/{store.name}")
    server.fault(Status(404), match="/teacher/model.safetensors")
    with pytest.raises(WeightsError, match=r"teacher/model.safetensors of http://.* restore it from a copy"):
        teacher_of(there, None, "")
    assert teacher_if_there(there) is None
    assert not list(temporary.iterdir())


def test_weights_without_their_description_are_damage_and_no_absence(store: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.zarr"
    shutil.copytree(store, copy)
    (copy / "teacher" / "config.json").unlink()
    with pytest.raises(WeightsError, match=r"config.json does not describe a teacher .* restore it"):
        teacher_of(open_store(copy), None, "")
