"""The loop: resumes bit for bit wherever it is cut, logs no step twice, stops on what is no number."""

from __future__ import annotations

import errno
import json
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from activault.store import Store, mixing
from activault.store.errors import RunError
from activault.train import ledger
from activault.train.checkpoint import Checkpoint
from activault.train.closed_loop import closed_loop_stage
from activault.train.raptor import Raptor, RaptorConfig
from activault.train.stage_config import Stage2Config
from activault.train.stages import Stage, StageProgress, StageResult
from activault.train.trainer import run_stage

from .conftest import MakeStore

CONFIG = Stage2Config(
    steps=23, batch_size=8, learning_rate=1e-2, warmup_steps=3, beta2=0.99, checkpoint_every=5, log_every=4
)


Undisturbed = tuple[Stage, StageResult, list[dict[str, float]]]


class Cut(Exception):  # noqa: N818
    """Stands for whatever ends a process between two steps."""


def make_stage(store: Store, config: Stage2Config = CONFIG) -> Stage:
    torch.manual_seed(7)
    model = Raptor(RaptorConfig(dim=16, num_heads=2, num_layers=4, cuts=(2,), layer_scale=0.1))
    return closed_loop_stage(model, config, store, torch.device("cpu"))


def run(
    stage: Stage, folder: Path, store: Store, progress: Callable[[StageProgress], None] | None = None
) -> StageResult:
    return run_stage(
        stage,
        folder,
        store=store,
        rows=store.valid_rows[:30],
        seed=1,
        identity="i",
        device=torch.device("cpu"),
        progress=progress,
    )


def cut_at(step: int) -> Callable[[StageProgress], None]:
    def progress(state: StageProgress) -> None:
        if state.step == step:
            raise Cut

    return progress


