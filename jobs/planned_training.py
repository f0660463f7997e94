"""What a recipe would do, without a step of it: `activault train --dry-run`.

    recipe file, overrides  ->  TrainingPlan: hash, phases, steps and epochs, cost, memory of a step

What depends on the store (rows, widths, cost, memory) is known once the store is there; no array is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from activault.store import ActivaultError, Store, open_store

from . import console
from .sweep_result import hash_of
from .teachers import rotary_of, teacher_if_there
from .training import check_fit_of_phases

if TYPE_CHECKING:
    from activault.train import CostComparison, Raptor, TrainRecipe

__all__ = ["PlannedStage", "StepMemory", "TrainingPlan", "plan_training", "show_plan"]


@dataclass(frozen=True, kw_only=True)
class PlannedStage:
    """One stage, or the same one for each phase."""

    name: str
    """stage1 or stage2."""
    times: int
    """How often it is trained: once a phase, or once."""
    steps: int
    """Updates of one of them."""
    batch_size: int
    """Rows of an update; all there are where these are fewer."""
    epochs: float | None
    """Times that every row is seen; None without the store."""


@dataclass(frozen=True, kw_only=True)
class StepMemory:
    """Bytes of a closed-loop step in float32, beside what the loader and the libraries take."""

    weights: int
    """Weights, gradients and AdamW's two averages; one more where weights are averaged."""
    layers: int
    """The teacher's layers of a batch."""
    activations: int
    """What the way back needs of a batch, measured on one row."""

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.layers + self.activations


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """What a recipe would do."""

    recipe: str
    """Its file."""
    recipe_sha256: str
    """Hash of all its keys but the store's path."""
    phases: str
    """Its phases, or how they are found."""
    stages: tuple[PlannedStage, ...]
    """Those with steps."""
    store: str
    """Path of its store."""
    no_store: str | None
    """Why the store's part is not known."""
    num_rows: int | None = None
    """Rows to learn from."""
    num_held_out: int | None = None
    """Rows held out for validation."""
    cost: CostComparison | None = None
    """Parameters and multiply-accumulates beside the teacher's."""
    memory: StepMemory | None = None
    """Memory of a closed-loop step."""

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON takes it."""
        return {"dry_run": True, **asdict(self)}


def plan_training(path: Path, overrides: Sequence[str] = ()) -> TrainingPlan:
    """What a recipe would do; without its store, what the recipe alone says.

    Raises:
        ConfigError: the recipe does not fit, by itself or to its store.
        IncompleteStoreError: the store has unfinished shards.
    """
    from activault.train import load_recipe

    recipe = load_recipe(path, overrides)
    try:
        store = open_store(recipe.store)
    except ActivaultError as exc:
        return _planned(path, recipe, str(exc))
    return _with_store(path, recipe, store)


def _planned(path: Path, recipe: TrainRecipe, no_store: str | None, **known: Any) -> TrainingPlan:
    num_rows, k = known.get("num_rows"), recipe.total_phases
    stages = tuple(
        PlannedStage(
            name=name,
            times=times,
            steps=stage.steps,
            batch_size=stage.batch_size,
            epochs=stage.steps * min(stage.batch_size, num_rows) / num_rows if num_rows else None,
        )
        for name, times, stage in (("stage1", k, recipe.stage1), ("stage2", 1, recipe.stage2))
        if stage.steps
    )
    return TrainingPlan(
        recipe=str(path),
        recipe_sha256=hash_of(recipe.identity()),
        phases=_spoken_phases(recipe),
        stages=stages,
        store=recipe.store,
        no_store=no_store,
        **known,
    )


def _with_store(path: Path, recipe: TrainRecipe, store: Store) -> TrainingPlan:
    from activault.train import compare_cost
    from activault.train.run_setup import check_store, initial_model, raptor_config, rows_of

    check_store(store)
    check_fit_of_phases(recipe, store)
    rows, held_out = rows_of(recipe, store)
    teacher = teacher_if_there(store)
    blocks, tables = (list(teacher.blocks), teacher.rotary) if teacher else (None, rotary_of(store))
    cuts = recipe.cuts or ()
    if recipe.num_phases:
        # Cost does not depend on where phases are cut, but with low-rank parts, and then hardly.
        num_layers = store.manifest.teacher.num_blocks
        cuts = tuple(num_layers * number // recipe.num_phases for number in range(1, recipe.num_phases))
    config = raptor_config(recipe, store, cuts, recipe.groups, tables, blocks)
    model = initial_model(recipe.model_copy(update={"init": "random"}), config, None, tables)
    tokens = store.layout.num_tokens
    return _planned(
        path,
        recipe,
        None,
        num_rows=len(rows),
        num_held_out=len(held_out),
        cost=compare_cost(model, blocks, tokens=tokens, measure=False),
        memory=_memory(recipe, model, tokens, len(rows)),
    )


def _memory(recipe: TrainRecipe, model: Raptor, tokens: int, num_rows: int) -> StepMemory:
    """Memory of a closed-loop step, or of such a step with the first stage's batch where there is none."""
    stage = recipe.stage2 if recipe.stage2.steps else recipe.stage1
    rows = -(-min(stage.batch_size, num_rows) // stage.accumulate)
    copies = 4 + (stage.ema_decay > 0)
    num_layers, dim = model.config.num_layers, model.config.dim
    return StepMemory(
        weights=copies * sum(each.numel() * each.element_size() for each in model.parameters()),
        layers=4 * rows * (num_layers + 1) * tokens * dim,
        activations=rows * _saved_bytes(model, tokens, stage.gradient_checkpointing),
    )


def _saved_bytes(model: Raptor, tokens: int, checkpoint_every: int) -> int:
    """Bytes that a roll-out of one row keeps for the way back, each tensor once, weights aside."""
    import torch

    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, torch.Tensor] = {}  # the tensors themselves, so that no place is used twice

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    model.checkpoint_every = checkpoint_every
    row = torch.full((1, tokens, model.config.dim), 0.5)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(row)
    return sum(tensor.untyped_storage().nbytes() for place, tensor in kept.items() if place not in own)


