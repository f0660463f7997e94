"""Who this worker is: flags, torchrun, Slurm and its arrays; none of it changes a store."""

from __future__ import annotations

import os

import pytest
import torch

from activault.extract import workers as module
from activault.extract.machine import choose_device
from activault.extract.run import ExtractOptions
from activault.extract.workers import Worker, find_worker, own_first
from activault.store import ConfigError

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
SLURM = {
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "6",
    "SLURM_LOCALID": "1",
    "SLURM_TASKS_PER_NODE": "2(x3)",
}
SCRIPT = SLURM | {"SLURM_STEP_ID": "", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
ARRAY = {"SLURM_ARRAY_TASK_ID": "7", "SLURM_ARRAY_TASK_COUNT": "3", "SLURM_ARRAY_TASK_MIN": "5"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        pytest.param({}, (0, 1, 0, 1, None), id="alone"),
        pytest.param(TORCHRUN, (5, 8, 1, 4, "torchrun"), id="torchrun"),
        pytest.param(SLURM, (3, 6, 1, 2, "Slurm"), id="srun"),
        pytest.param(SLURM | {"SLURM_NTASKS_PER_NODE": "3"}, (3, 6, 1, 3, "Slurm"), id="tasks per node"),
        pytest.param(
            SLURM | {"SLURM_NTASKS_PER_NODE": "8", "SLURM_STEP_TASKS_PER_NODE": "1(x6)"},
            (3, 6, 1, 2, "Slurm"),
            id="a step of fewer tasks than its job",
        ),
        pytest.param(
            SLURM | {"SLURM_TASKS_PER_NODE": "1,4(x2)", "SLURM_NODEID": "2"},
            (3, 6, 1, 4, "Slurm"),
            id="uneven",
        ),
        pytest.param(ARRAY, (2, 3, 0, 1, "Slurm"), id="array"),
        pytest.param(ARRAY | SLURM, (15, 18, 1, 2, "Slurm"), id="srun in an array"),
        pytest.param(ARRAY | {"SLURM_ARRAY_TASK_STEP": "2"}, (1, 3, 0, 1, "Slurm"), id="array with a step"),
        pytest.param(TORCHRUN | ARRAY, (21, 24, 1, 4, "torchrun"), id="torchrun in an array"),
        pytest.param(
            {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}, (0, 2, 1, 1, "torchrun"), id="no local world"
        ),
    ],
)
def test_launchers_are_understood(environment: dict[str, str], expected: tuple[object, ...]) -> None:
    worker = find_worker(environment=environment)
    found = worker.rank, worker.world, worker.local_rank, worker.local_world, worker.origin
    assert found == expected
    assert worker.notes == ()


@pytest.mark.parametrize(
    ("environment", "note", "rank"),
    [
        ({"RANK": "1"}, "RANK is below WORLD_SIZE, and both are set; got RANK=1; they are left out", (0, 1)),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "got RANK=2, WORLD_SIZE=2", (0, 1)),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "got RANK=x, WORLD_SIZE=2", (0, 1)),
        ({"RANK": "-1", "WORLD_SIZE": "2"} | SLURM, "got RANK=-1", (3, 6)),
        (TORCHRUN | SLURM, "torchrun says rank 5 of 8, and Slurm 3 of 6; torchrun's is taken", (5, 8)),
        (SCRIPT, "this is the script of a Slurm job of 6 tasks, and not one of them; `srun", (0, 1)),
        (SCRIPT | ARRAY, "this is the script of a Slurm job of 6 tasks", (2, 3)),
        ({"SLURM_ARRAY_TASK_ID": "3"}, "SLURM_ARRAY_TASK_ID is set without", (0, 1)),
    ],
    ids=str,
)
def test_what_does_not_fit_is_told_and_left_out(
    environment: dict[str, str], note: str, rank: tuple[int, int]
) -> None:
    worker = find_worker(environment=environment)
    assert (worker.rank, worker.world) == rank
    (told,) = worker.notes
    assert note in told


def test_flags_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = find_worker(1, 3, TORCHRUN)
    assert (worker.rank, worker.world, worker.local_rank, worker.origin) == (1, 3, 1, "flags")
    assert worker.notes == ("rank 1 of 3 is by flags; what the launcher says is not looked at",)
    assert find_worker(5, 6, {}).local_rank == 5
    for rank, world, message in (
        (1, None, "rank and world go together; got rank 1 and world None"),
        (None, 4, "rank and world go together; got rank None and world 4"),
        (4, 4, "among 0 to world - 1; got rank 4 of world 4"),
        (-1, 4, "got rank -1"),
    ):
        with pytest.raises(ConfigError, match=message):
            find_worker(rank, world, {})


@pytest.mark.parametrize("world", [1, 2, 3, 7])
def test_each_rank_begins_with_its_own_shards_and_then_helps_the_others(world: int) -> None:
    shards = [0, 1, 2, 5, 6, 7, 8, 12]
    orders = [own_first(shards, rank, world) for rank in range(world)]
    assert all(sorted(order) == shards for order in orders)
    for rank, order in enumerate(orders):
        own = [shard for shard in shards if shard % world == rank]
        assert order[: len(own)] == own
    assert own_first(shards, 0, 3)[3:] == [7, 1, 8, 5, 2]


def test_every_worker_of_a_machine_has_a_gpu_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    options = ExtractOptions(teacher="demo")
    found = [Worker(rank=r, world=5, local_rank=r).applied(options).device for r in range(5)]
    assert found == ["cuda:0", "cuda:1", "cuda:0", "cuda:1", "cuda:0"]
    assert Worker(local_rank=1).applied(ExtractOptions(teacher="demo", device="cpu")).device == "cpu"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)  # Slurm shows each task its own alone
    assert choose_device("auto", 3) == torch.device("cuda")


@pytest.mark.parametrize(
    ("cores", "machine", "environment", "share"),
    [
        pytest.param(16, 16, {}, 4, id="all share the machine"),
        pytest.param(4, 16, {}, 4, id="bound to cores of their own"),
        pytest.param(8, 64, {"SLURM_CPUS_ON_NODE": "8"}, 2, id="all share what Slurm gave"),
        pytest.param(2, 2, {}, 1, id="fewer cores than workers"),
    ],
)
def test_cores_are_shared_where_they_are_not_bound(
    monkeypatch: pytest.MonkeyPatch, cores: int, machine: int, environment: dict[str, str], share: int
) -> None:
    monkeypatch.setattr(module, "num_cores", lambda: cores)
    monkeypatch.setattr(os, "cpu_count", lambda: machine)
    assert Worker(local_world=4).num_cores(environment) == share
    assert Worker().num_cores(environment) == cores


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rank": 2, "world": 2}, "a rank is among 0 to world - 1; got rank 2 of world 2"),
        ({"lease": 0.5}, "a lease is from 1 to 86,400 seconds; got 0.5"),
        ({"lease": float("nan")}, "a lease is from 1 to 86,400 seconds; got nan"),
    ],
    ids=str,
)
def test_options_that_cannot_be(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ExtractOptions(teacher="demo", **fields)  # type: ignore[arg-type]
