"""One of two processes that train together, a target for `fork_server`: scenes of `test_distributed.py`.

The scene `interrupted` gives the second process a Ctrl-C in the third step of the closed loop; the first one
finds the disk full at its second line in `full`, and at the end in `full-at-last`.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from activault.store import ActivaultError, open_store
from activault.train import parse_recipe, train
from activault.train.distributed import Agreement
from activault.train.ledger import MetricsFile
from activault.train.metrics_table import MetricsTable

__all__ = ["train_together"]
UPDATES = r"activault\.train\.updates\Z"


def press_at(steps: int) -> None:
    """Ctrl-C while the process agrees with the other one on so many steps."""
    whole, count = Agreement.to_stop, [0]

    def press(agreement: Agreement, wanted: bool) -> bool:
        count[0] += 1
        if count[0] == steps:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)
        return whole(agreement, wanted)

    Agreement.to_stop = press  # type: ignore[method-assign]


class Full(io.StringIO):
    """A file on a disk without room."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def fill_at(lines: int) -> None:
    """No room from this process's line of that number on."""
    whole, count = MetricsFile.write, [0]

    def write(file: MetricsFile, line: Mapping[str, Any]) -> None:
        count[0] += 1
        if count[0] == lines:
            file._file = Full()
        whole(file, line)

    MetricsFile.write = write  # type: ignore[method-assign]


def fill_at_last() -> None:
    """No room when the table is closed."""

    def close(_: MetricsTable) -> None:
        Full().write("")

    MetricsTable.close = close  # type: ignore[method-assign]


def train_together(
    environment: Mapping[str, str], store: Path, folder: Path, scene: str, recipe: dict[str, Any]
) -> None:
    """One of the processes: the run is `folder/scene`, what it ended with `folder/scene.RANK.txt`.

    Args:
        environment: what torchrun would have set: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
        store: the store to train from.
        folder: where runs and last words go.
        scene: what happens, by its name.
        recipe: as `parse_recipe` takes it.
    """
    os.environ.update(environment)
    torch.set_num_threads(1)
    warnings.filterwarnings("error", category=FutureWarning, module=UPDATES)
    rank = environment["RANK"]
    if scene == "interrupted" and rank == "1":
        press_at(2 * 6 + 3)  # two phases of six steps come first
    if scene == "full" and rank == "0":
        fill_at(2)
    if scene == "full-at-last" and rank == "0":
        fill_at_last()
    word = _last_word(store, folder / scene, recipe)
    (folder / f"{scene}.{rank}.txt").write_text(word)


def _last_word(store: Path, out: Path, recipe: dict[str, Any]) -> str:
    try:
        train(parse_recipe(recipe), out, store=open_store(store), cuts=(2,), device="cpu")
    except KeyboardInterrupt:
        return "interrupted"
    except (ActivaultError, OSError, RuntimeError) as exc:
        return f"{type(exc).__name__}: {exc}"
    return "finished"
