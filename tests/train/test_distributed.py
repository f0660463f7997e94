"""Several processes: who they are, the same training as one process, and one end for all."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from fork_server import forked
from train_together import train_together

from activault.store import Store
from activault.store.errors import ConfigError
from activault.train.distributed import ALONE, Place, place_in
from activault.train.finished import load_run
from activault.train.recipe import TrainRecipe
from activault.train.runs import train

MakeRecipe = Callable[..., TrainRecipe]
SLURM = {
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_JOB_ID": "123456",
    "SLURM_STEP_ID": "3",
}


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({}, Place()),
        ({"RANK": "0", "WORLD_SIZE": "1"}, Place()),
        (
            {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "n1", "MASTER_PORT": "29500"},
            Place(rank=3, world=4, local_rank=1, address="n1:29500"),
        ),
        ({"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_JOB_ID": "7"}, Place()),
        (
            {**SLURM, "SLURM_STEP_NODELIST": "node[07-09,12],gpu1"},
            Place(rank=5, world=8, local_rank=1, address="node07:25603"),
        ),
        (
            {**SLURM, "SLURM_STEP_NODELIST": "gpu1,node[07-09]", "MASTER_PORT": "9"},
            Place(rank=5, world=8, local_rank=1, address="gpu1:9"),
        ),
        (
            {**SLURM, "SLURM_STEP_NODELIST": "rack[2,4]-a", "MASTER_ADDR": "10.0.0.1"},
            Place(rank=5, world=8, local_rank=1, address="10.0.0.1:25603"),
        ),
    ],
    ids=["none", "torchrun-one", "torchrun", "batch-script", "srun", "srun-port", "srun-address"],
)
def test_places_come_from_torchrun_or_srun(environment: dict[str, str], place: Place) -> None:
    assert place_in(environment) == place


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"RANK": "x", "WORLD_SIZE": "2"}, r"told their places by torchrun or srun; .*'x' does not fit"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, r"below the number of processes; got 2 and 2"),
        ({"RANK": "1", "WORLD_SIZE": "2"}, r"meet at MASTER_ADDR and MASTER_PORT; got '' and ''"),
        ({"SLURM_STEP_NUM_TASKS": "2"}, r"'SLURM_PROCID' does not fit"),
    ],
)
def test_places_that_are_not_told_are_named(environment: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        place_in(environment)


def test_one_process_alone_asks_nobody() -> None:
    values = torch.ones(2)
    assert ALONE.mean(values) is values
    assert ALONE.gathered(3) == [3]
    assert ALONE.on_first(lambda: 4) == 4


def losses(run: Path) -> list[tuple[int, float]]:
    entries: list[dict[str, Any]] = [
        json.loads(line)
        for stage in ("phase_1", "phase_2", "closed_loop")
        if (run / stage).exists()
        for line in (run / stage / "metrics.jsonl").read_text().splitlines()
    ]
    return [
        (entry["step"], entry["validation"]["mean_r2"] if "validation" in entry else entry["loss"])
        for entry in entries
    ]


def assert_same_course(one: Path, other: Path) -> None:
    """Up to float32's rounding: sums of gradients are made in another order."""
    assert [step for step, _ in losses(one)] == [step for step, _ in losses(other)]
    assert [value for _, value in losses(one)] == pytest.approx([v for _, v in losses(other)], rel=1e-4)
    weights = load_run(other).model.state_dict()
    for name, value in load_run(one).model.state_dict().items():
        torch.testing.assert_close(value, weights[name], rtol=1e-2, atol=1e-4)


def alone(store: Store, out: Path, recipe: TrainRecipe) -> None:
    train(recipe, out, store=store, cuts=(2,))


OPTIONS: dict[str, Any] = {
    "stage1": {"learning_rate": 1e-3, "batch_size": 16},
    "stage2": {
        "learning_rate": 1e-3,
        "batch_size": 16,
        "accumulate": 2,
        "ema_decay": 0.5,
        "validate_every": 4,
    },
    "validation": 0.3,
}


