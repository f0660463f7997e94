"""Runs: made, killed, taken up again, read."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from fork_server import forked
from killed_runs import train_until
from safetensors.torch import load_file
from timm.models.vision_transformer import Block
from torch import nn

from activault.store import Store
from activault.store.errors import RunError
from activault.train.finished import load_run
from activault.train.recipe import TrainRecipe
from activault.train.repeated import repeated_blocks
from activault.train.run_setup import cuda_devices
from activault.train.runs import RunSummary, train
from activault.train.stages import StageProgress

MakeRecipe = Callable[..., TrainRecipe]
RunTiny = Callable[..., RunSummary]


def logged(stage: Path) -> list[tuple[int, float]]:
    entries = [json.loads(line) for line in (stage / "metrics.jsonl").read_text().splitlines()]
    return [(entry["step"], entry["loss"]) for entry in entries]


def teacher_blocks() -> list[nn.Module]:
    torch.manual_seed(2)
    norm = partial(nn.LayerNorm, eps=1e-6)
    return [Block(16, 2, qkv_bias=True, init_values=0.3, norm_layer=norm).eval() for _ in range(4)]


def test_run_goes_through_its_stages_and_can_be_loaded(
    store: Store, tmp_path: Path, run: RunTiny, recipe: MakeRecipe
) -> None:
    told: list[StageProgress] = []
    summary = run(tmp_path / "run", store, progress=told.append)
    assert [stage.name for stage in summary.stages] == ["phase_1", "phase_2", "closed_loop"]
    assert [(state.stage, state.step) for state in told] == [
        (stage, step) for stage in ("phase_1", "phase_2", "closed_loop") for step in range(7)
    ]
    loaded = load_run(tmp_path / "run")
    assert (loaded.cuts, loaded.store_digest, loaded.layout) == ((2,), store.digest, store.layout)
    assert loaded.teacher_sha256 == store.manifest.teacher.weights_sha256
    assert loaded.recipe == recipe()
    assert not loaded.model.training
    assert loaded.model.num_parameters == summary.num_parameters
    last = load_file(tmp_path / "run" / "closed_loop" / "step_000000006.safetensors")
    for name, tensor in loaded.model.state_dict().items():
        assert torch.equal(tensor, last[f"model.{name}"])


def test_second_start_trains_nothing_and_says_the_same(store: Store, tmp_path: Path, run: RunTiny) -> None:
    """Defect of the reference: a second start begins anew over what the first one made."""
    first = run(tmp_path / "run", store)
    before = (tmp_path / "run" / "model.safetensors").read_bytes()
    told: list[StageProgress] = []
    second = run(tmp_path / "run", store, progress=told.append)
    assert [(state.stage, state.step) for state in told] == [
        ("phase_1", 6),
        ("phase_2", 6),
        ("closed_loop", 6),
    ]
    assert [stage.loss for stage in second.stages] == [stage.loss for stage in first.stages]
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == before


def test_same_recipe_gives_the_same_run_whatever_was_drawn_before(
    store: Store, tmp_path: Path, run: RunTiny
) -> None:
    run(tmp_path / "a", store)
    torch.manual_seed(1234)
    state = torch.get_rng_state()
    run(tmp_path / "b", store)
    assert torch.equal(torch.get_rng_state(), state)
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == (
        tmp_path / "b" / "model.safetensors"
    ).read_bytes()
    run(tmp_path / "c", store, seed=1)
    assert (tmp_path / "c" / "model.safetensors").read_bytes() != (
        tmp_path / "a" / "model.safetensors"
    ).read_bytes()


def test_killed_run_goes_on_and_ends_the_same(
    store: Store, tmp_path: Path, run: RunTiny, recipe: MakeRecipe
) -> None:
    """SIGKILL in both stages, in a process of its own, then to the end.

    Defect of the reference: nothing of it can be resumed.
    """
    given = recipe().model_dump(mode="json")

    def start_and_die(out: Path, *place: object) -> None:
        process = forked().Process(target=train_until, args=(Path(store.path), out, given, *place))
        process.start()
        process.join(250)
        assert process.exitcode == -signal.SIGKILL

    run(tmp_path / "whole", store)
    for place in (("phase_2", 3), ("closed_loop", 5)):
        start_and_die(tmp_path / "cut", *place)
        with pytest.raises(RunError, match="holds a run that is not finished; start `activault train` again"):
            load_run(tmp_path / "cut")
    told: list[StageProgress] = []
    run(tmp_path / "cut", store, progress=told.append)
    assert [(state.stage, state.step) for state in told] == [
        ("phase_1", 6),
        ("phase_2", 6),
        *(("closed_loop", step) for step in (4, 5, 6)),
    ], "finished stages are told as finished, and skipped"
    for name in ("model.safetensors", "closed_loop/step_000000006.safetensors"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    for stage in ("phase_1", "phase_2", "closed_loop"):
        assert logged(tmp_path / "cut" / stage) == logged(tmp_path / "whole" / stage)


def test_stages_of_no_steps_leave_the_teachers_blocks(
    store: Store, tmp_path: Path, recipe: MakeRecipe
) -> None:
    blocks = teacher_blocks()
    none = {"steps": 0}
    given = recipe(stage1=none, stage2=none, init="teacher-last", model={"depth": "none"})
    summary = train(given, tmp_path / "run", store=store, cuts=(2,), teacher_blocks=blocks, device="cpu")
    assert summary.stages == ()
    model = load_run(tmp_path / "run").model
    tokens = torch.from_numpy(store.read(slice(0, 3), (0,))[:, 0])
    torch.testing.assert_close(
        model(tokens), repeated_blocks(model.config, blocks, "last")(tokens), rtol=1e-4, atol=1e-4
    )


def test_only_the_training_split_is_trained_on(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: RunTiny
) -> None:
    from activault.train import feeding

    asked = []
    whole = feeding.ActivationLoader

    def spy(*args: Any, **options: Any) -> Any:
        asked.append((set(options["rows"].tolist()), list(options["layers"]), options["seed"]))
        return whole(*args, **options)

    monkeypatch.setattr(feeding, "ActivationLoader", spy)
    run(tmp_path / "run", store)
    train_rows = {row for row in range(40) if row % 4 != 3}
    assert [rows for rows, _, _ in asked] == [train_rows] * 3
    assert [layers for _, layers, _ in asked] == [[0, 1, 2], [2, 3, 4], [0, 1, 2, 3, 4]]
    assert len({seed for _, _, seed in asked}) == 3


def test_device_is_one_or_its_name(store: Store, tmp_path: Path, recipe: MakeRecipe) -> None:
    for number, device in enumerate(("cpu", torch.device("cpu"))):
        train(recipe(), tmp_path / str(number), store=store, cuts=(2,), device=device)
    assert (tmp_path / "0" / "model.safetensors").read_bytes() == (
        tmp_path / "1" / "model.safetensors"
    ).read_bytes()


def test_only_the_chosen_devices_random_state_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    for name, expected in (("cpu", []), ("cuda:1", [1]), ("cuda", [2])):
        assert cuda_devices(torch.device(name)) == expected
