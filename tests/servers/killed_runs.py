"""Extractions and trainings that are killed or interrupted on the way: targets for `fork_server`."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

INTERRUPTED = 130
"""Exit status after Ctrl-C."""


def extract_until(images: Path, store: Path, options: Any, number: int, row: int, shard: int) -> None:
    """Extract, and send this process a signal when so many rows are done and that shard is finished.

    Args:
        images: the source.
        store: where to.
        options: `ExtractOptions`.
        number: the signal.
        row: rows that are done at least.
        shard: its record is there: publishing goes on in a thread, and the signal comes after it, not before.
    """
    import torch

    from activault.extract import extract

    torch.set_num_threads(1)

    def progress(done: int, _: int) -> None:
        if done >= row:
            while not (store / f"shards/{shard:05d}.json").exists():
                time.sleep(0.01)
            os.kill(os.getpid(), number)

    try:
        extract(images, store, options, progress=progress)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def train_until(store: Path, out: Path, recipe: dict[str, Any], stage: str, step: int) -> None:
    """Train with one cut, after layer 2, and kill this process after a step of a stage."""
    import torch

    from activault.store import open_store
    from activault.train import StageProgress, parse_recipe, train

    torch.set_num_threads(1)

    def die_there(state: StageProgress) -> None:
        if (state.stage, state.step) == (stage, step):
            os.kill(os.getpid(), signal.SIGKILL)

    given = parse_recipe(recipe)
    train(given, out, store=open_store(store), cuts=(2,), device="cpu", progress=die_there)
