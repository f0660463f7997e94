"""What people get wrong, each answered in one line that names the thing, the rule and the remedy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from activault.store import open_store

Command = Callable[..., Any]


def test_an_empty_folder(activault: Command, teacher: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    answer = activault("extract", tmp_path / "empty", tmp_path / "s.zarr", *teacher)
    assert answer.status == 1
    assert f"the folder {tmp_path / 'empty'} is empty" in answer.error_line
    assert not (tmp_path / "s.zarr").exists()


def test_a_folder_of_text_files(activault: Command, teacher: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    for name in ("a.txt", "b.txt", "c.md"):
        (tmp_path / "texts" / name).write_text("no picture")
    answer = activault("extract", tmp_path / "texts", tmp_path / "s.zarr", *teacher)
    assert answer.status == 1
    assert "0 images among 3 files (.txt, .md)" in answer.error_line
    assert ".jpeg" in answer.error_line


def test_a_folder_that_is_not_there(activault: Command, teacher: tuple[str, ...], tmp_path: Path) -> None:
    answer = activault("extract", tmp_path / "nowhere", tmp_path / "s.zarr", *teacher)
    assert answer.status == 1
    assert str(tmp_path / "nowhere") in answer.error_line


def test_a_truncated_jpeg_among_good_ones_is_a_counted_bad_row(
    activault: Command, teacher: tuple[str, ...], tmp_path: Path
) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    for name in ("a", "b", "c"):
        Image.fromarray(noise).save(folder / f"{name}.jpg")
    whole = (folder / "b.jpg").read_bytes()
    (folder / "b.jpg").write_bytes(whole[: len(whole) // 2])

    answer = activault("extract", folder, tmp_path / "s.zarr", *teacher)
    assert answer.status == 0
    assert "3, of which bad: 1 truncated" in answer.out
    store = open_store(tmp_path / "s.zarr")
    rows = {row["key"]: row for row in store.samples.to_pylist()}
    assert {key: row["status"] for key, row in rows.items()} == {
        "a.jpg": "ok",
        "b.jpg": "truncated",
        "c.jpg": "ok",
    }
    values = store.read([rows["b.jpg"]["row"], rows["c.jpg"]["row"]], [6])
    assert np.isnan(values[0]).all()
    assert np.isfinite(values[1]).all()
    assert activault("verify", tmp_path / "s.zarr", "--deep", "--complete").status == 0


def test_a_store_path_that_is_something_else(
    activault: Command, images: Path, teacher: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("years of work")
    answer = activault("extract", images, tmp_path / "thesis", *teacher)
    assert answer.status == 1
    assert f"{tmp_path / 'thesis'} is not an activation store" in answer.error_line
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "years of work"
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["chapter.txt"]


@pytest.mark.parametrize("command", ["info", "verify", "phases"])
def test_commands_that_read_name_the_path(activault: Command, command: str, tmp_path: Path) -> None:
    answer = activault(command, tmp_path)
    assert answer.status == 1
    assert f"{tmp_path} is not an activation store" in answer.error_line


def test_an_unknown_teacher_gets_the_nearest_names(activault: Command, images: Path, tmp_path: Path) -> None:
    answer = activault("extract", images, tmp_path / "s.zarr", "--teacher", "vit_smal_patch14_dinov2")
    assert answer.status == 2
    assert "vit_small_patch14_dinov2" in answer.error_line


@pytest.mark.parametrize(
    ("layers", "said"),
    [("0-9", "layer 9 in '0-9' is out of range; there are layers 0-6"), ("first", "numbers and ranges")],
)
def test_layers_that_are_not_there(
    activault: Command, images: Path, teacher: tuple[str, ...], tmp_path: Path, layers: str, said: str
) -> None:
    answer = activault("extract", images, tmp_path / "s.zarr", *teacher, "--layers", layers)
    assert answer.status == 2
    assert said in answer.error_line
    assert not (tmp_path / "s.zarr").exists()


@pytest.mark.parametrize(
    ("size", "said"), [("33", "patch"), ("big", "height x width such as 224x336"), ("32x", "height x width")]
)
def test_image_sizes_that_do_not_fit(
    activault: Command, images: Path, teacher: tuple[str, ...], tmp_path: Path, size: str, said: str
) -> None:
    flags = (*teacher[:4], "--image-size", size)
    answer = activault("extract", images, tmp_path / "s.zarr", *flags)
    assert answer.status == 2
    assert said in answer.error_line


def test_another_request_for_a_store_names_what_differs(
    activault: Command, images: Path, teacher: tuple[str, ...], store: Path
) -> None:
    answer = activault("extract", images, store, *teacher, "--seed", 3)
    assert answer.status == 1
    assert "row_seed" in answer.error_line or "seed" in answer.error_line
    assert "3" in answer.error_line


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("stage1.stepps=3", "stepps"),
        ("stage2.batch_size=0", "batch_size"),
        ("cuts=[4, 9]", "9"),
        ("no equals sign", "key=value"),
    ],
)
def test_recipes_that_do_not_fit(
    activault: Command, recipe: Path, tmp_path: Path, override: str, said: str
) -> None:
    answer = activault("train", recipe, "--out", tmp_path / "r", "--set", override)
    assert answer.status == 2
    assert said in answer.error_line
    assert not (tmp_path / "r").exists()


def test_a_recipe_that_is_not_there(activault: Command, tmp_path: Path) -> None:
    answer = activault("train", tmp_path / "none.toml", "--out", tmp_path / "r")
    assert answer.status == 2
    assert "none.toml" in answer.error_line


def test_a_run_folder_of_another_recipe(activault: Command, recipe: Path, run: Path) -> None:
    answer = activault("train", recipe, "--out", run, "--set", "seed=5")
    assert answer.status == 1
    assert "seed" in answer.error_line


def test_a_folder_that_is_no_run(activault: Command, store: Path, tmp_path: Path) -> None:
    answer = activault("probe", store, "--run", tmp_path)
    assert answer.status == 1
    assert f"{tmp_path} is no run" in answer.error_line


def test_weights_that_a_run_does_not_have(activault: Command, store: Path, run: Path) -> None:
    answer = activault("probe", store, "--run", run, "--which", "best", "--ema")
    assert answer.status == 1
    assert (
        "has no model_best_ema.safetensors; a run has it whose last stage sets validate_every and ema_decay"
        in (answer.error_line)
    )
    answer = activault("probe", store, "--baseline", "linear", "--ema")
    assert answer.status == 2
    assert "choose among the weights of a run; got last_ema and no run: give --run" in answer.error_line


def test_a_device_that_is_not_there(activault: Command, store: Path, run: Path) -> None:
    answer = activault("probe", store, "--run", run, "--device", "abacus")
    assert answer.status == 2
    assert "abacus" in answer.error_line


def test_brackets_in_a_path_are_no_markup(
    activault: Command, recipe: Path, store: Path, tmp_path: Path
) -> None:
    run, report = tmp_path / "run [/red]", tmp_path / "out [b]x"
    answer = activault("train", recipe, "--out", run)
    assert answer.status == 0
    assert "run [/red]" in "".join(answer.out.split("\n"))
    answer = activault("analyze", store, "--run", run, "--out", report)
    assert answer.status == 0
    assert str(report / "report.html") in answer.out


def test_phases_of_no_number(activault: Command, store: Path) -> None:
    answer = activault("phases", store, "--k")
    assert answer.status == 2
    assert "Traceback" not in answer.err


def test_a_half_written_log_is_read_as_far_as_it_goes(
    activault: Command, recipe: Path, store: Path, tmp_path: Path
) -> None:
    activault("train", recipe, "--out", tmp_path / "r")
    log = tmp_path / "r" / "closed_loop" / "metrics.jsonl"
    log.write_bytes(log.read_bytes() + b'{"step": 7, "lo\xff')
    (tmp_path / "r" / "phase_1" / "metrics.jsonl").write_text("")
    assert activault("analyze", store, "--run", tmp_path / "r", "--out", tmp_path / "o").status == 0
