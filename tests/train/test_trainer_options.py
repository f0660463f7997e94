"""The loop with everything switched on: cut and resumed bit for bit, checkpoints kept, the best one found."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from activault.store import Store
from activault.store.errors import ConfigError, RunError
from activault.train.closed_loop import closed_loop_stage
from activault.train.raptor import Raptor, RaptorConfig
from activault.train.stage_config import Stage1Config, Stage2Config
from activault.train.stages import Stage, StageProgress, StageResult
from activault.train.teacher_forced import phase_stages
from activault.train.trainer import run_stage

CPU = torch.device("cpu")
ALL_ON = {
    "steps": 12,
    "batch_size": 8,
    "learning_rate": 1e-2,
    "warmup_steps": 2,
    "loss": "huber",
    "noise": 0.1,
    "ema_decay": 0.9,
    "accumulate": 2,
    "horizon_start": 1,
    "horizon_growth": 0.7,
    "gradient_checkpointing": 2,
    "precision": "bfloat16",
    "keep": 2,
    "checkpoint_every": 3,
    "log_every": 4,
    "validate_every": 5,
}


class Cut(Exception):  # noqa: N818
    """Stands for whatever ends a process between two steps."""


def model_of() -> Raptor:
    torch.manual_seed(7)
    return Raptor(RaptorConfig(dim=16, num_heads=2, num_layers=4, cuts=(2,), layer_scale=0.1))


def closed_loop(store: Store, **options: Any) -> Stage:
    return closed_loop_stage(model_of(), Stage2Config(**{**ALL_ON, **options}), store, CPU)


def phase(store: Store, **options: Any) -> Stage:
    return phase_stages(model_of(), Stage1Config(**{**ALL_ON, **options}), store, CPU)[1]


def run(
    stage: Stage, folder: Path, store: Store, progress: Callable[[StageProgress], None] | None = None
) -> StageResult:
    return run_stage(
        stage,
        folder,
        store=store,
        rows=np.arange(30),
        held_out=np.arange(30, 40),
        seed=1,
        identity="i",
        device=CPU,
        progress=progress,
    )


def cut_at(step: int) -> Callable[[StageProgress], None]:
    def progress(state: StageProgress) -> None:
        if state.step == step:
            raise Cut

    return progress


def lines(folder: Path) -> list[dict[str, Any]]:
    """Without the times."""
    entries = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in entry.items() if "seconds" not in key} for entry in entries]


@pytest.mark.parametrize("make", [closed_loop, phase])
def test_cut_anywhere_and_resumed_ends_the_same(
    store: Store, tmp_path: Path, make: Callable[..., Stage]
) -> None:
    whole = run(make(store), tmp_path / "whole", store)
    for cut in (1, 7, 11):
        with pytest.raises(Cut):
            run(make(store), tmp_path / "cut", store, cut_at(cut))
    resumed = run(make(store), tmp_path / "cut", store)
    assert (resumed.loss, resumed.validation, resumed.best_step) == (
        whole.loss,
        whole.validation,
        whole.best_step,
    )
    assert lines(tmp_path / "cut") == lines(tmp_path / "whole")
    names = sorted(path.name for path in (tmp_path / "whole").iterdir())
    assert sorted(path.name for path in (tmp_path / "cut").iterdir()) == names
    for name in names:
        if name != "metrics.jsonl":
            assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_so_many_checkpoints_are_kept_and_the_best_one_beside_them(store: Store, tmp_path: Path) -> None:
    result = run(closed_loop(store), tmp_path / "s", store)
    assert result.best_step in (5, 10, 12)
    assert sorted(path.name for path in (tmp_path / "s").iterdir()) == [
        "best.json",
        f"best_{result.best_step:09d}.safetensors",
        "checkpoint.json",
        "metrics.jsonl",
        "stage.json",
        "step_000000010.json",
        "step_000000010.safetensors",
        "step_000000012.json",
        "step_000000012.safetensors",
    ]


def test_an_older_checkpoint_can_be_gone_back_to(store: Store, tmp_path: Path) -> None:
    run(closed_loop(store), tmp_path / "s", store)
    last = tmp_path / "s" / "step_000000012.safetensors"
    whole = last.read_bytes()
    last.write_bytes(whole[:-1] + bytes([whole[-1] ^ 64]))
    with pytest.raises(RunError, match=r"copy step_000000010\.json over checkpoint\.json there to go on"):
        run(closed_loop(store), tmp_path / "s", store)
    older = tmp_path / "s" / "step_000000010.json"
    (tmp_path / "s" / "checkpoint.json").write_bytes(older.read_bytes())
    run(closed_loop(store), tmp_path / "s", store)
    assert last.read_bytes() == whole


def test_the_best_checkpoint_is_the_best_validation(store: Store, tmp_path: Path) -> None:
    """At a learning rate that ruins the weights, it is not the last one."""
    stage = closed_loop(store, steps=8, learning_rate=3.0, clip=1e9, validate_every=1, ema_decay=0, noise=0)
    with pytest.warns(RuntimeWarning, match="stage closed_loop ended with loss .* it has diverged"):
        result = run(stage, tmp_path / "s", store)
    values = {
        line["step"]: line["validation"]["mean_r2"] for line in lines(tmp_path / "s") if "validation" in line
    }
    best = json.loads((tmp_path / "s" / "best.json").read_text())
    assert result.validation == values[8] < max(values.values())
    assert best["value"] == max(values.values()) == values[best["step"]]
    assert result.best_step == best["step"] < 8
    names = load_file(tmp_path / "s" / best["tensors"]).keys()
    assert names == {f"model.{name}" for name in stage.module.state_dict()}


def test_validation_measures_the_average_where_there_is_one(store: Store, tmp_path: Path) -> None:
    from activault.train.validation import validate

    stage = closed_loop(store, validate_every=12)
    result = run(stage, tmp_path / "s", store)
    tensors = load_file(tmp_path / "s" / "step_000000012.safetensors")
    own = validate(stage, store, np.arange(30, 40), device=CPU).mean_r2
    stage.module.load_state_dict(
        {name.removeprefix("ema."): value for name, value in tensors.items() if name.startswith("ema.")}
    )
    assert result.validation == validate(stage, store, np.arange(30, 40), device=CPU).mean_r2 != own


def test_the_complete_config_of_a_stage_is_recorded_and_hashed(store: Store, tmp_path: Path) -> None:
    stage = phase(store)
    run(stage, tmp_path / "s", store)
    record = json.loads((tmp_path / "s" / "stage.json").read_text())
    sha256 = record.pop("sha256")
    assert hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest() == sha256
    assert Stage1Config.model_validate(record["config"]) == stage.config
    assert (record["layers"], record["targets"], record["num_rows"]) == ([2, 3, 4], [3, 4], 30)


def test_nothing_held_out_is_told_before_the_first_step(store: Store, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"stage closed_loop validates every 5 steps on no rows; set validation to"
    ):
        run_stage(
            closed_loop(store),
            tmp_path / "s",
            store=store,
            rows=np.arange(30),
            seed=1,
            identity="i",
            device=CPU,
        )


def test_a_phase_with_holes_learns_each_stretch_from_the_teacher(store: Store) -> None:
    torch.manual_seed(3)
    config = RaptorConfig(dim=16, num_heads=2, num_layers=4, groups=((1, 3, 4), (2,)), layer_scale=0.1)
    model = Raptor(config)
    plain = Stage1Config(steps=4, warmup_steps=0, teacher_forcing=0)
    first = phase_stages(model, plain, store, CPU)[0]
    assert (first.layers, first.targets) == ((0, 1, 2, 3, 4), (1, 3, 4))
    tokens = torch.from_numpy(store.read(slice(0, 6), first.layers))
    made = torch.cat([model(tokens[:, 0], 0, 1), model(tokens[:, 2], 2, 4)], dim=1)
    torch.testing.assert_close(first.rollout(tokens), made)
    torch.testing.assert_close(
        first.objective(tokens, 3, None), (made - tokens[:, [1, 3, 4]]).square().mean()
    )
    assert replace(first, name="again").module is model.blocks[0]
