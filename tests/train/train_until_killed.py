"""Run by test_runs.py in a process of its own: trains, and kills itself after the named step.

python train_until_killed.py STORE RUN RECIPE_AS_JSON STAGE STEP
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch

from activault.store import open_store
from activault.train import StageProgress, parse_recipe, train

if __name__ == "__main__":
    torch.set_num_threads(1)
    store, out, recipe, stage, step = sys.argv[1:]

    def die_there(state: StageProgress) -> None:
        if (state.stage, state.step) == (stage, int(step)):
            os.kill(os.getpid(), signal.SIGKILL)

    train(
        parse_recipe(json.loads(recipe)),
        Path(out),
        store=open_store(store),
        cuts=(2,),
        device="cpu",
        progress=die_there,
    )
