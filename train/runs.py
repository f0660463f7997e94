"""A run: one recipe against one store, in a folder of its own that can be left and taken up at any step.

    RUN/run.json             recipe, phases, model, token layout, store digest, versions; written first
    RUN/phase_1/ ...         stage 1, a folder a phase
    RUN/closed_loop/         stage 2
    RUN/model.safetensors    the trained model
    RUN/seal.json            hashes of the model and of run.json; written last

`train(recipe, out, store=..., teacher_blocks=..., cuts=...)` makes or resumes it, `load_run(out)` reads it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from activault.store import Store, split_rows
from activault.store.errors import ConfigError, IncompleteStoreError, RunError
from activault.store.files import file_sha256
from activault.store.layout import TokenLayout, require_all_tokens

from .checkpoint import disk_errors, one_line, write_atomically, write_json
from .closed_loop import closed_loop_stage
from .raptor import Raptor, RaptorConfig
from .recipe import TrainRecipe
from .run_folder import alone_in, open_run, read_run
from .stages import ProgressCallback, Stage, StageResult
from .teacher_forced import phase_stages
from .teacher_init import plain_width
from .trainer import run_stage

__all__ = ["Run", "RunSummary", "load_run", "raptor_config", "train"]

SEAL = "seal.json"


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """What a finished run leaves to say."""

    path: Path
    """The run's folder."""
    cuts: tuple[int, ...]
    """Its phases."""
    stages: tuple[StageResult, ...]
    """Every stage, in order."""
    num_parameters: int
    """Learned values of the model."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A finished run, ready to roll out."""

    path: Path
    """The run's folder."""
    model: Raptor
    """The trained model, on the CPU, in eval mode."""
    recipe: TrainRecipe
    """What it was trained by."""
    cuts: tuple[int, ...]
    """Its phases."""
    layout: TokenLayout
    """Token layout it was trained at."""
    store_digest: str
    """Content of the store it was trained on."""
    teacher_sha256: str
    """Weights of the teacher whose layers it replays."""


def train(
    recipe: TrainRecipe,
    out: Path | str,
    *,
    store: Store,
    cuts: Sequence[int],
    teacher_blocks: Sequence[nn.Module] | None = None,
    device: torch.device | str = "cpu",
    progress: ProgressCallback | None = None,
) -> RunSummary:
    """Train a recipe to its end in the folder `out`, going on from what an earlier start left there.

    `cuts` are the phases, found or given; `teacher_blocks` are needed where blocks start from the teacher's.
    `device` is one that is there, or its name; finding one is the caller's.

    Raises:
        ConfigError: the recipe, the phases or the teacher's blocks do not fit the store.
        IncompleteStoreError: the store has unfinished shards.
        RunError: `out` holds something else or another run, or training failed.
        KeyboardInterrupt: Ctrl-C, after a checkpoint.
    """
    out, cuts, chosen = Path(out), tuple(int(cut) for cut in cuts), torch.device(device)
    if recipe.cuts is not None and recipe.cuts != cuts:
        raise ConfigError(f"the recipe gives cuts {list(recipe.cuts)}; got {list(cuts)} to train with")
    _check_store(store)
    rows = store.valid_rows if recipe.split == "all" else split_rows(store.samples, store.valid_rows)["train"]
    if not len(rows):
        remedy = "set split = 'all'" if recipe.split == "train" else "extract images that can be read"
        raise ConfigError(f"training needs rows; the store has none in split {recipe.split!r}: {remedy}")
    config = raptor_config(recipe, store, cuts)
    if recipe.teacher_block is not None and teacher_blocks is not None and config.mlp == "gelu":
        config = config.model_copy(update={"mlp_width": plain_width(teacher_blocks)})
    # The random state is the run's own: the same whatever was drawn before, and the caller's is left alone.
    with torch.random.fork_rng(devices=cuda_devices(chosen)):
        torch.manual_seed(recipe.seed)
        model = _initial_model(recipe, config, teacher_blocks).to(chosen)
        stages = _stages(recipe, model, store, chosen)
        identity = open_run(out, recipe, config, store)
        with alone_in(out):
            results = []
            for stage in stages:
                seed = _stage_seed(recipe.seed, stage.name)
                torch.manual_seed(seed)
                result = run_stage(
                    stage,
                    out / stage.name,
                    store=store,
                    rows=rows,
                    seed=seed,
                    identity=identity,
                    device=chosen,
                    progress=progress,
                )
                results.append(result)
            _write_model(out / "model.safetensors", model)
    return RunSummary(path=out, cuts=cuts, stages=tuple(results), num_parameters=model.num_parameters)