def _spoken_phases(recipe: TrainRecipe) -> str:
    if recipe.cuts is not None:
        return f"{len(recipe.cuts) + 1}, cut after layers {', '.join(map(str, recipe.cuts)) or 'none'}"
    if recipe.groups is not None:
        return (
            f"{len(recipe.groups)}, groups {' and '.join('+'.join(map(str, each)) for each in recipe.groups)}"
        )
    how = f"found from the store's training rows by {recipe.cost}"
    controls = {"random": f"drawn as a control (seed {recipe.control_seed})"}
    controls["shuffled"] = f"{how}, and shuffled as a control (seed {recipe.control_seed})"
    return f"{recipe.num_phases}, {controls.get(recipe.control, how)} when the run starts"


def _spoken_rows(stage: PlannedStage, plan: TrainingPlan) -> str:
    """The rows of an update, and that it takes all of them where a batch wants more."""
    if plan.num_rows is None or stage.batch_size <= plan.num_rows:
        return f"{stage.batch_size:,} rows"
    return f"all {plan.num_rows:,} rows, which make no batch of {stage.batch_size:,}"


def show_plan(plan: TrainingPlan) -> None:
    """The plan as lines, and cost as a table."""
    from .show import show_cost

    lines = {"recipe": f"hash {plan.recipe_sha256[:16]}", "phases": plan.phases}
    for stage in plan.stages:
        times = f", for each of {stage.times} phases" if stage.times > 1 else ""
        epochs = f" ({stage.epochs:,.1f} epochs)" if stage.epochs is not None else ""
        lines[stage.name] = f"{stage.steps:,} steps of {_spoken_rows(stage, plan)}{epochs}{times}"
    if plan.no_store is not None:
        lines["store"] = f"cannot be opened, so that rows, cost and memory are not known: {plan.no_store}"
    if plan.num_rows is not None:
        lines["store"] = f"{plan.store}: {plan.num_rows:,} rows to learn from, {plan.num_held_out:,} held out"
    if plan.memory is not None:
        parts = {
            "weights, gradients and averages": plan.memory.weights,
            "layers": plan.memory.layers,
            "activations": plan.memory.activations,
        }
        spoken = ", ".join(f"{name} {console.human_bytes(size)}" for name, size in parts.items())
        lines["memory"] = f"a closed-loop step takes about {console.human_bytes(plan.memory.total)}: {spoken}"
    console.out.print(plan.recipe, style="bold", soft_wrap=True)
    for name, text in lines.items():
        console.out.print(f"  {name:<7} {text}", soft_wrap=True)
    if plan.cost is not None:
        show_cost(plan.cost)
