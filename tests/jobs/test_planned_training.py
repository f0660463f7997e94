"""`train --dry-run`: what a recipe would do, with its store and without."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from activault.jobs import training
from activault.jobs.planned_training import plan_training
from activault.train import load_run

Command = Callable[..., Any]
RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.toml"))


def test_it_tells_steps_rows_cost_and_memory(
    activault: Command, recipe: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = activault("train", recipe, "--dry-run", "--json").json
    assert told["dry_run"] is True
    assert (told["num_rows"], told["num_held_out"], told["no_store"]) == (16, 0, None)
    assert [(stage["name"], stage["times"], stage["epochs"]) for stage in told["stages"]] == [
        ("stage1", 3, 4 * 4 / 16),
        ("stage2", 1, 6 * 4 / 16),
    ]
    parameters = load_run(run).model.num_parameters
    assert told["cost"]["surrogate"]["parameters"] == parameters
    assert told["memory"]["weights"] == 4 * 4 * parameters
    assert told["memory"]["layers"] == 4 * 4 * 7 * 5 * 64, "rows, layers, tokens, dim in float32"
    assert list(tmp_path.iterdir()) == []


def test_memory_follows_the_batch_and_what_is_computed_again(recipe: Path) -> None:
    def activations(*overrides: str) -> int:
        memory = plan_training(recipe, overrides).memory
        assert memory is not None
        return memory.activations

    plain = activations()
    assert activations("stage2.batch_size=8") == 2 * plain
    assert activations("stage2.batch_size=8", "stage2.accumulate=2") == plain
    assert activations("stage2.gradient_checkpointing=1") < plain / 2
    # One row keeps at least what each of 6 blocks' four linear maps start from: 64, 64, 64 and 256 wide.
    assert plain > 4 * 4 * 6 * 5 * (64 + 64 + 64 + 256)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_that_comes_with_the_project_can_be_looked_at(
    activault: Command, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its store too: what the recipe says, and what is missing."""
    monkeypatch.chdir(tmp_path)
    answer = activault("train", path, "--dry-run")
    assert answer.status == 0
    assert "steps of" in answer.out
    assert "cannot be opened, so that rows, cost and memory are not known" in answer.out


def test_lines_for_people(activault: Command, recipe: Path) -> None:
    out = activault("train", recipe, "--dry-run", "--set", "stage1.steps=0").out
    assert "stage1" not in out
    assert "6 steps of 4 rows (1.5 epochs)" in out
    assert "16 rows to learn from, 0 held out" in out
    assert "a closed-loop step takes about" in out
    assert "parameters" in out


def test_a_batch_of_more_rows_than_there_are_is_told(activault: Command, recipe: Path) -> None:
    flags = ("--dry-run", "--set", "stage1.batch_size=100", "stage2.batch_size=100")
    assert "6 steps of all 16 rows, which make no batch of 100 (6.0 epochs)" in " ".join(
        activault("train", recipe, *flags).out.split()
    )
    told = activault("train", recipe, *flags, "--json").json
    assert [stage["epochs"] for stage in told["stages"]] == [4, 6]
    whole = activault("train", recipe, "--dry-run", "--json", "--set", "stage2.batch_size=16").json
    assert told["memory"] == whole["memory"]


@pytest.mark.parametrize(
    ("phases", "reason"),
    [
        (["cuts=[4, 2]"], r"cuts rise within 1-5; got \[4, 2\]"),
        (["num_phases=4"], r"num_phases is 1 to 3 with cost = 'ncut' and control = 'none'; got 4"),
        (["num_phases=7", "cost=sum"], r"num_phases is 1 to 6 with cost = 'sum' .*; got 7"),
        (["num_phases=7", "control=random"], r"num_phases is 1 to 6 with .* control = 'random'; got 7"),
        (["num_phases=1", "control=shuffled"], r"num_phases is 2 to 3 with .*; got 1"),
        (["num_phases=6", "control=shuffled", "cost=sum"], r"num_phases is 2 to 5 with .*; got 6"),
    ],
)
def test_phases_that_do_not_fit_are_refused_before_anything_is_read(
    activault: Command,
    recipe: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    phases: list[str],
    reason: str,
) -> None:
    monkeypatch.setattr(training, "training_similarity", None)  # called, it would end the test
    text = recipe.read_text()
    given = tmp_path / "r.toml"
    given.write_text(text if phases[0].startswith("cuts") else text.replace("cuts = [2, 4]\n", ""))
    for way in (("--dry-run",), ("--out", tmp_path / "run", "--device", "cpu")):
        refused = activault("train", given, *way, "--set", *phases)
        assert refused.status == 2
        assert re.search(f"the recipe's phases do not fit the 6 blocks of .*: {reason}", refused.error_line)


def test_a_run_without_a_folder_is_refused(activault: Command, recipe: Path) -> None:
    refused = activault("train", recipe)
    assert refused.status == 2
    assert "a run has a folder of its own; got none: give one with --out, or --dry-run" in refused.error_line
