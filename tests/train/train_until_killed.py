"""Run by test_runs.py in a process of its own: trains and says every step, so that it can be killed at one.

python train_until_killed.py STORE RUN RECIPE_AS_JSON
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from activault.store import open_store
from activault.train import StageProgress, parse_recipe, train


def tell(state: StageProgress) -> None:
    print(f"{state.stage} {state.step}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    store, out, recipe = sys.argv[1:]
    train(
        parse_recipe(json.loads(recipe)),
        Path(out),
        store=open_store(store),
        cuts=(2,),
        device="cpu",
        progress=tell,
    )
