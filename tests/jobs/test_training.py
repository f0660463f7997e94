"""`activault train`: one stage at a time, who watches, the live view."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from activault.jobs import console, live, run_training
from activault.jobs.live import Pace, training_view
from activault.jobs.training import chosen_phases
from activault.store import RunError, open_store
from activault.train import StageProgress, load_recipe

Command = Callable[..., Any]


def state(step: int, wait: float = 0.0, **changes: Any) -> StageProgress:
    given = {"stage": "closed_loop", "steps": 100, "loss": 0.125, "validation": 0.9876, **changes}
    return StageProgress(step=step, wait_seconds=wait, **given)


def test_stages_are_trained_by_name(activault: Command, recipe: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "run", "--device", "cpu", "--json")
    assert activault("train", recipe, *out, "--stage", "phase_2").json["finished"] is False
    refused = activault("train", recipe, *out, "--stage", "closed_loop")
    assert refused.status == 1
    assert "phase_1 is at step 0 of 4: train it first, by --stage phase_1" in refused.error_line
    unknown = activault("train", recipe, *out, "--stage", "phase_9")
    assert unknown.status == 2
    assert "(phase_1, phase_2, phase_3, closed_loop); got 'phase_9'" in unknown.error_line
    assert activault("train", recipe, *out).json["finished"] is True


@pytest.mark.parametrize(
    ("phases", "reason"),
    [
        ("cuts=[2, 40]", r"cuts rise within 1-5; got \[2, 40\]"),
        ("cuts=[4, 2]", r"cuts rise within 1-5; got \[4, 2\]"),
        ("groups=[[1, 2], [4, 5, 6]]", "3"),
    ],
)
def test_phases_of_other_layers_are_told_before_a_teacher_is_loaded(
    activault: Command,
    recipe: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    phases: str,
    reason: str,
) -> None:
    monkeypatch.setattr(run_training, "teacher_of", None)  # called, it would end the test
    text = recipe.read_text()
    (tmp_path / "r.toml").write_text(text.replace("cuts = [2, 4]\n", "") if "groups" in phases else text)
    answer = activault("train", tmp_path / "r.toml", "--out", tmp_path / "run", "--set", phases)
    assert answer.status == 2
    assert re.search(f"the recipe's phases do not fit the 6 blocks of .*: .*{reason}", answer.error_line)


@pytest.mark.parametrize("model", [{"cuts": "ab"}, {"cuts": None}, {"cuts": [], "groups": [1]}])
def test_a_record_without_phases_is_told(store: Path, recipe: Path, tmp_path: Path, model: Any) -> None:
    found = load_recipe(recipe).model_copy(update={"cuts": None, "num_phases": 3})
    (tmp_path / "run.json").write_text(json.dumps({"version": 1, "model": model}))
    with pytest.raises(RunError, match=r"a run's phases are layers; .*run\.json has cuts .*: restore it"):
        chosen_phases(found, open_store(store), tmp_path, quiet=True)


def test_tensorboard_watches_unless_told_otherwise(activault: Command, recipe: Path, tmp_path: Path) -> None:
    for name, flags in (("seen", ()), ("unseen", ("--no-tensorboard",))):
        assert activault("train", recipe, "--out", tmp_path / name, "--device", "cpu", *flags).status == 0
    assert len(list((tmp_path / "seen" / "tensorboard").rglob("events.out.tfevents.*"))) == 4
    assert not (tmp_path / "unseen" / "tensorboard").exists()
    assert (tmp_path / "unseen" / "metrics.parquet").exists()


def test_pace_is_that_of_the_last_moments() -> None:
    now = [0.0]
    pace = Pace(clock=lambda: now[0])
    pace.take(state(10))
    assert pace.step_seconds is None
    for step in range(11, 21):
        now[0] += 0.06
        pace.take(state(step, wait=0.006 * (step - 10)))
    assert pace.step_seconds == pytest.approx(0.06)
    assert pace.wait_share == pytest.approx(0.1)
    spoken = pace.spoken(state(20), total=120)
    assert spoken.startswith(
        "closed_loop  loss 0.125  R2 0.9876  60.0 ms a step  waiting 10.0%  6.0 s left  "
    )
    assert spoken.endswith("B")


def test_a_stage_begins_its_pace_anew() -> None:
    now = [0.0]
    pace = Pace(clock=lambda: now[0])
    pace.take(state(0, stage="phase_1"))
    now[0] = 50.0
    pace.take(state(0, stage="phase_2"))
    assert pace.step_seconds is None
    assert pace.steps == 0


def test_the_view_moves_on_a_terminal_and_is_quiet_elsewhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from rich.console import Console

    shown = io.StringIO()
    monkeypatch.setattr(console, "err", Console(file=shown, force_terminal=True, width=160), raising=False)
    monkeypatch.setattr(live.sys, "stderr", type("Terminal", (), {"isatty": lambda self: True})())
    with training_view(100) as report:
        for step in (0, 50, 100):
            report(state(step))
    assert "closed_loop" in shown.getvalue()
    assert "loss 0.125" in shown.getvalue()
    monkeypatch.undo()
    with training_view(100) as report:
        report(state(100))
    assert capsys.readouterr().err.startswith("train: 100 steps in ")
    with training_view(100, quiet=True) as report:
        report(state(100))
    assert capsys.readouterr().err == ""
