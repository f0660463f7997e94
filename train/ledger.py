"""What a stage writes down of its steps: losses that stay on the device until they are asked for, and lines.

    STAGE/metrics.jsonl     {"step": 50, "loss": ..., "learning_rate": ..., ...}   every `log_every` steps
                            {"step": 500, "validation": {...}}                     at every validation

No step is there twice: a stage that goes on from a checkpoint first cuts the file back to its step.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from activault.store.errors import RunError

from .checkpoint import disk_errors, write_atomically
from .distributed import ALONE, Peers
from .finite import ELSEWHERE, SLOWER
from .stages import Stage

__all__ = ["Line", "Losses", "MetricsFile", "lines_of", "warn_if_diverged"]

Line = dict[str, Any]
DIVERGED = 10
"""A loss may rise where teacher forcing gives way to the roll-out; not so many times."""


@dataclass
class Losses:
    """Losses of the steps since the last logged line; on the device until somebody has to know them."""

    stage: Stage
    pending: list[float]
    """Known losses since the last logged line."""
    logged: float | None
    """Mean of the last logged line."""
    peers: Peers = ALONE
    """Processes over whose rows a step's loss is a mean."""
    fresh: list[Tensor] = field(default_factory=list)
    """Loss and gradient norm of each step that has not been looked at, one tensor a step."""
    last_norm: float = math.nan

    def add(self, loss: Tensor, norm: Tensor) -> None:
        """Remember one step without waiting for it."""
        self.fresh.append(torch.stack([loss, norm]))

    def settle(self, step: int) -> None:
        """Bring the losses over and check them, `step` being the number of updates made.

        Raises:
            RunError: a loss or a gradient is NaN or infinite; names the stage and the first such step.
        """
        if not self.fresh:
            return
        values = self.peers.mean(torch.stack(self.fresh)).tolist()
        for number, (loss, norm) in enumerate(values, start=step - len(values) + 1):
            if not (math.isfinite(loss) and math.isfinite(norm)):
                raise RunError(self._divergence(number, loss, norm))
        self.pending.extend(loss for loss, _ in values)
        self.last_norm = values[-1][1]
        self.fresh.clear()

    def _divergence(self, number: int, loss: float, norm: float) -> str:
        """What a step's figures say that are no numbers, and what to do."""
        told = (
            f"training needs finite losses and gradients; stage {self.stage.name} has loss {loss} and "
            f"gradient norm {norm} at step {number} of {self.stage.config.steps}"
        )
        if number == 1 and not math.isfinite(loss):
            # No update was made: a learning rate has had no say yet.
            return (
                f"{told}, before any update: what the stage starts from is the cause; lower noise, "
                f"{ELSEWHERE}, or hold the store's values against what it records by "
                "`activault verify --values`"
            )
        return f"{told}; {SLOWER}"

    def log(self, step: int) -> tuple[float, float]:
        """Mean loss since the last logged line, and the last gradient norm; starts the next mean."""
        self.settle(step)
        self.logged = math.fsum(self.pending) / len(self.pending)
        self.pending.clear()
        return self.logged, self.last_norm


class MetricsFile:
    """`metrics.jsonl`, cut back to the step that training goes on from.

    Every method raises a RunError where the disk is full or read-only.
    """

    def __init__(self, path: Path, *, last_step: int) -> None:
        self._path = path
        with disk_errors(path):
            there = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        kept = [line for line in there.splitlines() if _is_up_to(last_step, line)]
        text = "".join(line + "\n" for line in kept)
        if text != there:
            write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
        self.kept: list[Line] = [json.loads(line) for line in kept]
        self.first_loss = next((line["loss"] for line in self.kept if "loss" in line), None)
        """Loss of the stage's first line; None where there is none yet."""
        with disk_errors(path):
            self._file = path.open("a", encoding="utf-8")

    def write(self, line: Mapping[str, Any]) -> None:
        """Append one line."""
        if self.first_loss is None:
            self.first_loss = line.get("loss")
        with disk_errors(self._path):
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()

    def sync(self) -> None:
        """Bring the lines to the disk, before a checkpoint that stands for them."""
        with disk_errors(self._path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        with disk_errors(self._path):
            self._file.close()


def warn_if_diverged(stage: Stage, first: float | None, last: float) -> None:
    """Warn of a stage whose last logged loss is far above its first one, finite as both are."""
    if first is not None and last > DIVERGED * first:
        warnings.warn(
            f"stage {stage.name} ended with loss {last:.3g} and began with {first:.3g}: it has diverged "
            f"rather than learned; {SLOWER}",
            RuntimeWarning,
            stacklevel=2,
        )


def lines_of(path: Path) -> list[Line]:
    """Whole lines of a stage's `metrics.jsonl`, which another process may be writing; none without one."""
    with disk_errors(path):
        there = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    return [json.loads(line) for line in there.splitlines() if _is_up_to(1 << 62, line)]


def _is_up_to(last_step: int, line: str) -> bool:
    """Whether a line is of this step or one before; what a killed writer left unfinished is of none."""
    try:
        return int(json.loads(line)["step"]) <= last_step
    except (ValueError, KeyError, TypeError):
        return False