def load_run(path: Path | str) -> Run:
    """A finished run's model and what it was trained by.

    Raises:
        RunError: the folder is no run, or the run is not finished.
    """
    path = Path(path)
    record = read_run(path)
    if not (path / "model.safetensors").exists():
        raise RunError(f"{path} holds a run that is not finished; start `activault train` again to finish it")
    if not _sealed(path / "model.safetensors"):
        raise RunError(
            f"model.safetensors or run.json in {path} is not what was written; start the same `activault "
            "train` again, which makes the model from its checkpoints"
        )
    try:
        model = Raptor(RaptorConfig.model_validate(record["model"]))
        model.load_state_dict(load_file(path / "model.safetensors"), strict=True)
        return Run(
            path=path,
            model=model.eval(),
            recipe=TrainRecipe.model_validate(record["recipe"]),
            cuts=model.config.cuts,
            layout=TokenLayout.model_validate(record["layout"]),
            store_digest=str(record["store_digest"]),
            teacher_sha256=str(record["teacher_sha256"]),
        )
    except (OSError, KeyError, ValidationError, SafetensorError, RuntimeError) as exc:
        raise RunError(
            f"{path} does not hold a run that this program can read: {one_line(exc)}; train it anew elsewhere"
        ) from exc


def raptor_config(recipe: TrainRecipe, store: Store, cuts: Sequence[int]) -> RaptorConfig:
    """The model's shape: the recipe's kind, the store's widths, the phases.

    Raises:
        ConfigError: the phases do not fit the store's layers.
    """
    teacher = store.manifest.teacher
    kind = recipe.model.model_dump()
    if teacher.num_heads is None:
        raise ConfigError(
            f"the store does not know how many attention heads its teacher ({teacher.name}) has; give them "
            "when it is imported: `activault import --heads N`"
        )
    try:
        return RaptorConfig(
            dim=teacher.dim,
            num_heads=teacher.num_heads,
            num_layers=teacher.num_blocks,
            cuts=tuple(cuts),
            **kind,
        )
    except ValidationError as exc:
        raise ConfigError(exc.errors()[0]["msg"].removeprefix("Value error, ")) from exc


def cuda_devices(device: torch.device) -> list[int]:
    """Index of the CUDA device that the run draws on, if it is one."""
    if device.type != "cuda":
        return []
    return [torch.cuda.current_device() if device.index is None else device.index]


def _check_store(store: Store) -> None:
    """Training reads every layer and every token of every row."""
    if not store.complete:
        raise IncompleteStoreError(
            f"training needs a complete store and {store.path} is not; finish its extraction"
        )
    missing = sorted(set(range(store.manifest.teacher.num_blocks + 1)) - set(store.layers))
    if missing:
        raise ConfigError(
            f"training needs all layers and the store lacks {missing}; extract with --layers all"
        )
    require_all_tokens(store.layout, store.kinds, "training")


def _initial_model(recipe: TrainRecipe, config: RaptorConfig, blocks: Sequence[nn.Module] | None) -> Raptor:
    model = Raptor(config)
    if recipe.teacher_block is not None:
        if blocks is None:
            raise ConfigError(
                f"init {recipe.init!r} needs the teacher's blocks; use init = 'random' without a teacher"
            )
        model.init_from_blocks(blocks, recipe.teacher_block)
    return model


def _write_model(path: Path, model: Raptor) -> None:
    """The trained model and, last, its seal; both again where they do not agree."""
    if _sealed(path):
        return
    with disk_errors(path):
        for leftover in path.parent.glob(f"{path.name}.*.tmp"):
            leftover.unlink()
    tensors = {name: tensor.cpu().contiguous() for name, tensor in model.state_dict().items()}
    write_atomically(path, lambda temporary: save_file(tensors, temporary))
    write_json(path.with_name(SEAL), _seal(path))


def _seal(path: Path) -> dict[str, str]:
    """Hashes of a run's model and of the `run.json` that says what it is."""
    return {"model": file_sha256(path), "run": file_sha256(path.with_name("run.json"))}


def _sealed(path: Path) -> bool:
    """Whether a run's model and `run.json` are there and are what was written."""
    try:
        seal = json.loads(path.with_name(SEAL).read_text(encoding="utf-8"))
        return bool(seal == _seal(path))
    except (OSError, ValueError):
        return False


def _stages(recipe: TrainRecipe, model: Raptor, store: Store, device: torch.device) -> list[Stage]:
    """The stages in the order they run; those of 0 steps are left out.

    All are made before the first one is trained: a fault in the last is told while nothing is lost.
    """
    stages = list(phase_stages(model, recipe.stage1, store, device)) if recipe.stage1.steps else []
    if recipe.stage2.steps:
        stages.append(closed_loop_stage(model, recipe.stage2, store, device))
    return stages


def _stage_seed(seed: int, name: str) -> int:
    """A seed of its own for every stage, so that phases do not see the same rows in the same order."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:4], "big")
