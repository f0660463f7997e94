"""Commands on models: phases of every kind, rotary teachers, costs, baselines, exports."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from activault.extract.backbone import load_backbone, load_teacher, save_teacher
from activault.jobs.cli import main
from activault.store import open_store
from activault.train import load_run
from activault.train.phases import runs_of

Command = Callable[..., Any]
SHORT = ("stage1.steps=2", "stage2.steps=2", "init=random")


def trained(recipe: Path, out: Path, *settings: str) -> Path:
    given = ["train", str(recipe), "--out", str(out), "--device", "cpu", "--json", "--set", *SHORT, *settings]
    assert main(given) == 0
    return out


def test_train_tells_what_the_model_costs_beside_the_teacher(
    activault: Command, recipe: Path, tmp_path: Path
) -> None:
    given = ("train", recipe, "--out", tmp_path / "run", "--device", "cpu", "--set", *SHORT)
    first = activault(*given)
    assert first.status == 0
    for word in (
        "Cost from layer 0 to the last, rows of",
        "parameters",
        "MACs a row",
        "latency, 1 rows, cpu",
    ):
        assert word in first.out
    kept = json.loads((tmp_path / "run" / "cost.json").read_text())
    again = activault(*given, "--json").json
    assert again["cost"] == kept, "measured once a run"
    teacher = load_teacher(open_store(_store_of(recipe)).teacher_dir)
    assert kept["teacher"]["parameters"] == sum(p.numel() for p in teacher.blocks.parameters())
    assert kept["surrogate"]["parameters"] == again["num_parameters"]
    (tmp_path / "run" / "cost.json").write_text("{")
    assert activault(*given, "--json").json["cost"]["surrogate"]["macs"] == kept["surrogate"]["macs"]


def _store_of(recipe: Path) -> str:
    return recipe.read_text().split('store = "')[1].split('"')[0]


def test_a_store_without_its_teacher_is_trained_on(
    activault: Command, recipe: Path, store: Path, tmp_path: Path
) -> None:
    """As one that was imported: the cost stands alone, and blocks start at random."""
    shutil.copytree(store, tmp_path / "s.zarr", ignore=shutil.ignore_patterns("teacher"))
    text = recipe.read_text().replace(_store_of(recipe), str(tmp_path / "s.zarr"))
    (tmp_path / "r.toml").write_text(text)
    given = ("train", tmp_path / "r.toml", "--out", tmp_path / "run", "--device", "cpu", "--json", "--set")
    answer = activault(*given, *SHORT)
    assert answer.status == 0, answer.err
    assert answer.json["cost"]["teacher"] is None
    assert answer.json["cost"]["surrogate"]["latency"]["runs"] >= 3
    answer = activault(*given, *SHORT, "init=teacher-middle")
    assert answer.status == 2
    assert "carries none; start the blocks at random" in answer.error_line


def test_groups_are_trained_and_shown(activault: Command, recipe: Path, tmp_path: Path) -> None:
    text = recipe.read_text().replace("cuts = [2, 4]", "groups = [[1, 3, 5], [2, 4, 6]]")
    (tmp_path / "groups.toml").write_text(text)
    answer = activault(
        "train", tmp_path / "groups.toml", "--out", tmp_path / "run", "--device", "cpu", "--set", *SHORT
    )
    assert answer.status == 0
    assert "groups 1+3+5 and 2+4+6" in answer.out.replace("\n", " ")
    assert load_run(tmp_path / "run").model.phases == ((1, 3, 5), (2, 4, 6))


@pytest.mark.parametrize("control", ["random", "shuffled"])
def test_controls_are_drawn_once_a_run(recipe: Path, tmp_path: Path, control: str) -> None:
    text = recipe.read_text().replace("cuts = [2, 4]", f'num_phases = 2\ncontrol = "{control}"')
    (tmp_path / "control.toml").write_text(text)
    phases = []
    for seed in (1, 2):
        out = trained(tmp_path / "control.toml", tmp_path / str(seed), f"control_seed={seed}")
        phases.append(load_run(out).model.phases)
    assert len(set(phases)) > 1
    assert all(len(found) == 2 for found in phases)
    holes = [any(len(runs_of(phase)) > 1 for phase in found) for found in phases]
    assert holes == [control == "shuffled"] * 2
    trained(tmp_path / "control.toml", tmp_path / "1", "control_seed=1")  # goes on, and draws nothing


def test_baselines_are_probed_and_rolled_out_beside_a_run(activault: Command, store: Path, run: Path) -> None:
    answer = activault("probe", store, "--run", run, "--baseline", "linear", "power", "--json")
    assert answer.status == 0
    names = {"surrogate", "untrained blocks", "linear", "power"}
    assert set(answer.json["scores"]) == {"teacher", "identity", *names}
    assert set(answer.json["rollouts"]) == names
    assert answer.json["rollouts"]["linear"]["layers"] == [1, 2, 3, 4, 5, 6]
    (run / "probe.json").unlink()


def test_baselines_need_no_run(activault: Command, store: Path) -> None:
    answer = activault("probe", store, "--baseline", "linear", "repeated", "identity", "--k", "2")
    assert answer.status == 0
    for word in ("linear", "untrained blocks", "identity", "teacher", "R2 of the closed loop on 8 test rows"):
        assert word in answer.out
    assert "surrogate" not in answer.out


def test_export_writes_a_model_that_runs_by_itself(activault: Command, run: Path, tmp_path: Path) -> None:
    answer = activault("export", run, tmp_path / "k3", "--json")
    assert answer.status == 0
    assert [Path(path).name for path in answer.json["files"]] == ["k3.safetensors", "k3.json", "k3.py"]
    again = activault("export", run, tmp_path / "k3")
    assert (again.status, "exists; choose another name" in again.error_line) == (2, True)
    assert "k3.py" in activault("export", run, tmp_path / "k3", "--overwrite").out
    answer = activault("export", run, tmp_path / "best", "--which", "best")
    assert (answer.status, list(tmp_path.glob("best*"))) == (1, [])


@pytest.fixture(scope="module")
def rotary(images: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Stores of one teacher with rotary positions at two grids, by the side in pixels."""
    folder = tmp_path_factory.mktemp("rotary")
    name = "eva02_tiny_patch14_224"
    save_teacher(load_backbone(name, image_size=28, random_seed=0), folder)
    for side in (28, 42):
        given = ["extract", str(images), str(folder / f"{side}.zarr"), "--teacher", name, "--weights"]
        given += [str(folder / "model.safetensors"), "--image-size", str(side), "--json"]
        assert main(given) == 0
    return {side: folder / f"{side}.zarr" for side in (28, 42)}


