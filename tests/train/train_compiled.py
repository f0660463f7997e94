"""Run by test_updates.py: a closed loop's losses with compiled blocks and without, as JSON.

python train_compiled.py STORE FOLDER

A process of its own, since the tests' type checks cannot be traced. Blocks are compiled for the backend that
traces them and their gradients and needs no C++ compiler. `cut` and `resumed` are one stage, in two goes.
"""

from __future__ import annotations

import json
import sys
from functools import partialmethod
from pathlib import Path

import numpy as np
import torch
from torch import nn

from activault.store import open_store
from activault.train.closed_loop import closed_loop_stage
from activault.train.raptor import Raptor, RaptorConfig
from activault.train.stage_config import Stage2Config
from activault.train.stages import StageProgress
from activault.train.trainer import run_stage

CPU = torch.device("cpu")


class Cut(Exception):  # noqa: N818
    """Stands for whatever ends a process between two steps."""


def cut(state: StageProgress) -> None:
    if state.step == 3:
        raise Cut


def losses(store_path: str, folder: Path, *, compiled: bool, cut_once: bool = False) -> list[float]:
    torch.manual_seed(7)
    store = open_store(store_path)
    model = Raptor(RaptorConfig(dim=16, num_heads=2, num_layers=4, cuts=(2,), layer_scale=0.1))
    config = Stage2Config(
        steps=4, batch_size=8, warmup_steps=0, checkpoint_every=2, log_every=1, compile=compiled
    )
    stage = closed_loop_stage(model, config, store, CPU)
    for progress in [cut, None] if cut_once else [None]:
        try:
            run_stage(
                stage,
                folder,
                store=store,
                rows=np.arange(30),
                seed=1,
                identity="i",
                device=CPU,
                progress=progress,
            )
        except Cut:
            continue
    assert all((block._compiled_call_impl is not None) == compiled for block in model.blocks)
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


if __name__ == "__main__":
    torch.set_num_threads(1)
    path, out = sys.argv[1], Path(sys.argv[2])
    nn.Module.compile = partialmethod(nn.Module.compile, backend="aot_eager")  # type: ignore[method-assign, assignment]
    found = {
        "plain": losses(path, out / "plain", compiled=False),
        "compiled": losses(path, out / "compiled", compiled=True),
        "resumed": losses(path, out / "resumed", compiled=True, cut_once=True),
        "graphs": torch._dynamo.utils.counters["stats"]["unique_graphs"],
    }
    print(json.dumps(found))
