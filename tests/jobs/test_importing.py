"""`import` from the command line, and what other commands make of a store without a teacher."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numcodecs import Blosc

from activault.jobs.cli import main
from activault.store import open_store

Command = Callable[..., Any]
SAID = ("--registers", "4", "--shard-rows", "16", "--heads", "2")


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """48 rows of 5 layers of 9 tokens of width 8, growing by layer; one chunk was never written."""
    path = tmp_path_factory.mktemp("reference") / "activations.zarr"
    rng = np.random.default_rng(0)
    values = np.cumsum(rng.standard_normal((48, 5, 9, 8), dtype=np.float32), axis=1, dtype=np.float32)
    compressor = Blosc(cname="zstd", clevel=3, shuffle=Blosc.SHUFFLE)
    array: Any = zarr.open(
        store=str(path), mode="w", shape=values.shape, chunks=(8, 1, 9, 8), dtype="float32", zarr_format=2,
        compressor=compressor,
    )  # fmt: skip
    array[:] = values
    (path / "2.3.0.0").unlink()
    return path


@pytest.fixture(scope="session")
def imported(reference: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("imported") / "s.zarr"
    assert main(["import", str(reference), str(path), *SAID, "--json"]) == 0
    return path


def test_import_tells_rows_holes_and_what_is_unknown(
    activault: Command, reference: Path, tmp_path: Path
) -> None:
    answer = activault("import", reference, tmp_path / "s.zarr", *SAID)
    assert answer.status == 0
    assert "rows    48 (48 new), without activations: 8 missing" in answer.out
    assert "unknown keys, labels, teacher, preprocessing, license" in answer.out
    assert open_store(tmp_path / "s.zarr").digest in answer.out


def test_import_again_does_nothing_new(activault: Command, reference: Path, imported: Path) -> None:
    answer = activault("import", reference, imported, *SAID, "--json")
    assert (answer.status, answer.json["num_new"]) == (0, 0)


def test_everything_that_is_known_can_be_said(activault: Command, reference: Path, tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("cat\ndog\n" * 24)
    steps = {
        "image_size": [28, 28],
        "resize": 32,
        "interpolation": "bilinear",
        "mean": [0, 0, 0],
        "std": [1, 1, 1],
    }
    (tmp_path / "steps.json").write_text(json.dumps(steps))
    answer = activault(
        "import", reference, tmp_path / "s.zarr", "--layers", "1-5", "--registers", 4, "--cls", 1,
        "--grid", "2x2", "--teacher", "mine", "--preprocessing", tmp_path / "steps.json",
        "--labels", tmp_path / "labels.txt", "--dtype", "float32", "--license", "cc-by-4.0",
        "--citation", "Us, 2026.", "--json",
    )  # fmt: skip
    assert answer.status == 0
    facts = activault("info", tmp_path / "s.zarr", "--json").json
    assert facts["layers"] == [1, 2, 3, 4, 5]
    assert facts["teacher"]["name"] == "mine"
    assert facts["preprocessing"]["resize"] == 32
    assert (facts["dtype"], facts["license"], facts["citation"]) == ("float32", "cc-by-4.0", "Us, 2026.")
    assert facts["num_classes"] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--grid", "16"), "a grid is rows x columns such as 16x16; got '16'"),
        (("--grid", "4x4"), "9 tokens must be CLS"),
        (("--layers", "0-12"), "names each of the array's 5 layers"),
        (("--preprocessing", "usual"), "preprocessing is `reference` or a JSON file with image_size, resize"),
        (("--labels", "absent.csv"), "absent.csv cannot be read as labels"),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) else "",
)
def test_what_does_not_fit_is_wrong_usage(
    activault: Command, reference: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    answer = activault("import", reference, tmp_path / "s.zarr", "--cls", 1, "--registers", 4, *arguments)
    assert answer.status == 2
    assert message in answer.error_line
    assert not (tmp_path / "s.zarr").exists()


def test_verify_and_info_take_an_imported_store(activault: Command, imported: Path) -> None:
    assert activault("verify", imported, "--deep", "--complete").status == 0
    answer = activault("info", imported)
    assert answer.status == 0
    assert "preprocessing" in answer.out


def test_phases_and_analyses_need_no_teacher(activault: Command, imported: Path, tmp_path: Path) -> None:
    assert activault("phases", imported, "--k", 2, "--json").status == 0
    answer = activault("analyze", imported, "--out", tmp_path / "report", "--json")
    assert answer.status == 0
    assert Path(answer.json["report"]).exists()


RECIPE = """
store = "{store}"
cuts = [2]
init = "{init}"
[stage1]
steps = 2
batch_size = 4
warmup_steps = 1
[stage2]
steps = 2
batch_size = 4
warmup_steps = 1
"""


def test_a_surrogate_is_trained_from_random_blocks(
    activault: Command, imported: Path, tmp_path: Path
) -> None:
    (tmp_path / "r.toml").write_text(RECIPE.format(store=imported, init="random"))
    run = tmp_path / "run"
    assert activault("train", tmp_path / "r.toml", "--out", run, "--device", "cpu").status == 0
    answer = activault("probe", imported, "--run", run)
    assert answer.status == 2
    assert "needs the teacher's weights" in answer.error_line
    answer = activault(
        "analyze", imported, "--run", run, "--out", tmp_path / "report", "--device", "cpu", "--json"
    )
    assert answer.status == 0, answer.err
    assert "left out: this needs the teacher" in Path(answer.json["report"]).read_text()


def test_blocks_of_a_teacher_that_is_not_there_are_refused(
    activault: Command, imported: Path, tmp_path: Path
) -> None:
    (tmp_path / "r.toml").write_text(RECIPE.format(store=imported, init="teacher-middle"))
    answer = activault("train", tmp_path / "r.toml", "--out", tmp_path / "run", "--device", "cpu")
    assert answer.status == 2
    assert 'carries none; start the blocks at random (init = "random")' in answer.error_line
