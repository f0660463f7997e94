"""Runs: made, killed, taken up again, refused, read."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from timm.models.vision_transformer import Block
from torch import nn

from activault.store import Store
from activault.store.errors import ConfigError, IncompleteStoreError, RunError
from activault.train.recipe import TrainRecipe, parse_recipe
from activault.train.repeated import repeated_blocks
from activault.train.runs import RunSummary, cuda_devices, load_run, train
from activault.train.stages import StageProgress

STAGE = {
    "steps": 6,
    "batch_size": 8,
    "warmup_steps": 1,
    "learning_rate": 1e-2,
    "checkpoint_every": 2,
    "log_every": 2,
}
MakeStore = Callable[..., Store]


def recipe(**changes: Any) -> TrainRecipe:
    return parse_recipe({"store": "s", "cuts": [2], "stage1": STAGE, "stage2": STAGE, **changes})


def run(
    out: Path, against: Store, phases: tuple[int, ...] = (2,), /, *, progress: Any = None, **changes: Any
) -> RunSummary:
    return train(recipe(**changes), out, store=against, cuts=phases, device="cpu", progress=progress)


def logged(stage: Path) -> list[tuple[int, float]]:
    entries = [json.loads(line) for line in (stage / "metrics.jsonl").read_text().splitlines()]
    return [(entry["step"], entry["loss"]) for entry in entries]


def teacher_blocks() -> list[nn.Module]:
    torch.manual_seed(2)
    norm = partial(nn.LayerNorm, eps=1e-6)
    return [Block(16, 2, qkv_bias=True, init_values=0.3, norm_layer=norm).eval() for _ in range(4)]


def test_run_goes_through_its_stages_and_can_be_loaded(store: Store, tmp_path: Path) -> None:
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


def test_second_start_trains_nothing_and_says_the_same(store: Store, tmp_path: Path) -> None:
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


def test_same_recipe_gives_the_same_run_whatever_was_drawn_before(store: Store, tmp_path: Path) -> None:
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


def test_killed_run_goes_on_and_ends_the_same(store: Store, tmp_path: Path) -> None:
    """SIGKILL in both stages, in a process of its own, then to the end."""
    script = Path(__file__).with_name("train_until_killed.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def start_and_die(out: Path, *place: str) -> None:
        given = [str(store.path), str(out), recipe().model_dump_json(), *place]
        died = subprocess.run([sys.executable, str(script), *given], env=environment, check=False)
        assert died.returncode == -signal.SIGKILL

    run(tmp_path / "whole", store)
    for place in (("phase_2", "3"), ("closed_loop", "5")):
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


@pytest.mark.parametrize(
    ("changes", "cuts", "message"),
    [
        ({"seed": 5}, (2,), r"has recipe\.seed = 0 and this one 5; choose another folder"),
        ({"stage2": {**STAGE, "clip": 3.0}}, (2,), r"has recipe\.stage2\.clip = 1\.0 and this one 3\.0"),
        ({"cuts": [1]}, (1,), r"has recipe\.cuts = \[2\] and this one \[1\]"),
        (
            {"stage1": {**STAGE, "token_weights": {"cls": 1, "registers": 0, "patches": 1}}},
            (2,),
            r"stage1\.token_weights",
        ),
    ],
)
def test_folder_of_another_recipe_is_refused(
    store: Store, tmp_path: Path, changes: dict[str, Any], cuts: tuple[int, ...], message: str
) -> None:
    run(tmp_path / "run", store)
    before = (tmp_path / "run" / "run.json").read_bytes()
    with pytest.raises(RunError, match=message):
        run(tmp_path / "run", store, cuts, **changes)
    assert (tmp_path / "run" / "run.json").read_bytes() == before


def test_found_phases_are_part_of_the_run(store: Store, tmp_path: Path) -> None:
    found = {"cuts": None, "num_phases": 2}
    run(tmp_path / "run", store, (2,), **found)
    with pytest.raises(RunError, match=r"has model\.cuts = \[2\] and this one \[3\]"):
        run(tmp_path / "run", store, (3,), **found)


def test_other_store_is_refused_and_a_moved_one_is_not(
    store: Store, make_store: MakeStore, tmp_path: Path
) -> None:
    run(tmp_path / "run", store)
    run(tmp_path / "run", store, store="moved/elsewhere.zarr")
    other = make_store("other.zarr", num_rows=24)
    with pytest.raises(RunError, match=rf"has store_digest = '{store.digest}' and this one '{other.digest}'"):
        run(tmp_path / "run", other)


def test_folder_with_something_else_is_refused(store: Store, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("years of work")
    with pytest.raises(RunError, match=r"run exists and is no run; choose another folder"):
        run(tmp_path / "run", store)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["thesis.tex"]


def test_foreign_and_damaged_folders_are_not_loaded(store: Store, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"is no run: it has no run\.json"):
        load_run(tmp_path)
    run(tmp_path / "run", store)
    weights = tmp_path / "run" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(RunError, match="does not hold a run that this program can read"):
        load_run(tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text('{"version": 7}')
    with pytest.raises(RunError, match=r"run\.json is not of version 1"):
        load_run(tmp_path / "run")


def test_stages_of_no_steps_leave_the_teachers_blocks(store: Store, tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("options", "changes", "cuts", "error", "message"),
    [
        ({"layers": (0, 1, 2, 4)}, {}, (2,), ConfigError, r"needs all layers and the store lacks \[3\]"),
        (
            {"kinds": ["cls", "patches"]},
            {},
            (2,),
            ConfigError,
            r"all token kinds and the store lacks registers",
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
        ({"keys": [f"test/{n}.png" for n in range(40)]}, {}, (2,), ConfigError, r"no rows in split 'train'"),
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
) -> None:
    store = make_store("s2.zarr", **options)
    with pytest.raises(error, match=message):
        run(tmp_path / "run", store, cuts, **changes)
    assert not (tmp_path / "run").exists()


def test_only_the_training_split_is_trained_on(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from activault.train import trainer

    asked = []
    whole = trainer.ActivationLoader

    def spy(*args: Any, **options: Any) -> Any:
        asked.append((set(options["rows"].tolist()), list(options["layers"]), options["seed"]))
        return whole(*args, **options)

    monkeypatch.setattr(trainer, "ActivationLoader", spy)
    run(tmp_path / "run", store)
    train_rows = {row for row in range(40) if row % 4 != 3}
    assert [rows for rows, _, _ in asked] == [train_rows] * 3
    assert [layers for _, layers, _ in asked] == [[0, 1, 2], [2, 3, 4], [0, 1, 2, 3, 4]]
    assert len({seed for _, _, seed in asked}) == 3


def test_two_processes_do_not_train_in_one_folder(store: Store, tmp_path: Path) -> None:
    def intrude(state: StageProgress) -> None:
        with pytest.raises(
            RunError, match=r"another one is at work in .*run; wait for it or choose another folder"
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
    store: Store, tmp_path: Path, in_the_way: str, named: str
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
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parent: str
) -> None:
    if parent == "file":
        (tmp_path / "file").write_text("")
    else:

        def refuse(*_: object, **__: object) -> None:
            raise OSError(errno.EROFS, "Read-only file system")

        monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(RunError, match=r"run cannot be made: .*; choose another folder"):
        run(tmp_path / parent / "run", store)


def test_device_is_one_or_its_name(store: Store, tmp_path: Path) -> None:
    for number, device in enumerate(("cpu", torch.device("cpu"))):
        train(recipe(), tmp_path / str(number), store=store, cuts=(2,), device=device)
    assert (tmp_path / "0" / "model.safetensors").read_bytes() == (
        tmp_path / "1" / "model.safetensors"
    ).read_bytes()


def test_only_the_chosen_devices_random_state_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    for name, expected in (("cpu", []), ("cuda:1", [1]), ("cuda", [2])):
        assert cuda_devices(torch.device(name)) == expected
