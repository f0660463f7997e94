"""Defects of the published code that training here must not have; each test names its own.

Others have their tests beside what they are about: resuming (`test_runs.py`, `test_trainer.py`), a second
start (`test_runs.py`), registers taken to be tokens 1 to 4 (`test_stages.py`), the sign of `cosine`
(`test_objectives.py`), R2 (`test_metrics.py`), pickles (`test_checkpoint.py`), copies from the device
(`test_updates.py`, `tests/extract/test_engine_ring.py`), sample ids and labels
(`tests/extract/test_values.py`), the same minibatches in every epoch (`test_trainer.py`,
`tests/store/test_plan.py`), chunks read twice and errors of a worker that nobody hears
(`tests/store/test_loader.py`).
"""

from __future__ import annotations

import gc
import json
import shutil
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from activault.store import Store
from activault.store.files import file_sha256
from activault.store.layout import TokenLayout
from activault.train.finished import load_run
from activault.train.losses import SpanLoss, teacher_forcing_loss
from activault.train.metrics import evaluate_rollout
from activault.train.raptor import Raptor, RaptorConfig
from activault.train.runs import RunSummary
from activault.train.stages import StageProgress
from activault.train.updates import Updates

from .conftest import smooth_layers

RunTiny = Callable[..., RunSummary]


def tensor_files(folder: Path) -> dict[Path, str]:
    """Every file of tensors that a JSON beside it names, with the hash that it gives."""
    named = {}
    for path in folder.rglob("*.json"):
        record = json.loads(path.read_text())
        if "tensors" in record:
            named[path.parent / record["tensors"]] = record["sha256"]
        if path.name == "seal.json":
            named |= {
                folder / f"{name}.safetensors": value for name, value in record.items() if name != "run"
            }
    return named


def test_no_file_of_a_run_is_a_pickle_and_every_tensor_file_is_named_with_its_hash(
    store: Store, tmp_path: Path, run: RunTiny
) -> None:
    """Defect of the reference: whole modules pickled, and found again by patterns of file names."""
    options = {"validate_every": 3, "ema_decay": 0.5, "keep": 2}
    run(tmp_path / "run", store, validation=0.3, stage2=options)
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file() and path.name != "lock"]
    assert {path.suffix for path in files} == {".json", ".jsonl", ".parquet", ".safetensors"}
    found = {path for path in files if path.suffix == ".safetensors"}
    for path in found:
        with safe_open(path, "pt") as tensors:
            assert list(tensors.keys()), path.name
    named = tensor_files(tmp_path / "run")
    assert found == set(named)
    assert {path: file_sha256(path) for path in named} == named


def test_files_with_telling_names_are_not_taken_for_checkpoints(
    store: Store, tmp_path: Path, run: RunTiny
) -> None:
    """Defect of the reference: whatever fits `final_raptor3_*_seed_0_step_*.pt` is the model."""
    run(tmp_path / "run", store)
    run(tmp_path / "other", store, seed=9)
    wanted = load_run(tmp_path / "run").model.state_dict()
    other = tmp_path / "other" / "closed_loop" / "step_000000006.safetensors"
    for name in ("step_000000999.safetensors", "best_000000999.safetensors"):
        shutil.copy(other, tmp_path / "run" / "closed_loop" / name)
    for name in ("final_raptor3_seed_0_step_6.pt", "model_best.safetensors"):
        shutil.copy(tmp_path / "other" / "model.safetensors", tmp_path / "run" / name)
    told: list[StageProgress] = []
    run(tmp_path / "run", store, progress=told.append)
    assert [state.step for state in told] == [6, 6, 6], "every stage is finished as before"
    loaded = load_run(tmp_path / "run").model.state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in wanted.items())


TEACHERS = {
    "no-registers": (TokenLayout(num_cls=1, num_registers=0, grid=(2, 3)), 3, 8, 1, (1,), 21),
    "no-cls": (TokenLayout(num_cls=0, num_registers=0, grid=(3, 3)), 2, 24, 3, (), 19),
    "many-registers": (TokenLayout(num_cls=1, num_registers=6, grid=(1, 2)), 7, 16, 4, (2, 3, 6), 37),
}


@pytest.mark.parametrize("name", TEACHERS)
def test_layers_tokens_width_phases_and_rows_are_the_stores(
    make_store: Callable[..., Store], tmp_path: Path, run: RunTiny, name: str
) -> None:
    """Defect of the reference: 13 layers, 261 tokens, 768 wide, cuts 7 and 10 and 1,000,000 rows in code."""
    layout, num_layers, dim, heads, cuts, num_rows = TEACHERS[name]
    tokens = smooth_layers(num_rows, layout.num_tokens, num_layers, dim)
    store = make_store(tokens=tokens, layout=layout, num_heads=heads)
    assert run(tmp_path / "run", store, cuts, cuts=cuts).finished
    record = json.loads((tmp_path / "run" / "closed_loop" / "stage.json").read_text())
    assert record["num_rows"] == sum(row % 4 != 3 for row in range(num_rows)), "the training split"
    model = load_run(tmp_path / "run").model
    assert (model.num_layers, len(model.blocks), model.config.dim) == (num_layers, len(cuts) + 1, dim)
    measured = evaluate_rollout(model, store, np.arange(num_rows))
    assert (measured.layers, measured.num_rows) == (tuple(range(1, num_layers + 1)), num_rows)
    assert set(measured.r2) == {*layout.kinds, "all"}


def test_teacher_forcing_trains_every_block_of_a_composed_model(store: Store) -> None:
    """Defect of the reference: its composed model takes one layer's number and crashes on several at once."""
    model = Raptor(RaptorConfig(dim=16, num_heads=2, num_layers=4, cuts=(1, 3), layer_scale=0.3))
    tokens = torch.from_numpy(store.read(slice(0, 4), range(5)))
    loss = SpanLoss(layout=store.layout, weights=None, scales=None)
    teacher_forcing_loss(model, tokens, 0, loss).backward()
    assert all(
        parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters()
    )


def test_the_device_holds_the_batch_of_a_step_and_the_one_before(
    store: Store, tmp_path: Path, run: RunTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect of the reference: up to 30 batches wait on the GPU, 12 to 20 GB.

    A batch's move to the device, which is none on a CPU, is made a copy here, so that it can be counted.
    """
    there: list[weakref.ref[Tensor]] = []
    most: list[int] = []
    whole, update = Tensor.to, Updates.__call__

    def moved(tensor: Tensor, *given: Any, **options: Any) -> Tensor:
        made = whole(tensor, *given, **options)
        if options.get("non_blocking") and tensor.ndim == 4:
            made = made.clone()
            there.append(weakref.ref(made))
        return made

    def counted(updates: Updates, tokens: Tensor, step: int) -> tuple[Tensor, Tensor]:
        gc.collect()
        most.append(sum(each() is not None for each in there))
        return update(updates, tokens, step)

    monkeypatch.setattr(Tensor, "to", moved)
    monkeypatch.setattr(Updates, "__call__", counted)
    run(tmp_path / "run", store, stage1={"steps": 0}, stage2={"steps": 12})
    assert len(there) == len(most) == 12
    assert set(most) <= {1, 2}
