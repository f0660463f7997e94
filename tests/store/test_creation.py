from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

import pytest

from activault.store import (
    ConfigError,
    NotAStoreError,
    Preprocessing,
    StoreError,
    StoreMismatchError,
    create_store,
    open_store,
    plan_samples,
)
from activault.store.creation import is_free

from .conftest import PREPROCESSING, TEACHER, MakePlan, Plan, make_manifest, write_teacher


def test_planning_makes_an_empty_store_that_opens(plan: Plan) -> None:
    plan.open()
    store = open_store(plan.path)
    assert store.manifest == plan.manifest
    assert not store.complete
    assert len(store.finished_rows) == 0
    assert store.samples["status"].to_pylist() == ["pending"] * 50
    assert (store.teacher_dir / "config.json").read_text() == "{}"


def test_teacher_files_may_be_given_by_name(make_plan: MakePlan, tmp_path: Path) -> None:
    plan = make_plan()
    (tmp_path / "weights").write_bytes(b"12")
    create_store(plan.path, plan.manifest, plan.samples, {"model.safetensors": tmp_path / "weights"})
    assert (open_store(plan.path).teacher_dir / "model.safetensors").read_bytes() == b"12"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "float32"}, "dtype is 'bfloat16' there and 'float32' here"),
        ({"layers": (0, 2)}, r"layers is \[0, 2, 4\] there and \[0, 2\] here"),
        ({"row_seed": 3}, "row_seed is 0 there and 3 here"),
        (
            {"teacher": TEACHER.model_copy(update={"name": "other"})},
            "teacher.name is 'tiny' there and 'other' here",
        ),
        (
            {"preprocessing": Preprocessing(**PREPROCESSING.model_dump() | {"resize": 9})},
            "preprocessing.resize is 28 there and 9 here",
        ),
    ],
)
def test_another_manifest_is_refused_with_the_field(
    plan: Plan, changes: dict[str, Any], message: str
) -> None:
    plan.open()
    before = (plan.path / "zarr.json").read_bytes()
    with pytest.raises(StoreMismatchError, match=message):
        create_store(plan.path, make_manifest(**changes), plan.samples, write_teacher)
    assert (plan.path / "zarr.json").read_bytes() == before


def test_other_images_are_refused_with_the_row(plan: Plan) -> None:
    plan.open()
    keys = plan.samples["key"].to_pylist()
    keys[4] = "another.jpg"
    samples = plan_samples(keys, plan.samples["label"].to_pylist(), "images")
    with pytest.raises(
        StoreMismatchError, match=r"the key of row 4 is 'folder/004.jpg' there and 'another.jpg' here"
    ):
        create_store(plan.path, plan.manifest, samples, write_teacher)


def test_a_foreign_folder_is_left_alone(plan: Plan) -> None:
    plan.path.mkdir()
    (plan.path / "thesis.txt").write_text("mine")
    with pytest.raises(NotAStoreError, match="exists and is not an activation store"):
        plan.open()
    assert [file.name for file in plan.path.iterdir()] == ["thesis.txt"]


def test_a_file_is_left_alone(plan: Plan) -> None:
    plan.path.write_text("mine")
    with pytest.raises(NotAStoreError, match="is a file, not an activation store"):
        plan.open()


def test_an_empty_folder_may_be_planned(plan: Plan) -> None:
    plan.path.mkdir()
    assert plan.write().complete


def test_what_a_writer_killed_at_its_first_file_left_counts_as_nothing(plan: Plan) -> None:
    plan.path.mkdir()
    left = plan.path / ".planning.0123456789abcdef.tmp"
    left.write_bytes(b"half")
    assert is_free(plan.path)
    assert plan.write().complete
    assert not left.exists()


def test_other_hidden_or_temporary_files_do_not(plan: Plan) -> None:
    plan.path.mkdir()
    (plan.path / "thesis.tmp").write_text("mine")
    (plan.path / ".git.tmp").mkdir()
    with pytest.raises(NotAStoreError, match="exists and is not an activation store"):
        plan.open()


def test_a_path_inside_a_file_is_a_store_error(make_plan: MakePlan, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StoreError, match=r"file/a.zarr could not be written .*parents are folders"):
        make_plan("file/a.zarr").open()


def test_a_half_planned_store_is_planned_again(plan: Plan) -> None:
    def interrupted(folder: Path) -> None:
        (folder / "left.bin").write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        create_store(plan.path, plan.manifest, plan.samples, interrupted)
    with pytest.raises(
        NotAStoreError,
        match="is being planned, or its planning was interrupted; if nobody is at it, run again",
    ):
        open_store(plan.path)
    assert plan.write().complete
    assert sorted(file.name for file in (plan.path / "teacher").iterdir()) == [
        "config.json",
        "model.safetensors",
    ]
    assert not (plan.path / ".planning").exists()


@pytest.mark.parametrize(
    "name",
    [
        "layer_07/thesis.txt",
        "layer_00/cls/c/0/0/0",
        "layer_00/zarr.json/x",
        "layer_00/cls/notes",
        "teacher/runs/log.txt",
        "shards/00000.json",
    ],
)
def test_planning_anew_removes_what_planning_makes_and_nothing_else(plan: Plan, name: str) -> None:
    def interrupted(_: Path) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        create_store(plan.path, plan.manifest, plan.samples, interrupted)
    file = plan.path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("mine")
    with pytest.raises(NotAStoreError, match="which planning does not make; move it away"):
        plan.open()
    assert file.read_text() == "mine"
    shutil.rmtree(plan.path / file.relative_to(plan.path).parts[0])
    assert plan.write().complete


def test_folders_that_only_begin_as_a_layer_are_left_alone(plan: Plan) -> None:
    (plan.path / "layer_norm_runs").mkdir(parents=True)
    (plan.path / "layer_norm_runs/log.txt").write_text("mine")
    (plan.path / ".planning").write_text("")
    assert plan.write().complete
    assert (plan.path / "layer_norm_runs/log.txt").read_text() == "mine"


@pytest.mark.parametrize("step", range(1, 22, 3))
def test_planning_cut_short_anywhere_is_done_again(
    plan: Plan, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, done = Path.replace, 0

    def replace(self: Path, target: Path) -> Path:
        nonlocal done
        done += 1
        if done == step:
            raise KeyboardInterrupt
        return original(self, target)

    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(Path, "replace", replace)
        plan.open().close()
    assert plan.write().complete


def test_samples_of_another_number_are_refused(plan: Plan) -> None:
    with pytest.raises(ConfigError, match="one for each of 50 rows; got 1"):
        create_store(plan.path, plan.manifest, plan_samples(["a"], [None], "images"), write_teacher)


@pytest.mark.parametrize("name", ["weights.tmp", "a.partial", ".hidden", "a\\b", "a\nb", "x" * 201])
@pytest.mark.parametrize("by_name", [True, False])
def test_names_that_a_teacher_file_cannot_have(
    make_plan: MakePlan, tmp_path: Path, name: str, by_name: bool
) -> None:
    """A file called as a writer's leftovers are would be removed with them."""
    plan = make_plan()
    (tmp_path / "weights").write_bytes(b"12")

    def write(folder: Path) -> None:
        (folder / name).write_bytes(b"12")

    given = {name: tmp_path / "weights"} if by_name else write
    with pytest.raises(ConfigError, match=r"names of the teacher's files are printable, .*; rename it"):
        create_store(plan.path, plan.manifest, plan.samples, given)
    assert plan.write().complete
