"""Runs that are refused: another run's folder, a store that does not fit, a disk that cannot be written."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from activault.store import Store
from activault.store.errors import ConfigError, IncompleteStoreError, RunError
from activault.train.finished import load_run
from activault.train.recipe import TrainRecipe
from activault.train.runs import RunSummary
from activault.train.stages import StageProgress

MakeStore = Callable[..., Store]
MakeRecipe = Callable[..., TrainRecipe]
RunTiny = Callable[..., RunSummary]


@pytest.mark.parametrize(
    ("changes", "cuts", "message"),
    [
        ({"seed": 5}, (2,), r"has recipe\.seed = 0 and this one 5; choose another folder"),
        ({"stage2": {"clip": 3.0}}, (2,), r"has recipe\.stage2\.clip = 1\.0 and this one 3\.0"),
        ({"cuts": [1]}, (1,), r"has recipe\.cuts = \[2\] and this one \[1\]"),
        (
            {"stage1": {"token_weights": {"cls": 1, "registers": 0, "patches": 1}}},
            (2,),
            r"stage1\.token_weights",
        ),
    ],
)
def test_folder_of_another_recipe_is_refused(
    store: Store, tmp_path: Path, changes: dict[str, Any], cuts: tuple[int, ...], message: str, run: RunTiny
) -> None:
    run(tmp_path / "run", store)
    before = (tmp_path / "run" / "run.json").read_bytes()
    with pytest.raises(RunError, match=message):
        run(tmp_path / "run", store, cuts, **changes)
    assert (tmp_path / "run" / "run.json").read_bytes() == before


def test_found_phases_are_part_of_the_run(store: Store, tmp_path: Path, run: RunTiny) -> None:
    found = {"cuts": None, "num_phases": 2}
    run(tmp_path / "run", store, (2,), **found)
    with pytest.raises(RunError, match=r"has model\.cuts = \[2\] and this one \[3\]"):
        run(tmp_path / "run", store, (3,), **found)


def test_other_store_is_refused_and_a_moved_one_is_not(
    store: Store, make_store: MakeStore, tmp_path: Path, run: RunTiny
) -> None:
    run(tmp_path / "run", store)
    run(tmp_path / "run", store, store="moved/elsewhere.zarr")
    other = make_store("other.zarr", num_rows=24)
    with pytest.raises(RunError, match=rf"has store_digest = '{store.digest}' and this one '{other.digest}'"):
        run(tmp_path / "run", other)


def test_folder_with_something_else_is_refused(store: Store, tmp_path: Path, run: RunTiny) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("years of work")
    with pytest.raises(RunError, match=r"run exists and is no run; choose another folder"):
        run(tmp_path / "run", store)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["thesis.tex"]


def test_foreign_and_damaged_folders_are_not_loaded(store: Store, tmp_path: Path, run: RunTiny) -> None:
    with pytest.raises(RunError, match=r"is no run: it has no run\.json"):
        load_run(tmp_path)
    run(tmp_path / "run", store)
    weights = tmp_path / "run" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(RunError, match="is not what was written; start the same"):
        load_run(tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text('{"version": 7}')
    with pytest.raises(RunError, match=r"run\.json is not of version 1"):
        load_run(tmp_path / "run")


@pytest.mark.parametrize(
    ("options", "changes", "cuts", "error", "message"),
    [
        (
            {"layers": (0, 1, 2, 4)},
            {},
            (2,),
            ConfigError,
            r"training takes the teacher's layers 0-4; the store lacks \[3\]",
        ),
        (
            {"kinds": ["cls", "patches"]},
            {},
            (2,),
            ConfigError,
            r"takes all tokens of a layer; this store was made without registers",
        ),
        (
            {"complete": False},
            {},
            (2,),
            IncompleteStoreError,
            r"needs a complete store and .*s2\.zarr is not",
        ),
        (
            {},
            {"init": "teacher-middle"},
            (2,),
            ConfigError,
            r"init 'teacher-middle' needs the teacher's blocks",
        ),
        ({}, {}, (3,), ConfigError, r"the recipe gives cuts \[2\]; got \[3\]"),
        ({}, {"cuts": [9]}, (9,), ConfigError, r"cuts rise within 1-3; got \[9\]"),
        (
            {"keys": [f"test/{n}.png" for n in range(40)]},
            {},
            (2,),
            ConfigError,
            r"none in split 'train': set split",
        ),
    ],
    ids=["layers", "kinds", "incomplete", "no-blocks", "other-cuts", "wild-cuts", "no-train-rows"],
)
def test_what_does_not_fit_is_told_before_training(
    make_store: MakeStore,
    tmp_path: Path,
    options: dict[str, Any],
    changes: dict[str, Any],
    cuts: tuple[int, ...],
    error: type[Exception],
    message: str,
    run: RunTiny,
) -> None:
    store = make_store("s2.zarr", **options)
    with pytest.raises(error, match=message):
        run(tmp_path / "run", store, cuts, **changes)
    assert not (tmp_path / "run").exists()


def test_two_processes_do_not_train_in_one_folder(store: Store, tmp_path: Path, run: RunTiny) -> None:
    def intrude(state: StageProgress) -> None:
        with pytest.raises(
            RunError, match=r"another one is at work in .*run.*; wait for it or choose another folder"
        ):
            run(tmp_path / "run", store)

    run(tmp_path / "run", store, progress=intrude)
    run(tmp_path / "run", store)


@pytest.mark.parametrize(
    ("in_the_way", "named"),
    [
        ("", r"run exists and is no run; choose another folder"),
        ("lock/", r"lock could not be written: .*; what was there before is whole: make room or allow"),
        ("phase_1", r"phase_1 could not be written: .* then start again"),
        ("phase_1/metrics.jsonl/", r"metrics\.jsonl could not be written: .* then start again"),
        ("model.safetensors.0f.tmp/", r"model\.safetensors could not be written: .* then start again"),
    ],
    ids=["run", "lock", "stage", "metrics", "model"],
)
def test_what_cannot_be_written_is_told_in_one_line(
    store: Store, tmp_path: Path, in_the_way: str, named: str, run: RunTiny, recipe: MakeRecipe
) -> None:
    out = tmp_path / "run"
    if in_the_way:
        run(out, store, stage1={"steps": 0}, stage2={"steps": 0})
        record = json.loads((out / "run.json").read_text())
        shutil.rmtree(out)
        out.mkdir()
        (out / "run.json").write_text(json.dumps({**record, "recipe": recipe().model_dump(mode="json")}))
    place = out / in_the_way
    place.parent.mkdir(parents=True, exist_ok=True)
    place.mkdir() if in_the_way.endswith("/") else place.write_text("")
    with pytest.raises(RunError, match=named) as caught:
        run(out, store)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("parent", ["file", "full"])
def test_folder_that_cannot_be_made_is_told(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parent: str, run: RunTiny
) -> None:
    if parent == "file":
        (tmp_path / "file").write_text("")
    else:

        def refuse(*_: object, **__: object) -> None:
            raise OSError(errno.EROFS, "Read-only file system")

        monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(RunError, match=r"run cannot be made: .*; choose another folder"):
        run(tmp_path / parent / "run", store)
