"""Stages trained one at a time and side by side; the models a run ends with; runs of earlier versions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from activault.store import Store
from activault.store.errors import ConfigError, RunError
from activault.train.finished import load_run
from activault.train.recipe import TrainRecipe
from activault.train.runs import RunSummary, train
from activault.train.stages import StageProgress

MakeRecipe = Callable[..., TrainRecipe]
RunTiny = Callable[..., RunSummary]
WATCHED = {"validate_every": 3, "ema_decay": 0.9}


def start(
    out: Path, store: Store, recipe: TrainRecipe, stage: str | None = None, progress: Any = None
) -> RunSummary:
    return train(recipe, out, store=store, cuts=(2,), stage=stage, progress=progress)


def same_files(one: Path, other: Path, *names: str) -> bool:
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in names)


def test_stages_one_by_one_in_any_order_make_the_same_run(
    store: Store, tmp_path: Path, recipe: MakeRecipe
) -> None:
    start(tmp_path / "whole", store, recipe())
    made = [start(tmp_path / "parts", store, recipe(), f"phase_{number}") for number in (2, 1)]
    assert [[stage.name for stage in each.stages] for each in made] == [["phase_2"], ["phase_1"]]
    assert not any(each.finished for each in made)
    assert start(tmp_path / "parts", store, recipe(), "closed_loop").finished
    assert same_files(tmp_path / "whole", tmp_path / "parts", "model.safetensors", "seal.json", "run.json")


def test_a_run_takes_up_phases_that_were_trained_apart(
    store: Store, tmp_path: Path, recipe: MakeRecipe
) -> None:
    start(tmp_path / "parts", store, recipe(), "phase_2")
    told: list[StageProgress] = []
    summary = start(tmp_path / "parts", store, recipe(), progress=told.append)
    assert [state.step for state in told if state.stage == "phase_2"] == [6]
    start(tmp_path / "whole", store, recipe())
    assert summary.finished
    assert same_files(tmp_path / "whole", tmp_path / "parts", "model.safetensors")


def test_two_stages_train_in_one_folder_at_once(store: Store, tmp_path: Path, recipe: MakeRecipe) -> None:
    def beside(state: StageProgress) -> None:
        if state.step == 3:
            start(tmp_path / "run", store, recipe(), "phase_2")
            with pytest.raises(RunError, match=r"another one is at work in .*phase_1"):
                start(tmp_path / "run", store, recipe(), "phase_1")

    start(tmp_path / "run", store, recipe(), "phase_1", beside)
    assert start(tmp_path / "run", store, recipe(), "closed_loop").finished


def test_the_closed_loop_waits_for_its_phases(store: Store, tmp_path: Path, recipe: MakeRecipe) -> None:
    start(tmp_path / "run", store, recipe(), "phase_1")
    with pytest.raises(RunError, match=r"phase_2 is at step 0 of 6: train it first, by --stage phase_2"):
        start(tmp_path / "run", store, recipe(), "closed_loop")
    with pytest.raises(ConfigError, match=r"one of the recipe's \(phase_1, phase_2, closed_loop\); got 'x'"):
        start(tmp_path / "run", store, recipe(), "x")


def test_phases_alone_make_a_model_when_the_last_is_finished(
    store: Store, tmp_path: Path, recipe: MakeRecipe
) -> None:
    given = recipe(stage1=WATCHED, stage2={"steps": 0}, validation=0.3)
    start(tmp_path / "run", store, given, "phase_2")
    assert start(tmp_path / "run", store, given, "phase_1").finished
    for ema, prefix in ((False, "model"), (True, "ema")):
        model = load_run(tmp_path / "run", ema=ema).model
        for number, block in enumerate(model.blocks):
            saved = load_file(tmp_path / "run" / f"phase_{number + 1}" / "step_000000006.safetensors")
            for name, value in block.named_parameters():
                assert torch.equal(value, saved[f"{prefix}.{name}"])


def test_last_and_best_weights_and_their_averages_can_be_loaded(
    store: Store, tmp_path: Path, recipe: MakeRecipe
) -> None:
    given = recipe(stage2={**WATCHED, "validate_every": 1}, validation=0.3)
    start(tmp_path / "run", store, given)
    folder = tmp_path / "run" / "closed_loop"
    files = {
        "last": folder / "step_000000006.safetensors",
        "best": next(folder.glob("best_*.safetensors")),
    }
    for which, file in files.items():
        for ema, prefix in ((False, "model"), (True, "ema")):
            model = load_run(tmp_path / "run", which, ema=ema).model  # type: ignore[arg-type]
            saved = load_file(file)
            assert all(torch.equal(v, saved[f"{prefix}.{n}"]) for n, v in model.state_dict().items())


def test_weights_that_a_run_has_not_are_told_with_the_key_that_makes_them(
    store: Store, tmp_path: Path, run: RunTiny
) -> None:
    run(tmp_path / "run", store)
    with pytest.raises(RunError, match=r"has no model_best\.safetensors; .* sets validate_every: train one"):
        load_run(tmp_path / "run", "best")
    with pytest.raises(RunError, match=r"has no model_best_ema.* sets validate_every and ema_decay"):
        load_run(tmp_path / "run", "best", ema=True)


def test_held_out_rows_are_never_learned_from(
    store: Store, tmp_path: Path, recipe: MakeRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    from activault.train import feeding
    from activault.train.validation import hold_out

    asked: list[set[int]] = []
    whole = feeding.ActivationLoader

    def spy(*args: Any, **options: Any) -> Any:
        asked.append(set(options["rows"].tolist()))
        return whole(*args, **options)

    monkeypatch.setattr(feeding, "ActivationLoader", spy)
    start(tmp_path / "run", store, recipe(validation=0.3))
    train_rows = store.valid_rows[store.valid_rows % 4 != 3]
    _, held = hold_out(store, train_rows, 0.3)
    assert asked == [set(train_rows.tolist()) - set(held.tolist())] * 3


def test_a_run_of_the_first_version_goes_on(store: Store, tmp_path: Path, recipe: MakeRecipe) -> None:
    """Its run.json knows no later key; the hash in its checkpoints is that of a recipe that says none."""
    start(tmp_path / "run", store, recipe(), "phase_1")
    path = tmp_path / "run" / "run.json"
    record = json.loads(path.read_text())
    first = recipe().identity()
    assert "noise" not in first["stage1"]
    record["recipe"] = {"store": "s", **first}
    record["model"] = {key: record["model"][key] for key in MODEL_KEYS}
    path.write_text(json.dumps(record))
    told: list[StageProgress] = []
    assert start(tmp_path / "run", store, recipe(), progress=told.append).finished
    assert [state.step for state in told if state.stage == "phase_1"] == [6]
    with pytest.raises(RunError, match=r"has recipe\.stage1\.noise = None and this one 0\.1"):
        start(tmp_path / "run", store, recipe(stage1={"noise": 0.1}))


MODEL_KEYS = ("mlp", "depth", "layer_scale", "qkv_bias", "eps", "dim", "num_heads", "num_layers", "cuts")