def test_rotary_teachers_are_followed_at_any_grid(
    activault: Command, recipe: Path, rotary: dict[int, Path], tmp_path: Path
) -> None:
    """A block a layer, no steps: the surrogate is the teacher, at the grid of training and at another."""
    cuts = list(range(1, 12))
    settings = [
        "stage1.steps=0",
        "stage2.steps=0",
        "init=teacher-first",
        "model.depth=none",
        "model.mlp=swiglu",
    ]
    text = (
        recipe.read_text()
        .replace("cuts = [2, 4]", f"cuts = {cuts}")
        .replace(_store_of(recipe), str(rotary[28]))
    )
    (tmp_path / "r.toml").write_text(text)
    answer = activault("train", tmp_path / "r.toml", "--out", tmp_path / "run", "--json", "--set", *settings)
    assert answer.status == 0, answer.err
    answer = activault("probe", rotary[42], "--run", tmp_path / "run", "--baseline", "identity", "--json")
    assert answer.status == 0, answer.err
    r2 = answer.json["rollouts"]["surrogate"]["r2"]
    assert min(value for value in r2["patches"] if value != "constant") > 0.999
    model = load_run(tmp_path / "run").model
    assert model.config.rotary is not None
    assert (model.config.rotary.num_prefix, model.config.rotary.num_patches) == (1, 4)
    layers = torch.from_numpy(open_store(rotary[28]).read(slice(0, 2), range(13)))
    with torch.no_grad():
        off = (model(layers[:, 0]) - layers[:, 1:]).norm() / layers[:, 1:].norm()
    assert off < 0.01, "bfloat16 in the store"
