"""The training loop, the same for every stage.

    batches (batch, layers, tokens, dim) of one stage's layers  ->  a trained module, and its folder:

    STAGE/stage.json                             the stage's complete config, and its hash
    STAGE/checkpoint.json, step_*.safetensors    the last checkpoints (`checkpoint.py`)
    STAGE/best.json, best_*.safetensors          the best one, where there are validations (`best.py`)
    STAGE/metrics.jsonl                          lines of losses and validations, no step twice (`ledger.py`)

A stage that is cut anywhere, by Ctrl-C, SIGTERM or SIGKILL, goes on from its last checkpoint, and on a CPU
ends with the same weights bit for bit. No step waits for the device: losses stay there until they are logged
or saved. Several processes run the loop in step, each on its own part of every batch; the first one writes.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing, nullcontext
from pathlib import Path

import numpy as np
import torch

from activault.store import ActivationLoader, Batch, Store
from activault.store.errors import ConfigError

from .best import Best, read_best, save_best
from .checkpoint import Checkpoint, disk_errors, load_checkpoint, save_checkpoint
from .distributed import ALONE, Agreement, Peers
from .feeding import stage_loader
from .interrupts import interrupt_flag
from .ledger import Line, Losses, MetricsFile, warn_if_diverged
from .resuming import check_step, go_to
from .stages import ProgressCallback, Stage, StageProgress, StageResult, record_stage
from .updates import Updates
from .validation import validate
from .watching import Watcher

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
    held_out: np.ndarray | None = None,
    peers: Peers = ALONE,
    pool_bytes: int | None = None,
    watchers: Sequence[Watcher] = (),
    progress: ProgressCallback | None = None,
) -> StageResult:
    """Train a stage to its end, from its last checkpoint if its folder has one.

    `rows` are learned from and `held_out` validated on; `pool_bytes` is the loader's, of all processes
    together. In the first process, `progress` is told once at the start, with the step that training goes on
    from, and after every step; so a stage that was finished before is told once, as finished. There too,
    `watchers` are told every line.

    Raises:
        ConfigError: the processes cannot share out a batch, or there is nothing to validate on.
        RunError: the folder's checkpoint is another run's or unreadable, the disk is full or read-only, or
            a loss or a weight stopped being a number.
        KeyboardInterrupt: Ctrl-C or SIGTERM in any process, after the step that was under way and a
            checkpoint.
    """
    loop = _Loop(stage, folder, store=store, seed=seed, identity=identity, device=device, peers=peers)
    loop.held_out, loop.pool_bytes, loop.progress = held_out, pool_bytes, progress
    try:
        loop.resume(rows, watchers)
        result = loop.run()
        peers.on_first(loop.close)
    finally:
        loop.close()
    return result


class _Loop:
    """One stage under way."""

    def __init__(
        self,
        stage: Stage,
        folder: Path,
        *,
        store: Store,
        seed: int,
        identity: str,
        device: torch.device,
        peers: Peers,
    ) -> None:
        self.stage, self.config, self.folder = stage, stage.config, folder
        self.store, self.seed, self.identity = store, seed, identity
        self.device, self.peers = device, peers
        self.held_out: np.ndarray | None = None
        self.pool_bytes: int | None = None
        self.progress: ProgressCallback | None = None
        self.watchers: Sequence[Watcher] = ()
        self.metrics: MetricsFile | None = None
        self.updates = Updates(stage, device=device, seed=seed, peers=peers)
        self.step, self.waited, self.started = 0, 0.0, time.perf_counter()
        self.best: Best | None = None

    def resume(self, rows: np.ndarray, watchers: Sequence[Watcher]) -> None:
        """Go to the last checkpoint, or to the start."""
        with disk_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        saved = load_checkpoint(
            self.folder,
            self.stage.module,
            self.updates.optimizer,
            identity=self.identity,
            ema=self.updates.ema,
        )
        self.step = saved.step if saved else 0
        if saved:
            check_step(self.stage, self.folder, saved)
        self.losses = Losses(
            self.stage,
            pending=saved.pending if saved else [],
            logged=saved.last_loss if saved else None,
            peers=self.peers,
        )
        self.validation = saved.last_validation if saved else None
        self.best = read_best(self.folder, identity=self.identity, up_to=self.step)
        self._check_held_out()
        self.loader = stage_loader(
            self.stage,
            self.store,
            rows,
            seed=self.seed,
            device=self.device,
            peers=self.peers,
            pool_bytes=self.pool_bytes,
        )
        if saved:
            go_to(self.loader, self.folder, saved, batch_size=self.config.batch_size)
        self.peers.on_first(lambda: self._open(rows, watchers))

    def _check_held_out(self) -> None:
        if self.config.validate_every and (self.held_out is None or not len(self.held_out)):
            raise ConfigError(
                f"a validation needs rows that are held out; stage {self.stage.name} validates every "
                f"{self.config.validate_every} steps on no rows; set validation to the part of the training "
                "rows to hold out, such as 0.05"
            )

    def _open(self, rows: np.ndarray, watchers: Sequence[Watcher]) -> None:
        """Make the files ready that the first process writes."""
        record_stage(
            self.folder,
            self.stage,
            seed=self.seed,
            num_rows=len(rows),
            num_held_out=0 if self.held_out is None else len(self.held_out),
            run=self.identity,
        )
        self.metrics = MetricsFile(self.folder / "metrics.jsonl", last_step=self.step)
        self.watchers = watchers
        for watcher in watchers:
            watcher.begin(self.stage.name, self.metrics.kept)

    def run(self) -> StageResult:
        """The steps that are left."""
        self.stage.module.train()
        self.started = time.perf_counter()
        with ExitStack() as stack:
            interrupted = stack.enter_context(interrupt_flag(patient=self.peers.world > 1))
            batches = stack.enter_context(closing(endless(self.loader)))
            agreement = stack.enter_context(closing(Agreement(self.peers)))
            self._tell()
            while self.step < self.config.steps:
                asked = time.perf_counter()
                batch = next(batches)
                self.waited += time.perf_counter() - asked
                tokens = batch.to(self.device, torch.float32).tokens
                loss, norm = self.updates(tokens, self.step)
                self.step += 1
                self.losses.add(loss, norm)
                stopping = agreement.to_stop(interrupted.is_set())
                self._write_down(stopping)
                self._tell()
                if stopping:
                    raise KeyboardInterrupt
            if agreement.last_word(interrupted.is_set()):  # asked for in the last step, which is saved
                raise KeyboardInterrupt
        assert self.losses.logged is not None, "a stage of at least one step has logged its last one"
        if self.metrics is not None:
            warn_if_diverged(self.stage, self.metrics.first_loss, self.losses.logged)
        return StageResult(
            name=self.stage.name,
            steps=self.step,
            loss=self.losses.logged,
            seconds=time.perf_counter() - self.started,
            wait_seconds=self.waited,
            validation=self.validation,
            best_step=self.best.step if self.best else None,
        )

    def _write_down(self, stopping: bool) -> None:
        """Log, validate and save where this step is one to do so at."""
        config, step, finished = self.config, self.step, self.step == self.config.steps
        if finished or step % config.log_every == 0:
            mean, norm = self.losses.log(step)
            self._line(
                {
                    "step": step,
                    "loss": mean,
                    "learning_rate": self.updates.learning_rate,
                    "gradient_norm": norm,
                    "seconds": time.perf_counter() - self.started,
                    "wait_seconds": self.waited,
                }
            )
        validating = config.validate_every and (finished or step % config.validate_every == 0)
        if validating:
            self._validate()
        if finished or stopping or validating or step % config.checkpoint_every == 0:
            self._save()

    def _line(self, line: Line) -> None:
        """Write a line, and tell it to who watches; fails in all processes if it fails in the first."""

        def write() -> None:
            assert self.metrics is not None, "the first process writes"
            self.metrics.write(line)
            for watcher in self.watchers:
                watcher.write(self.stage.name, line)

        self.peers.on_first(write)

    def close(self) -> None:
        """Close what this process writes."""
        if self.metrics is not None:
            self.metrics.close()

    def _validate(self) -> None:
        """Measure the weights, or their average where there is one, and keep the best."""
        self.losses.settle(self.step)
        assert self.held_out is not None, "checked when the loader was made"
        ema = self.updates.ema
        with nullcontext() if ema is None else ema.in_place():
            measured = validate(self.stage, self.store, self.held_out, device=self.device, peers=self.peers)
        self.validation = measured.mean_r2
        figures = {"mean_r2": measured.mean_r2, **measured.to_dict()}
        self._line({"step": self.step, "validation": figures})
        if self.best is None or measured.mean_r2 > self.best.value:
            best = Best(step=self.step, value=measured.mean_r2, identity=self.identity, validation=figures)
            self.best = self.peers.on_first(lambda: save_best(self.folder, best, self.stage.module, ema))

    def _save(self) -> None:
        """A checkpoint of now; fails in all processes if it fails in the first."""
        self.losses.settle(self.step)
        checkpoint = Checkpoint(
            stage=self.stage.name,
            step=self.step,
            identity=self.identity,
            loader=self.loader.state_dict(),
            pending=self.losses.pending,
            last_loss=self.losses.logged,
            last_validation=self.validation,
        )

        def write() -> None:
            assert self.metrics is not None, "the first process writes"
            self.metrics.sync()
            save_checkpoint(
                self.folder,
                checkpoint,
                self.stage.module,
                self.updates.optimizer,
                ema=self.updates.ema,
                keep=self.config.keep,
            )

        self.peers.on_first(write)

    def _tell(self) -> None:
        if self.progress is None or not self.peers.is_first:
            return
        self.progress(
            StageProgress(
                stage=self.stage.name,
                step=self.step,
                steps=self.config.steps,
                loss=self.losses.logged,
                wait_seconds=self.waited,
                validation=self.validation,
            )
        )


def endless(loader: ActivationLoader) -> Generator[Batch, None, None]:
    """The loader's stream, to be closed, and its threads with it, whatever ends the loop."""
    yield from loader.stream()