def lines(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def same_weights(first: nn.Module, second: nn.Module) -> bool:
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.fixture(scope="module")
def undisturbed(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    stage = make_stage(store)
    folder = tmp_path_factory.mktemp("whole")
    result = run(stage, folder, store)
    return stage, result, lines(folder)


@pytest.mark.parametrize("cuts", [(1,), (4,), (5,), (7, 16), (20, 21, 22), (23,)], ids=str)
def test_cut_and_resumed_ends_with_the_same_weights(
    store: Store,
    tmp_path: Path,
    undisturbed: Undisturbed,
    cuts: tuple[int, ...],
) -> None:
    whole, result, logged = undisturbed
    for cut in cuts:
        with pytest.raises(Cut):
            run(make_stage(store), tmp_path / "cut", store, cut_at(cut))
    torch.rand(3)  # what else was drawn in the meantime does not matter
    stage = make_stage(store)
    resumed = run(stage, tmp_path / "cut", store)
    assert same_weights(stage.module, whole.module)
    assert resumed.loss == result.loss
    assert [(line["step"], line["loss"]) for line in lines(tmp_path / "cut")] == [
        (line["step"], line["loss"]) for line in logged
    ]


def test_it_learns(undisturbed: Undisturbed) -> None:
    _, result, logged = undisturbed
    assert [line["step"] for line in logged] == [4, 8, 12, 16, 20, 23]
    assert result.loss == logged[-1]["loss"] < 0.8 * logged[0]["loss"]
    assert all(0 <= line["wait_seconds"] <= line["seconds"] for line in logged)


def test_finished_stage_is_not_run_again(store: Store, tmp_path: Path) -> None:
    stage = make_stage(store)
    first = run(stage, tmp_path / "s", store)
    told: list[StageProgress] = []
    again = make_stage(store)
    second = run(again, tmp_path / "s", store, told.append)
    assert [(state.step, state.steps, state.loss) for state in told] == [(23, 23, first.loss)]
    assert second.wait_seconds == 0
    assert same_weights(again.module, stage.module)
    assert (second.loss, second.steps) == (first.loss, first.steps)


def test_full_disk_under_the_metrics_is_told(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ledger, "os", SimpleNamespace(fsync=refuse))
    with pytest.raises(RunError, match=r"metrics\.jsonl could not be written: .*No space left on device"):
        run(make_stage(store), tmp_path / "s", store)


def test_start_is_told_and_then_every_step(store: Store, tmp_path: Path) -> None:
    told: list[StageProgress] = []
    with pytest.raises(Cut):
        run(make_stage(store), tmp_path / "s", store, cut_at(13))
    run(make_stage(store), tmp_path / "s", store, told.append)
    assert [state.step for state in told] == list(range(10, 24)), "from the last checkpoint"
    assert told[0].wait_seconds == 0


@pytest.mark.parametrize(("pressed", "saved"), [(7, 8), (23, 23)], ids=["in between", "in the last step"])
def test_ctrl_c_saves_the_step_that_was_under_way(
    store: Store, tmp_path: Path, undisturbed: Undisturbed, pressed: int, saved: int
) -> None:
    def press(state: StageProgress) -> None:
        if state.step == pressed:
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run(make_stage(store), tmp_path / "s", store, press)
    assert signal.getsignal(signal.SIGINT) is before
    assert json.loads((tmp_path / "s" / "checkpoint.json").read_text())["step"] == saved
    stage = make_stage(store)
    run(stage, tmp_path / "s", store)
    assert same_weights(stage.module, undisturbed[0].module)


def test_second_ctrl_c_does_not_wait(store: Store, tmp_path: Path) -> None:
    def press(state: StageProgress) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(make_stage(store), tmp_path / "s", store, press)
    assert not (tmp_path / "s" / "checkpoint.json").exists()


def test_unfinished_last_line_of_a_killed_process_is_dropped(store: Store, tmp_path: Path) -> None:
    with pytest.raises(Cut):
        run(make_stage(store), tmp_path / "s", store, cut_at(12))
    with (tmp_path / "s" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 12, "lo')
    run(make_stage(store), tmp_path / "s", store)
    assert [line["step"] for line in lines(tmp_path / "s")] == [4, 8, 12, 16, 20, 23]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_loss_that_is_no_number_stops_with_stage_and_step(store: Store, tmp_path: Path, value: float) -> None:
    stage = make_stage(store)

    def objective(tokens: Tensor, step: int, generator: torch.Generator | None) -> Tensor:
        return stage.objective(tokens, step, generator) * (value if step == 9 else 1.0)

    broken = replace(stage, name="broken", objective=objective)
    message = (
        r"stage broken has loss (nan|inf) and gradient norm (nan|inf) at step 10 of 23; lower learning_rate"
    )
    with pytest.raises(RunError, match=message):
        run(broken, tmp_path / "s", store)
    saved = Checkpoint(
        **{
            key: entry
            for key, entry in json.loads((tmp_path / "s" / "checkpoint.json").read_text()).items()
            if key not in ("version", "tensors", "sha256", "record_sha256")
        }
    )
    assert saved.step == 5, "the last checkpoint before the fault stays"


def test_batches_differ_between_epochs_and_cover_the_rows(store: Store, tmp_path: Path) -> None:
    """Defect of the reference: the same groups of rows in every epoch."""
    stage, seen = make_stage(store, CONFIG.model_copy(update={"steps": 6, "batch_size": 10})), []

    def objective(tokens: Tensor, step: int, generator: torch.Generator | None) -> Tensor:
        seen.append({tuple(row[0, 0, :3].tolist()) for row in tokens})
        return stage.objective(tokens, step, generator)

    run(replace(stage, objective=objective), tmp_path / "s", store)
    first, second = seen[:3], seen[3:]
    assert len(set.union(*first)) == len(set.union(*second)) == 30
    assert not any(batch in second for batch in first)


def test_fewer_rows_than_a_batch_still_train(store: Store, tmp_path: Path) -> None:
    stage = make_stage(store, CONFIG.model_copy(update={"batch_size": 64}))
    with pytest.warns(RuntimeWarning, match="30 rows make no batch of 64"):
        assert run(stage, tmp_path / "s", store).steps == 23


def test_memory_of_the_machine_changes_nothing_where_rows_are_in_their_sources_order(
    make_store: MakeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Begun where all rows are held at a time, gone on with where 8 are: the same weights and state."""
    store = make_store("ordered.zarr", row_seed=None)
    whole = make_stage(store)
    run(whole, tmp_path / "whole", store)
    with pytest.raises(Cut):
        run(make_stage(store), tmp_path / "cut", store, cut_at(12))
    state = json.loads((tmp_path / "cut" / "checkpoint.json").read_text())["loader"]
    monkeypatch.setattr(mixing, "available_bytes", lambda: 1)
    monkeypatch.setattr(mixing, "_POOL_BYTES", 1)
    stage = make_stage(store)
    run(stage, tmp_path / "cut", store)
    assert same_weights(stage.module, whole.module)
    last = json.loads((tmp_path / "cut" / "checkpoint.json").read_text())["loader"]
    assert {name: last[name] for name in ("pool_rows", "reads_per_chunk")} == {
        "pool_rows": state["pool_rows"],
        "reads_per_chunk": 1,
    }


def test_a_run_of_before_keeps_the_order_that_it_was_begun_with(
    make_store: MakeStore, tmp_path: Path
) -> None:
    """Rows in their source's order were mixed over fewer chunks then, read in four parts each."""
    store = make_store("ordered.zarr", row_seed=None)
    with pytest.raises(Cut):
        run(make_stage(store), tmp_path / "cut", store, cut_at(5))
    checkpoint = tmp_path / "cut" / "checkpoint.json"
    record = json.loads(checkpoint.read_text())
    record["loader"] |= {"pool_rows": 24, "reads_per_chunk": 4}
    del record["record_sha256"]  # records had none then
    checkpoint.write_text(json.dumps(record))
    run(make_stage(store), tmp_path / "cut", store)
    after = json.loads(checkpoint.read_text())["loader"]
    assert (after["pool_rows"], after["reads_per_chunk"]) == (24, 4)
