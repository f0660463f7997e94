"""What a stage's loader is made with: the type that crosses, pinned memory, and pools of several machines."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from activault.store import ActivationLoader, Store, mixing
from activault.train import feeding
from activault.train.closed_loop import closed_loop_stage
from activault.train.distributed import ALONE, Peers
from activault.train.feeding import crossing_type, ranks_here, stage_loader
from activault.train.raptor import Raptor, RaptorConfig
from activault.train.recipe import TrainRecipe
from activault.train.runs import train
from activault.train.stage_config import Stage2Config
from activault.train.stages import Stage

from .conftest import MakeRecipe, MakeStore

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
STEPS_8 = Stage2Config(steps=4, batch_size=8, warmup_steps=1)


class OnMachines(Peers):
    """Processes on machines of these names, seen from the first."""

    names: list[str] = []  # noqa: RUF012

    def gathered(self, value: Any) -> list[Any]:
        assert value == socket.gethostname()
        return [value if name == "here" else name for name in self.names]


def over(names: list[str]) -> Peers:
    kind = type("These", (OnMachines,), {"names": names})
    peers: Peers = kind(world=len(names))
    return peers


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the last loader was made with; pinned ones cannot be made here."""
    given: dict[str, Any] = {}

    def make(store: Store, **options: Any) -> ActivationLoader:
        given.clear()
        given.update(options)
        return ActivationLoader(store, **{**options, "pin_memory": False})

    monkeypatch.setattr(feeding, "ActivationLoader", make)
    return given


def closed_loop(store: Store) -> Stage:
    model = Raptor(RaptorConfig(dim=16, num_heads=2, num_layers=4, cuts=(2,)))
    return closed_loop_stage(model, STEPS_8, store, CPU)


def loader_of(
    store: Store, device: torch.device = CPU, peers: Peers = ALONE, **options: Any
) -> ActivationLoader:
    rows = np.arange(store.num_rows)
    return stage_loader(closed_loop(store), store, rows, seed=0, device=device, peers=peers, **options)


@pytest.mark.parametrize(
    ("dtype", "device", "crossing"),
    [
        ("bfloat16", "cuda", torch.bfloat16),
        ("float16", "cuda", torch.float16),
        ("float32", "cuda", torch.float32),
        ("bfloat16", "mps", torch.bfloat16),
        ("bfloat16", "cpu", torch.float32),
        ("float16", "cpu", torch.float32),
    ],
)
def test_short_floats_cross_to_a_device_as_they_are_stored(
    make_store: MakeStore, dtype: str, device: str, crossing: torch.dtype
) -> None:
    assert crossing_type(make_store(dtype=dtype), torch.device(device)) == crossing


def test_batches_for_a_gpu_are_pinned_views_of_what_is_stored(
    make_store: MakeStore, options: Mapping[str, Any]
) -> None:
    store = make_store(dtype="bfloat16")
    loader = loader_of(store, CUDA)
    assert options["pin_memory"]
    assert loader._pools.are_views
    batch = next(iter(loader))
    assert batch.tokens.dtype == torch.bfloat16
    held = torch.from_numpy(store.read(batch.rows.numpy(), range(5)))
    assert torch.equal(batch.tokens.float(), held)


def test_batches_for_a_cpu_are_not_pinned(make_store: MakeStore, options: Mapping[str, Any]) -> None:
    loader = loader_of(make_store(dtype="bfloat16"))
    assert not options["pin_memory"]
    assert next(iter(loader)).tokens.dtype == torch.float32


def test_processes_are_counted_by_machine() -> None:
    assert ranks_here(ALONE) == 1
    assert ranks_here(over(["here", "here", "there", "there"])) == 2


@pytest.mark.parametrize(
    ("names", "pool"),
    [
        (["here"], None),
        (["here", "here"], None),
        (["here", "here", "there", "there"], 2 * (100 << 30)),
        (["here", "there", "there", "there"], 4 * (100 << 30)),
    ],
    ids=["alone", "one machine", "two machines", "unequal machines"],
)
def test_processes_of_a_machine_hold_a_quarter_of_its_memory_together(
    make_store: MakeStore,
    options: Mapping[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    names: list[str],
    pool: int | None,
) -> None:
    """A pool is of all processes, each of which holds its part: here 100 GiB / processes here."""
    monkeypatch.setattr(mixing, "available_bytes", lambda: 400 << 30)
    loader_of(make_store(row_seed=None), peers=over(names))
    assert options["pool_bytes"] == pool


def test_a_machine_of_little_memory_still_holds_the_least_pool(
    make_store: MakeStore, options: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mixing, "available_bytes", lambda: 1 << 30)
    loader_of(make_store(row_seed=None), peers=over(["here", "there"]))
    assert options["pool_bytes"] == 2 << 30


def test_memory_has_no_say_where_the_order_depends_on_it(
    make_store: MakeStore, options: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mixing, "available_bytes", lambda: 400 << 30)
    first, second = (
        loader_of(make_store(f"{number}.zarr", row_seed=0), peers=peers).plan(0).rows
        for number, peers in enumerate((ALONE, over(["here", "there"])))
    )
    assert options["pool_bytes"] is None
    assert first.tolist() == second.tolist()


@pytest.mark.parametrize("row_seed", [0, None])
def test_a_recipe_s_pool_is_taken(
    make_store: MakeStore, options: Mapping[str, Any], row_seed: int | None
) -> None:
    loader_of(make_store(row_seed=row_seed), peers=over(["here", "there"]), pool_bytes=3 << 30)
    assert options["pool_bytes"] == 3 << 30


def test_a_run_s_loaders_have_the_recipe_s_pool(
    store: Store, recipe: MakeRecipe, options: Mapping[str, Any], tmp_path: Path
) -> None:
    train(recipe(pool_bytes=1 << 20), tmp_path / "run", store=store, cuts=(2,))
    assert options["pool_bytes"] == 1 << 20


def test_a_recipe_without_a_pool_is_the_run_that_it_was(recipe: MakeRecipe) -> None:
    plain: TrainRecipe = recipe()
    assert "pool_bytes" not in plain.identity()
    assert recipe(pool_bytes=1 << 30).identity() != plain.identity()


def test_rows_that_make_no_batch_are_told(make_store: MakeStore) -> None:
    store = make_store()
    told = (
        "stage closed_loop: 5 rows make no batch of 8, so that every step takes all of them; set batch_size"
    )
    with pytest.warns(RuntimeWarning, match=told):
        loader = stage_loader(closed_loop(store), store, np.arange(5), seed=0, device=CPU, peers=ALONE)
    assert len(next(iter(loader)).rows) == 5
