"""One update: the same gradient however it is made, averages, precision, compiled blocks, no waiting."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from activault.store import Store
from activault.train.closed_loop import closed_loop_stage
from activault.train.distributed import ALONE
from activault.train.ema import Ema
from activault.train.raptor import Raptor, RaptorConfig
from activault.train.stage_config import Stage2Config
from activault.train.stages import Stage, StageProgress
from activault.train.trainer import run_stage
from activault.train.updates import Updates

CPU = torch.device("cpu")


def stage_of(store: Store, **options: Any) -> Stage:
    torch.manual_seed(7)
    model = Raptor(RaptorConfig(dim=16, num_heads=2, num_layers=4, cuts=(2,), layer_scale=0.1))
    config = Stage2Config(**{"steps": 12, "batch_size": 8, "warmup_steps": 0, "clip": 1e9, **options})
    return closed_loop_stage(model, config, store, CPU)


def updates_of(stage: Stage) -> Updates:
    return Updates(stage, device=CPU, seed=1, peers=ALONE)


def gradients(store: Store, rows: int = 8, **options: Any) -> list[Tensor]:
    stage = stage_of(store, **options)
    updates_of(stage)(torch.from_numpy(store.read(slice(0, rows), stage.layers)), 3)
    return [parameter.grad for parameter in stage.module.parameters() if parameter.grad is not None]


@pytest.mark.parametrize(("accumulate", "rows"), [(2, 8), (8, 8), (4, 6)], ids=str)
def test_pieces_add_up_to_the_gradient_of_the_whole_batch(store: Store, accumulate: int, rows: int) -> None:
    whole = gradients(store, rows)
    for one, other in zip(whole, gradients(store, rows, accumulate=accumulate), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("recomputed", [0, 3])
def test_what_does_not_count_has_a_gradient_of_zeros(store: Store, recomputed: int) -> None:
    """DDP waits for every parameter's: the last layer alone counts, made from the teacher's one before it."""
    stage = stage_of(store, targets="last", horizon_start=1, gradient_checkpointing=recomputed)
    updates_of(stage)(torch.from_numpy(store.read(slice(0, 8), stage.layers)), 0)
    first, last = (
        [parameter.grad for parameter in block.parameters()]
        for block in (stage.module.blocks[0], stage.module.blocks[1])
    )
    assert all(gradient is not None and not gradient.any() for gradient in first)
    assert all(gradient is not None for gradient in last)
    assert any(gradient.any() for gradient in last)


@pytest.mark.parametrize("layers", [1, 3, 4])
def test_layers_computed_again_give_the_same_gradient(store: Store, layers: int) -> None:
    for one, other in zip(gradients(store), gradients(store, gradient_checkpointing=layers), strict=True):
        torch.testing.assert_close(other, one)


def test_noise_is_a_function_of_seed_and_step(store: Store) -> None:
    stage = stage_of(store, noise=0.3)
    tokens = torch.from_numpy(store.read(slice(0, 8), stage.layers))
    first, other = updates_of(stage), updates_of(stage)
    losses = [first._backward(tokens, step) for step in (5, 6, 5)]
    torch.rand(5)
    assert losses[0] == losses[2] == other._backward(tokens, 5) != losses[1]


def test_average_follows_the_weights_by_its_rule() -> None:
    net = nn.Linear(3, 2)
    ema, expected = Ema(net, 0.6), net.weight.detach().clone()
    for step in range(1, 30):
        with torch.no_grad():
            net.weight.add_(torch.randn(2, 3))
        ema.update(step)
        decay = min(0.6, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * net.weight.detach()
    torch.testing.assert_close(ema.average["weight"], expected)
    own = net.weight.detach().clone()
    with ema.in_place():
        torch.testing.assert_close(net.weight.detach(), expected)
    assert torch.equal(net.weight, own)


def test_bfloat16_reaches_the_products_and_nothing_else(store: Store) -> None:
    stage = stage_of(store, precision="bfloat16")
    seen: dict[str, torch.dtype] = {}

    def note(name: str, out: Tensor) -> None:
        seen[name] = out.dtype

    for name in ("blocks.0", "blocks.0.attn.proj"):
        part = stage.module.get_submodule(name)
        part.register_forward_hook(lambda _module, _given, out, name=name: note(name, out))
    loss, norm = updates_of(stage)(torch.from_numpy(store.read(slice(0, 8), stage.layers)), 1)
    assert seen["blocks.0.attn.proj"] == torch.bfloat16
    assert seen["blocks.0"] == loss.dtype == norm.dtype == torch.float32
    assert {parameter.dtype for parameter in stage.module.parameters()} == {torch.float32}
    plain, _ = updates_of(stage_of(store))(torch.from_numpy(store.read(slice(0, 8), stage.layers)), 1)
    assert 0 < abs(float(loss) / float(plain) - 1) < 0.01


def test_compile_takes_every_block_and_changes_no_name(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is made of them is torch's; the tests' type checks cannot be traced, so none is made here."""
    compiled: list[nn.Module] = []
    monkeypatch.setattr(nn.Module, "compile", lambda module: compiled.append(module))
    stage = stage_of(store, compile=True)
    names = list(stage.module.state_dict())
    updates_of(stage)
    assert compiled == list(stage.module.blocks)
    assert list(stage.module.state_dict()) == names


def test_compiled_blocks_learn_as_the_others_do_and_are_resumed(store: Store, tmp_path: Path) -> None:
    script = Path(__file__).with_name("train_compiled.py")
    done = subprocess.run(
        [sys.executable, str(script), str(store.path), str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["graphs"] > 0, "something was traced"
    assert found["compiled"] == pytest.approx(found["plain"], rel=1e-5)
    assert found["resumed"] == found["compiled"]


def test_a_stage_compiles_only_for_itself(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The closed loop goes on with the blocks of the phases: `compile` of stage 1 is not that of stage 2."""
    monkeypatch.setattr(nn.Module, "compile", lambda module: setattr(module, "_compiled_call_impl", print))
    stage = stage_of(store, compile=True)
    updates_of(stage)
    assert all(block._compiled_call_impl is print for block in stage.module.blocks)
    updates_of(replace(stage, config=stage.config.model_copy(update={"compile": False})))
    assert all(block._compiled_call_impl is None for block in stage.module.blocks)


def test_no_step_asks_the_device_for_a_number(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What would wait for a GPU is counted; it may happen where losses are logged, and nowhere else.

    There losses come over by copies that wait. Defect of the reference: copies that do not, read at once.
    """
    asked: list[str] = []

    def counted(name: str, whole: Callable[..., Any]) -> Callable[..., Any]:
        def call(tensor: Tensor, *given: Any) -> Any:
            asked.append(name)
            return whole(tensor, *given)

        return call

    for name in ("item", "tolist", "cpu", "__bool__", "__float__", "__int__", "__index__"):
        monkeypatch.setattr(Tensor, name, counted(name, getattr(Tensor, name)))
    by_step: dict[int, list[str]] = {}

    def note(state: StageProgress) -> None:
        by_step[state.step] = list(asked)
        asked.clear()

    stage = stage_of(store, log_every=6, noise=0.1, ema_decay=0.9, accumulate=2, horizon_start=1, clip=1.0)
    run_stage(
        stage,
        tmp_path / "s",
        store=store,
        rows=store.valid_rows,
        seed=1,
        identity="i",
        device=CPU,
        progress=note,
    )
    assert [step for step in range(1, 13) if by_step[step]] == [6, 12]
