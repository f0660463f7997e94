"""The table of a run, TensorBoard's files, W&B's: every line once, whatever was cut."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from activault.store import Store
from activault.store.errors import MissingExtraError
from activault.train.recipe import TrainRecipe
from activault.train.runs import train
from activault.train.stages import StageProgress
from activault.train.wandb_watcher import WandbWatcher
from activault.train.watching import TensorBoard, Watcher, scalars_of

MakeRecipe = Callable[..., TrainRecipe]
VALIDATED: dict[str, Any] = {"stage2": {"validate_every": 3}, "validation": 0.3}


class Cut(Exception):  # noqa: N818
    """Stands for whatever ends a process between two steps."""


def cut_at(stage: str, step: int) -> Callable[[StageProgress], None]:
    def progress(state: StageProgress) -> None:
        if (state.stage, state.step) == (stage, step):
            raise Cut

    return progress


def rows_of(run: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(run / "metrics.parquet").to_pylist()
    return rows


def test_the_table_has_every_stage_and_figure(store: Store, tmp_path: Path, recipe: MakeRecipe) -> None:
    train(recipe(**VALIDATED), tmp_path / "run", store=store, cuts=(2,))
    rows = rows_of(tmp_path / "run")
    losses = [(row["stage"], row["step"]) for row in rows if row["metric"] == "loss"]
    stages = ("phase_1", "phase_2", "closed_loop")
    assert losses == [(stage, step) for stage in stages for step in (2, 4, 6)]
    figures = {(row["step"], row["metric"], row["layer"], row["kind"]) for row in rows if row["kind"]}
    kinds = ("cls", "registers", "patches", "all")
    names = ("r2", "cosine", "norm_ratio", "eps", "relative_eps")
    assert figures == {
        (s, n, layer, k) for s in (3, 6) for n in names for layer in range(1, 5) for k in kinds
    }


def test_a_cut_run_has_no_step_twice(store: Store, tmp_path: Path, recipe: MakeRecipe) -> None:
    given = recipe(**{**VALIDATED, "stage2": {"validate_every": 3, "checkpoint_every": 100}})
    for step in (3, 5):
        with pytest.raises(Cut):
            train(given, tmp_path / "cut", store=store, cuts=(2,), progress=cut_at("closed_loop", step))
    assert max(row["step"] for row in rows_of(tmp_path / "cut") if row["stage"] == "closed_loop") == 4
    train(given, tmp_path / "cut", store=store, cuts=(2,))
    train(given, tmp_path / "whole", store=store, cuts=(2,))
    one, other = (
        [row for row in rows_of(tmp_path / name) if "seconds" not in row["metric"]]
        for name in ("cut", "whole")
    )
    assert one == other


def events_of(folder: Path) -> list[tuple[str, int, float]]:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    (file,) = folder.glob("events.out.tfevents.*")
    return [
        (value.tag, event.step, value.tensor.float_val[0])
        for event in EventFileLoader(str(file)).Load()
        for value in event.summary.value
    ]


def test_tensorboard_has_every_step_once_after_a_resume(
    store: Store, tmp_path: Path, recipe: MakeRecipe
) -> None:
    given = recipe(**{**VALIDATED, "stage2": {"validate_every": 3, "checkpoint_every": 100}})

    def watch(_run: str) -> Sequence[Watcher]:
        return [TensorBoard(tmp_path / "run")]

    with pytest.raises(Cut):
        train(
            given,
            tmp_path / "run",
            store=store,
            cuts=(2,),
            watchers=watch,
            progress=cut_at("closed_loop", 5),
        )
    train(given, tmp_path / "run", store=store, cuts=(2,), watchers=watch)
    events = events_of(tmp_path / "run" / "tensorboard" / "closed_loop")
    assert [step for tag, step, _ in events if tag == "loss"] == [2, 4, 6]
    assert [step for tag, step, _ in events if tag == "validation/r2/patches/layer_03"] == [3, 6]
    assert len({(tag, step) for tag, step, _ in events}) == len(events)


def test_a_missing_tensorboard_is_told_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard.writer", None)
    with pytest.raises(MissingExtraError, match="or train with --no-tensorboard"):
        TensorBoard(tmp_path)


def test_a_constant_r2_is_no_number_to_draw() -> None:
    validation = {"layers": [1, 2], "mean_r2": 0.5, "r2": {"cls": ["constant", 0.25]}}
    assert list(scalars_of({"step": 3, "loss": 1.0})) == [("loss", 1.0)]
    assert list(scalars_of({"step": 3, "validation": validation})) == [
        ("validation/mean_r2", 0.5),
        ("validation/r2/cls/layer_02", 0.25),
    ]


class FakeRun:
    """What the watcher needs of a W&B run that has steps up to `step` already."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.sent: list[tuple[int, dict[str, float]]] = []

    def log(self, values: dict[str, float], step: int) -> None:
        self.sent.append((step, values))

    def finish(self) -> None:
        self.sent.append((-1, {}))


def test_wandb_is_sent_what_it_has_not_got(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    asked: list[dict[str, Any]] = []
    run = FakeRun(step=3)

    def init(**options: Any) -> FakeRun:
        asked.append(options)
        return run

    monkeypatch.setattr(wandb, "init", init)
    watcher = WandbWatcher("surrogates", tmp_path / "k3", "hash", {"seed": 0})
    watcher.begin("phase_1", [{"step": step, "loss": 1.0 / step} for step in (1, 2, 3)])
    watcher.write("phase_1", {"step": 4, "loss": 0.25})
    watcher.begin("phase_2", [])
    watcher.close()
    assert run.sent == [(3, {"loss": 1 / 3}), (4, {"loss": 0.25}), (-1, {}), (-1, {})]
    assert [options["name"] for options in asked] == ["k3/phase_1", "k3/phase_2"]
    assert {options["group"] for options in asked} == {"k3"}
    assert len({options["id"] for options in asked}) == 2


def test_wandb_offline_keeps_a_run_a_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    (tmp_path / "k3").mkdir()
    watcher = WandbWatcher("surrogates", tmp_path / "k3", "hash", {"seed": 0})
    watcher.begin("phase_1", [{"step": 1, "loss": 0.5}])
    watcher.write("phase_1", {"step": 2, "loss": 0.25})
    watcher.close()
    assert len(list((tmp_path / "k3" / "wandb").glob("offline-run-*/*.wandb"))) == 1


def test_a_missing_wandb_is_told_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'activault\[wandb\]'"):
        WandbWatcher("surrogates", tmp_path, "hash", {})
