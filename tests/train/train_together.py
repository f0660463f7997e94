"""Run by test_distributed.py: two processes that train together, one scene after the other.

python train_together.py STORE FOLDER < {"scene": RECIPE, ...}    FOLDER/scene is the run, FOLDER/scene.json
                                                                  what each process ended with

The processes are forked from this one, so that torch is imported once. The scene `interrupted` gives the
second one a Ctrl-C in the third step of the closed loop; `torchrun` has the store that torchrun keeps for its
workers. The first one finds the disk full at its second line in `full`, and at the end in `full-at-last`.
"""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # what DDP imports, once and not in every process
import torch.distributed as dist

from activault.store import ActivaultError, open_store
from activault.train import parse_recipe, train
from activault.train.distributed import Agreement
from activault.train.ledger import MetricsFile
from activault.train.metrics_table import MetricsTable


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


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


def one_process(store: str, folder: Path, scene: str, recipe: dict[str, Any]) -> str:
    torch.set_num_threads(1)
    if scene == "interrupted" and os.environ["RANK"] == "1":
        press_at(2 * 6 + 3)  # two phases of six steps come first
    if scene == "full" and os.environ["RANK"] == "0":
        fill_at(2)
    if scene == "full-at-last" and os.environ["RANK"] == "0":
        fill_at_last()
    try:
        train(parse_recipe(recipe), folder / scene, store=open_store(store), cuts=(2,), device="cpu")
    except KeyboardInterrupt:
        return "interrupted"
    except (ActivaultError, OSError, RuntimeError) as exc:
        return f"{type(exc).__name__}: {exc}"
    return "finished"


def fork(rank: int, port: int, *given: Any) -> tuple[int, int]:
    """Process and the end of the pipe that its last word comes through."""
    read, write = os.pipe()
    if pid := os.fork():
        os.close(write)
        return pid, read
    try:
        place = {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in place.items()})
        os.write(write, one_process(*given).encode())
    finally:
        os._exit(0)


if __name__ == "__main__":
    store, out = sys.argv[1], Path(sys.argv[2])
    for scene, recipe in json.load(sys.stdin).items():
        port = free_port()
        if scene == "torchrun":
            os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
        processes = [fork(rank, port, store, out, scene, recipe) for rank in range(2)]
        kept = dist.TCPStore("127.0.0.1", port, is_master=True) if scene == "torchrun" else None
        words = [os.read(read, 10_000).decode() for _, read in processes]
        for pid, _ in processes:
            os.waitpid(pid, 0)
        (out / f"{scene}.json").write_text(json.dumps(words))
