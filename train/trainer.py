"""The training loop, the same for every stage.

    batches (batch, layers, tokens, dim) of one stage's layers  ->  a trained module, and its folder:

    STAGE/checkpoint.json, step_*.safetensors    the last checkpoint
    STAGE/metrics.jsonl                          one line every `log_every` steps, no step twice

A stage that is cut anywhere, by Ctrl-C or SIGKILL, goes on from its last checkpoint, and on a CPU ends with
the same weights bit for bit. No step waits for the device: losses stay there until they are logged or saved.
"""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from activault.store import ActivationLoader, Batch, Store
from activault.store.errors import RunError

from .checkpoint import Checkpoint, disk_errors, load_checkpoint, save_checkpoint, write_atomically
from .schedule import learning_rate_at
from .stages import ProgressCallback, Stage, StageProgress, StageResult

__all__ = ["run_stage"]


def run_stage(
    stage: Stage,
    folder: Path,
    *,
    store: Store,
    rows: np.ndarray,
    seed: int,
    identity: str,
    device: torch.device,
    progress: ProgressCallback | None = None,
) -> StageResult:
    """Train a stage to its end, from its last checkpoint if its folder has one.

    `progress` is told once at the start, with the step that training goes on from, and after every step; so
    a stage that was finished before is told once, as finished.

    Raises:
        RunError: the folder's checkpoint is another run's or unreadable, the disk is full or read-only, or
            the loss stopped being a number.
        KeyboardInterrupt: Ctrl-C, after the step that was under way and a checkpoint.
    """
    config = stage.config
    parameters = list(stage.module.parameters())
    optimizer = torch.optim.AdamW(
        parameters,
        lr=config.learning_rate,
        betas=(0.9, config.beta2),
        weight_decay=config.weight_decay,
        fused=device.type in ("cpu", "cuda"),
    )
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    saved = load_checkpoint(folder, stage.module, optimizer, identity=identity)
    step = saved.step if saved else 0
    if step > config.steps:
        raise RunError(
            f"stage {stage.name} has {config.steps} steps and its checkpoint is at {step}; remove {folder}"
        )
    losses = Losses(stage, pending=saved.pending if saved else [], logged=saved.last_loss if saved else None)
    metrics = MetricsFile(folder / "metrics.jsonl", last_step=step)
    loader = ActivationLoader(
        store,
        layers=stage.layers,
        batch_size=config.batch_size,
        seed=seed,
        rows=rows,
        drop_last=len(rows) >= config.batch_size,
    )
    if saved:
        loader.load_state_dict(saved.loader)
    started, waited = time.perf_counter(), 0.0
    stage.module.train()

    def tell() -> None:
        if progress:
            state = StageProgress(
                stage=stage.name, step=step, steps=config.steps, loss=losses.logged, wait_seconds=waited
            )
            progress(state)

    with closing(metrics), interrupt_flag() as interrupted, closing(endless(loader)) as batches:
        tell()
        while step < config.steps:
            asked = time.perf_counter()
            tokens = next(batches).tokens
            waited += time.perf_counter() - asked

            rate = learning_rate_at(
                step,
                steps=config.steps,
                peak=config.learning_rate,
                warmup_steps=config.warmup_steps,
                floor=config.floor,
            )
            for group in optimizer.param_groups:
                group["lr"] = rate
            loss = stage.objective(tokens.to(device), step)
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            norm = nn.utils.clip_grad_norm_(parameters, config.clip)
            optimizer.step()
            step += 1
            losses.add(loss.detach(), norm)

            finished, stopping = step == config.steps, interrupted.is_set()
            if finished or step % config.log_every == 0:
                mean, last_norm = losses.log(step)
                seconds = time.perf_counter() - started
                metrics.write(
                    step=step,
                    loss=mean,
                    learning_rate=rate,
                    gradient_norm=last_norm,
                    seconds=seconds,
                    wait_seconds=waited,
                )
            if finished or stopping or step % config.checkpoint_every == 0:
                losses.settle(step)
                metrics.sync()
                checkpoint = Checkpoint(
                    stage=stage.name,
                    step=step,
                    identity=identity,
                    loader=loader.state_dict(),
                    pending=losses.pending,
                    last_loss=losses.logged,
                )
                save_checkpoint(folder, checkpoint, stage.module, optimizer)
            tell()
            if stopping:
                raise KeyboardInterrupt
    assert losses.logged is not None, "a stage of at least one step has logged its last one"
    spent = time.perf_counter() - started
    return StageResult(name=stage.name, steps=step, loss=losses.logged, seconds=spent, wait_seconds=waited)


@dataclass
class Losses:
    """Losses of the steps since the last logged line; on the device until somebody has to know them."""

    stage: Stage
    pending: list[float]
    """Known losses since the last logged line."""
    logged: float | None
    """Mean of the last logged line."""
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
        values = torch.stack(self.fresh).tolist()
        for number, (loss, norm) in enumerate(values, start=step - len(values) + 1):
            if not (math.isfinite(loss) and math.isfinite(norm)):
                raise RunError(
                    f"training needs finite losses and gradients; stage {self.stage.name} has loss {loss} "
                    f"and gradient norm {norm} at step {number} of {self.stage.config.steps}; lower "
                    "learning_rate or raise warmup_steps"
                )
        self.pending.extend(loss for loss, _ in values)
        self.last_norm = values[-1][1]
        self.fresh.clear()

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
        with disk_errors(path):
            self._file = path.open("a", encoding="utf-8")

    def write(self, **values: int | float) -> None:
        """Append one line."""
        with disk_errors(self._path):
            self._file.write(json.dumps(values) + "\n")
            self._file.flush()

    def sync(self) -> None:
        """Bring the lines to the disk, before a checkpoint that stands for them."""
        with disk_errors(self._path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        with disk_errors(self._path):
            self._file.close()


def _is_up_to(last_step: int, line: str) -> bool:
    """Whether a line is of this step or one before; what a killed writer left unfinished is of none."""
    try:
        return int(json.loads(line)["step"]) <= last_step
    except (ValueError, KeyError, TypeError):
        return False


def endless(loader: ActivationLoader) -> Generator[Batch, None, None]:
    """The loader's stream, to be closed, and its threads with it, whatever ends the loop."""
    yield from loader.stream()


@contextmanager
def interrupt_flag() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets; the second one interrupts at once.

    Python delivers Ctrl-C between any two instructions, also half-way through an optimiser's update; the loop
    looks at the event where its state is whole. Outside the main thread, which gets no signals, it stays
    unset.
    """
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    previous = signal.getsignal(signal.SIGINT)

    def note(_number: int, _frame: object) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    signal.signal(signal.SIGINT, note)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, previous)
