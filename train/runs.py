"""A run: one recipe against one store, in a folder of its own that can be left and taken up at any step.

    RUN/run.json             recipe, phases, model, token layout, store digest, versions; written first
    RUN/phase_1/ ...         stage 1, a folder a phase
    RUN/closed_loop/         stage 2
    RUN/metrics.parquet      what all stages wrote down
    RUN/model.safetensors    the trained model, and its kin (`finished.py`)
    RUN/seal.json            hashes of the models and of run.json; written last

`train(recipe, out, store=..., teacher_blocks=..., cuts=...)` makes or resumes it, `load_run(out)` reads it.
Phases depend on nothing but the recipe: `stage="phase_2"` trains one alone, beside others in other processes,
and the closed loop starts when all are finished.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from activault.store import Store
from activault.store.errors import ConfigError, RunError

from .checkpoint import load_checkpoint
from .closed_loop import closed_loop_stage
from .cost import CostComparison
from .distributed import Peers, joined
from .finished import write_models
from .metrics_table import MetricsTable
from .noise import seed_of
from .raptor import Raptor
from .recipe import TrainRecipe
from .rotary import RotaryTables
from .run_folder import alone_in, open_run
from .run_setup import check_phases, check_store, cuda_devices, initial_model, raptor_config, rows_of
from .stages import ProgressCallback, Stage, StageResult
from .teacher_forced import phase_stages
from .trainer import run_stage
from .watching import Watcher

__all__ = ["RunSummary", "train"]

CLOSED_LOOP = "closed_loop"


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """What a start of a run leaves to say."""

    path: Path
    """The run's folder."""
    cuts: tuple[int, ...]
    """Its phases, where they are contiguous."""
    stages: tuple[StageResult, ...]
    """Every stage that was asked for, in order."""
    num_parameters: int
    """Learned values of the model."""
    finished: bool = True
    """Whether the run is finished; it may not be where one stage alone was asked for."""
    groups: tuple[tuple[int, ...], ...] | None = None
    """Its phases, where they are not contiguous."""
    cost: CostComparison | None = None
    """Cost beside the teacher's, where the caller had it measured."""


def train(
    recipe: TrainRecipe,
    out: Path | str,
    *,
    store: Store,
    cuts: Sequence[int] = (),
    groups: Sequence[Sequence[int]] | None = None,
    teacher_blocks: Sequence[nn.Module] | None = None,
    rotary: RotaryTables | None = None,
    stage: str | None = None,
    device: torch.device | str = "cpu",
    watchers: Callable[[str], Sequence[Watcher]] | None = None,
    progress: ProgressCallback | None = None,
) -> RunSummary:
    """Train a recipe to its end in the folder `out`, going on from what an earlier start left there.

    `cuts`, or `groups` for phases that are not contiguous, are found or given; `teacher_blocks` are needed
    where blocks start from the teacher's, `rotary` where the teacher's positions are such. `stage` is the one
    stage to train. `device` is one that is there, or its name; finding one is the caller's. `watchers` makes
    those who watch, told the run's hash. Under torchrun or srun all processes call this alike.

    Raises:
        ConfigError: the recipe, the phases or the teacher's blocks do not fit the store.
        IncompleteStoreError: the store has unfinished shards.
        RunError: `out` holds something else or another run, training failed, or a closed loop was asked for
            before its phases are finished.
        KeyboardInterrupt: Ctrl-C or SIGTERM, after a checkpoint.
    """
    out, cuts = Path(out), tuple(int(cut) for cut in cuts)
    check_phases(recipe, cuts, groups)
    check_store(store)
    rows, held_out = rows_of(recipe, store)
    config = raptor_config(recipe, store, cuts, groups, rotary, teacher_blocks)
    # The random state is the run's own: the same whatever was drawn before, and the caller's is left alone.
    with (
        joined(torch.device(device)) as (peers, chosen),
        torch.random.fork_rng(devices=cuda_devices(chosen)),
    ):
        torch.manual_seed(recipe.seed)
        model = initial_model(recipe, config, teacher_blocks, rotary).to(chosen)
        stages = _stages(recipe, model, store, chosen)
        asked = _asked(stages, stage)
        identity = peers.on_first(lambda: open_run(out, recipe, config, store))
        names = [each.name for each in stages]
        if stage == CLOSED_LOOP:
            _restore(out, stages[:-1], identity)
        results = []
        with _watched(peers, [MetricsTable(out, names)], watchers, identity) as told:
            for each in asked:
                seed = seed_of(recipe.seed, each.name)
                torch.manual_seed(seed)
                with _stage_of_its_own(out / each.name, peers):
                    result = run_stage(
                        each,
                        out / each.name,
                        store=store,
                        rows=rows,
                        seed=seed,
                        identity=identity,
                        device=chosen,
                        held_out=held_out,
                        peers=peers,
                        pool_bytes=recipe.pool_bytes,
                        watchers=told,
                        progress=progress,
                    )
                results.append(result)
        finished = peers.on_first(lambda: _finish(out, model, stages, identity))
    return RunSummary(
        path=out,
        cuts=cuts,
        stages=tuple(results),
        num_parameters=model.num_parameters,
        finished=finished,
        groups=config.groups,
    )


