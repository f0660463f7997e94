"""Run by test_runs.py in a process of its own: trains and says every step, so that it can be killed at one.

python train_until_killed.py STORE RUN
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from activault.store import open_store
from activault.train import StageProgress, parse_recipe, train

STAGE = {
    "steps": 12,
    "batch_size": 8,
    "warmup_steps": 2,
    "learning_rate": 1e-2,
    "checkpoint_every": 3,
    "log_every": 2,
}
RECIPE = {"store": "s", "cuts": [2], "seed": 3, "stage1": STAGE, "stage2": STAGE}


def tell(state: StageProgress) -> None:
    print(f"{state.stage} {state.step}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    store, out = sys.argv[1:]
    train(parse_recipe(RECIPE), Path(out), store=open_store(store), cuts=(2,), device="cpu", progress=tell)
