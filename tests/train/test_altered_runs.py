"""Runs that were altered or have lost their numbers: refused by name, in one line, never gone on with."""

from __future__ import annotations

import inspect
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from activault.store import ActivationLoader, Store
from activault.store.errors import ConfigError, RunError
from activault.train.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from activault.train.checkpoint_record import HASH
from activault.train.finished import load_run, write_models
from activault.train.metrics import evaluate_rollout
from activault.train.probes import probe
from activault.train.runs import RunSummary
from activault.train.stages import StageProgress

RunTiny = Callable[..., RunSummary]
SHORT = {"stage1": {"steps": 0}, "stage2": {"steps": 4, "warmup_steps": 0}}
ELSEWHERE = r"in another folder \(--out\), since a run's recipe is fixed"


class Cut(Exception):  # noqa: N818
    """Stands for whatever ends a process between two steps."""


@pytest.fixture(scope="module")
def cut_once(run: RunTiny, store: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was cut after 3 of its 4 steps, its checkpoint at 2."""
    out = tmp_path_factory.mktemp("cut") / "run"

    def progress(state: StageProgress) -> None:
        if state.step == 3:
            raise Cut

    with pytest.raises(Cut):
        run(out, store, progress=progress, **SHORT)
    return out


@pytest.fixture
def record_path(cut_once: Path, tmp_path: Path) -> Path:
    """The record of such a run in `tmp_path / "run"`."""
    shutil.copytree(cut_once, tmp_path / "run")
    return tmp_path / "run" / "closed_loop" / "checkpoint.json"


def alter(path: Path, change: Callable[[dict[str, Any]], object], *, hashed: bool = True) -> None:
    record = json.loads(path.read_text())
    change(record)
    if not hashed:  # as versions wrote it that had no such hash
        record.pop(HASH, None)
    path.write_text(json.dumps(record))


def test_weights_that_are_no_numbers_are_never_sealed(store: Store, tmp_path: Path, run: RunTiny) -> None:
    """The loss of the last step is that before its update, and says nothing of what it made."""
    steps = {"steps": 1, "warmup_steps": 0, "learning_rate": 1e38}
    message = (
        rf"needs finite weights; stage closed_loop after step 1 has .* lower learning_rate .*{ELSEWHERE}"
    )
    with pytest.raises(RunError, match=message):
        run(tmp_path / "run", store, stage1={"steps": 0}, stage2=steps)
    assert not (tmp_path / "run" / "model.safetensors").exists()
    assert not list((tmp_path / "run" / "closed_loop").glob("*.safetensors"))


def test_a_model_of_such_weights_is_not_written(store: Store, tmp_path: Path, run: RunTiny) -> None:
    run(tmp_path / "run", store, **SHORT)
    model = load_run(tmp_path / "run").model
    with torch.no_grad():
        model.blocks[1].norm1.weight[3] = float("inf")
    message = (
        r"model\.safetensors of .*new has 1 of \d+ tensors that are not \(blocks\.1\.norm1\.weight first\)"
    )
    with pytest.raises(RunError, match=message):
        write_models(tmp_path / "new", model, [], "i")
    assert not list(tmp_path.glob("new/*"))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_roll_out_that_is_no_number_has_no_figures(store: Store, value: float) -> None:
    def last(tokens: Tensor) -> Tensor:
        return tokens * value

    def rollout(tokens: Tensor) -> Tensor:
        layers = [tokens, tokens, tokens * value, tokens]
        return torch.stack(layers, dim=1)

    with pytest.raises(RunError, match=r"stays finite; this one has .* = (nan|inf) at layer 3 of 4: train"):
        evaluate_rollout(rollout, store, store.valid_rows[:5])
    rows = store.valid_rows
    with pytest.raises(
        RunError, match=r"finite features; those of broken are not, first in rows 0 to 9 of 40"
    ):
        probe(store, None, nn.LayerNorm(16), {"broken": last}, rows[:30], rows[30:], batch_size=10)


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "step-1": lambda record: record.update(step=1),
    "step-4": lambda record: record.update(step=4),
    "step-true": lambda record: record.update(step=True),
    "row": lambda record: record["loader"].update(row=0),
    "epoch": lambda record: record["loader"].update(epoch=1 << 62),
    "other-loader": lambda record: record["loader"].update(pool_rows=10**30),
    "no-loader": lambda record: record.update(loader={}),
    "nan-pending": lambda record: record.update(pending=[float("nan")]),
    "true-pending": lambda record: record.update(pending=[True]),
    "huge-loss": lambda record: record.update(last_loss=10**400),
}


@pytest.mark.parametrize("hashed", [True, False], ids=["hashed", "of-before"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_an_altered_record_is_not_gone_on_with(
    store: Store,
    tmp_path: Path,
    run: RunTiny,
    record_path: Path,
    change: Callable[[dict[str, Any]], object],
    hashed: bool,
) -> None:
    alter(record_path, change, hashed=hashed)
    with pytest.raises(
        RunError, match=r"closed_loop.checkpoint\.json .*; remove .*closed_loop to train"
    ) as caught:
        run(tmp_path / "run", store, **SHORT)
    assert "\n" not in str(caught.value)


def test_every_field_of_a_record_is_hashed(tmp_path: Path) -> None:
    net = nn.Linear(3, 3)
    made = Checkpoint(stage="s", step=3, identity="i", loader={"a": 1}, pending=[0.5], last_loss=0.25)
    save_checkpoint(tmp_path, made, net, torch.optim.AdamW(net.parameters()))
    path = tmp_path / "checkpoint.json"
    whole = path.read_text()
    for field, value in {"last_loss": 0.5, "pending": [], "last_validation": 1.0, "loader": {"a": 2}}.items():
        alter(path, lambda record, entry={field: value}: record.update(entry))  # type: ignore[misc]
        with pytest.raises(RunError, match=r"checkpoint\.json is not what was written; remove"):
            load_checkpoint(tmp_path, net, identity="i")
        path.write_text(whole)
    assert load_checkpoint(tmp_path, net, identity="i") == made


def test_a_record_of_before_is_gone_on_with(
    store: Store, tmp_path: Path, run: RunTiny, record_path: Path
) -> None:
    run(tmp_path / "whole", store, **SHORT)
    alter(record_path, lambda record: None, hashed=False)
    run(tmp_path / "run", store, **SHORT)
    files = [tmp_path / name / "model.safetensors" for name in ("whole", "run")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_finished_record_without_its_loss_is_refused(store: Store, tmp_path: Path, run: RunTiny) -> None:
    run(tmp_path / "run", store, **SHORT)
    path = tmp_path / "run" / "closed_loop" / "checkpoint.json"
    alter(path, lambda record: record.update(last_loss=None), hashed=False)
    with pytest.raises(RunError, match=r"checkpoint\.json is at step 4 of 4 with last_loss null; remove"):
        run(tmp_path / "run", store, **SHORT)


def test_a_loader_state_beyond_64_bits_is_told(store: Store) -> None:
    loader = ActivationLoader(store, layers=(0,), batch_size=4)
    state = {**loader.state_dict(), "pool_rows": 10**30}
    with pytest.raises(ConfigError, match=r"pool_rows is \d+ and the state's is 10{30}:"):
        loader.load_state_dict(state)


@pytest.mark.parametrize(
    "line", ['{"step": 1, "validation": {}}', '{"step": 1, "loss": []}', '{"step": 1.5, "loss": 1}']
)
def test_a_line_that_is_none_is_told_by_its_file(
    store: Store, tmp_path: Path, run: RunTiny, record_path: Path, line: str
) -> None:
    with record_path.with_name("metrics.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(RunError, match=r"closed_loop.metrics\.jsonl has one of step .*; remove that line"):
        run(tmp_path / "run", store, **SHORT)


@pytest.mark.parametrize(("key", "value"), [("recipe", [1]), ("model", 3)])
def test_a_run_without_its_tables_is_told(
    store: Store, tmp_path: Path, run: RunTiny, key: str, value: object
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text(json.dumps({"version": 1, key: value}))
    for start in (lambda: run(tmp_path / "run", store), lambda: load_run(tmp_path / "run")):
        with pytest.raises(RunError, match=rf"a run's {key} is a table; .*run\.json has .*; choose another"):
            start()


@pytest.mark.parametrize("which", ["bogus", "Best", None])
def test_weights_of_no_such_name_are_refused(tmp_path: Path, which: Any) -> None:
    with pytest.raises(ConfigError, match=rf"weights are 'last' or 'best'; got {which!r}"):
        inspect.unwrap(load_run)(tmp_path, which)  # its types are held under pytest alone


def test_a_rank_above_the_width_is_refused(store: Store, tmp_path: Path, run: RunTiny) -> None:
    with pytest.raises(ConfigError, match=r"lora_rank is at most dim; got lora_rank 100000000 and dim 16"):
        run(tmp_path / "run", store, model={"lora_rank": 100000000})
    assert not (tmp_path / "run").exists()


def test_inputs_are_named_where_no_update_was_made(store: Store, tmp_path: Path, run: RunTiny) -> None:
    noisy = {"steps": 1, "warmup_steps": 0, "noise": 1e30}
    message = rf"at step 1 of 1, before any update: what the stage starts from is the cause; .*{ELSEWHERE}"
    with pytest.raises(RunError, match=message):
        run(tmp_path / "run", store, stage1={"steps": 0}, stage2=noisy)


def test_a_loss_that_grows_is_warned_of(store: Store, tmp_path: Path, run: RunTiny) -> None:
    wild = {"steps": 2, "warmup_steps": 0, "learning_rate": 3.0, "log_every": 1}
    message = rf"stage closed_loop ended with loss .* and began with .*; lower learning_rate .*{ELSEWHERE}"
    with pytest.warns(RuntimeWarning, match=message):
        run(tmp_path / "run", store, stage1={"steps": 0}, stage2=wild)