def _asked(stages: Sequence[Stage], name: str | None) -> Sequence[Stage]:
    """All stages, or the one of this name."""
    if name is None:
        return stages
    if chosen := [each for each in stages if each.name == name]:
        return chosen
    names = ", ".join(each.name for each in stages) or "none"
    raise ConfigError(f"a stage is one of the recipe's ({names}); got {name!r}")


def _restore(out: Path, phases: Sequence[Stage], identity: str) -> None:
    """Put every phase's last weights into its block.

    Raises:
        RunError: a phase is not finished.
    """
    for each in phases:
        saved = load_checkpoint(out / each.name, each.module, identity=identity)
        if saved is None or saved.step < each.config.steps:
            reached = saved.step if saved else 0
            raise RunError(
                f"the closed loop starts from finished phases; {out / each.name} is at step {reached} of "
                f"{each.config.steps}: train it first, by --stage {each.name}"
            )


def _finish(out: Path, model: Raptor, stages: Sequence[Stage], identity: str) -> bool:
    """Write the run's models if every stage is finished; says whether it is."""
    with alone_in(out, wait=True):
        # What ends in the model: the closed loop, which has seen the phases, or the phases themselves.
        closed = bool(stages) and stages[-1].name == CLOSED_LOOP
        last = stages[-1:] if closed else stages
        for each in last:
            saved = load_checkpoint(out / each.name, each.module, identity=identity)
            if saved is None or saved.step < each.config.steps:
                return False
        prefixes = [""] if closed else [f"blocks.{number}." for number in range(len(last))]
        write_models(out, model, list(zip(prefixes, last, strict=True)), identity)
    return True


@contextmanager
def _stage_of_its_own(folder: Path, peers: Peers) -> Iterator[None]:
    """Hold the stage's folder, in the first process for all of them."""
    lock = alone_in(folder)
    peers.on_first(lock.__enter__)
    try:
        yield
    finally:
        if peers.is_first:
            lock.__exit__(None, None, None)


@contextmanager
def _watched(
    peers: Peers,
    own: Sequence[Watcher],
    make: Callable[[str], Sequence[Watcher]] | None,
    identity: str,
) -> Iterator[Sequence[Watcher]]:
    """Who watches in the first process, closed whatever happens; a failure to begin or end is everyone's."""
    watchers: list[Watcher] = []
    with ExitStack() as stack:

        def begin() -> None:
            watchers.extend([*own, *(make(identity) if make else ())])
            for watcher in reversed(watchers):
                stack.callback(watcher.close)

        peers.on_first(begin)
        yield watchers
        peers.on_first(stack.pop_all().close)


def _stages(recipe: TrainRecipe, model: Raptor, store: Store, device: torch.device) -> list[Stage]:
    """The stages in the order they run; those of 0 steps are left out.

    All are made before the first one is trained: a fault in the last is told while nothing is lost.
    """
    stages = list(phase_stages(model, recipe.stage1, store, device)) if recipe.stage1.steps else []
    if recipe.stage2.steps:
        stages.append(closed_loop_stage(model, recipe.stage2, store, device))
    return stages
