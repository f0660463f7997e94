"""An addition of rows that kills its own process on the way; the target of a process of `fork_server`."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path


def append_until(images: Path, store: Path, row: int, renames: int) -> None:
    """Append, until `row` rows are done and a shard is published, or until that many renames of a join."""
    import torch

    from activault.extract import append

    torch.set_num_threads(1)
    replace, left = os.replace, [renames]

    def progress(done: int, _: int) -> None:
        if done >= row:
            while not (store / ".growing/shards/00001.json").exists():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)

    def renamed(source: str, target: str) -> None:
        left[0] -= ".joining" in str(source)
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        replace(source, target)

    os.replace = renamed  # type: ignore[assignment]
    append(images, store, progress, batch_size=1, workers=2, device="cpu")