PARTIAL: dict[str, Any] = {
    "stage1": {"steps": 0},
    "stage2": {
        "learning_rate": 1e-3,
        "batch_size": 16,
        "accumulate": 2,
        "targets": "last",
        "horizon_start": 1,
        "gradient_checkpointing": 2,
        "token_weights": {"cls": 0.9, "registers": 0.1, "patches": 0.0},
    },
}
"""The last layer alone counts, and roll-outs start again: at first the first block has nothing to learn."""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def play(store: Path, folder: Path, scene: str, recipe: dict[str, Any]) -> None:
    """Two processes to their ends; in `torchrun` at a store that is kept for them, as its agent keeps one."""
    port = free_port()
    places = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if scene == "torchrun":
        places["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    processes = [
        forked().Process(
            target=train_together, args=({**places, "RANK": str(rank)}, store, folder, scene, recipe)
        )
        for rank in range(2)
    ]
    for process in processes:
        process.start()
    kept = dist.TCPStore("127.0.0.1", port, is_master=True) if scene == "torchrun" else None
    try:
        for process in processes:
            process.join(100)
        assert [process.exitcode for process in processes] == [0, 0], scene
    finally:
        del kept
        for process in processes:
            process.kill()


@pytest.fixture(scope="module")
def scenes(store: Store, tmp_path_factory: pytest.TempPathFactory, recipe: MakeRecipe) -> Path:
    """Every scene of two processes played; a run by its name."""
    folder = tmp_path_factory.mktemp("scenes")
    (folder / "refused").mkdir()
    (folder / "refused" / "thesis.tex").write_text("years of work")
    plain = recipe(**OPTIONS).model_dump(mode="json")
    played = {
        "refused": plain,
        "uneven": recipe(stage1={"batch_size": 9}).model_dump(mode="json"),
        "interrupted": plain,
        "partial": recipe(**PARTIAL).model_dump(mode="json"),
        "full": recipe(stage1={"steps": 0}).model_dump(mode="json"),
        "full-at-last": recipe(stage1={"steps": 0}, stage2={"steps": 2}).model_dump(mode="json"),
        "torchrun": plain,
    }
    for scene, given in played.items():
        play(Path(store.path), folder, scene, given)
    alone(store, folder / "one", recipe(**OPTIONS))
    alone(store, folder / "partial-one", recipe(**PARTIAL))
    return folder


def ends(scenes: Path, scene: str) -> list[str]:
    return [(scenes / f"{scene}.{rank}.txt").read_text() for rank in range(2)]


def test_two_processes_train_as_one_with_their_rows_together(scenes: Path) -> None:
    """Each takes half of every batch of 16."""
    assert ends(scenes, "torchrun") == ["finished"] * 2
    assert_same_course(scenes / "torchrun", scenes / "one")


def test_blocks_with_nothing_to_learn_hold_up_nobody(scenes: Path) -> None:
    assert ends(scenes, "partial") == ["finished"] * 2
    assert_same_course(scenes / "partial", scenes / "partial-one")


def test_an_interrupt_of_one_stops_all_and_one_alone_goes_on(
    scenes: Path, store: Store, recipe: MakeRecipe
) -> None:
    assert ends(scenes, "interrupted") == ["interrupted"] * 2
    step = json.loads((scenes / "interrupted" / "closed_loop" / "checkpoint.json").read_text())["step"]
    assert step == 5, "told in the step after the Ctrl-C's third one, and heard in the one after that"
    alone(store, scenes / "interrupted", recipe(**OPTIONS))
    assert_same_course(scenes / "interrupted", scenes / "one")


def test_what_the_first_process_refuses_ends_all(scenes: Path) -> None:
    for word in ends(scenes, "refused"):
        assert word.startswith("RunError")
        assert "refused exists and is no run; choose another folder" in word


@pytest.mark.parametrize(
    ("scene", "word"),
    [
        ("full", "RunError: .*metrics.jsonl could not be written: .*No space left on device; .* make room"),
        ("full-at-last", "OSError: .*No space left on device"),
    ],
)
def test_a_disk_that_is_full_for_the_first_process_ends_all(scenes: Path, scene: str, word: str) -> None:
    first, second = ends(scenes, scene)
    assert re.match(word, first)
    assert second == first


def test_a_batch_that_cannot_be_shared_out_is_told(scenes: Path) -> None:
    for word in ends(scenes, "uneven"):
        assert "batch_size is a multiple of processes times accumulate" in word
