"""What stands between a store and `train`: its phases, the tables of its grid, the cost beside its teacher.

recipe, store, run's folder  ->  ChosenPhases, CostComparison
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from activault.analyze import Cost as PhaseCost
from activault.analyze import max_cut_phases, max_num_phases
from activault.store import ConfigError, RunError, Store

from .phases import training_similarity
from .teachers import rotary_of

if TYPE_CHECKING:
    import torch

    from activault.extract.backbone import Backbone
    from activault.extract.rotary import RotaryTables
    from activault.train import CostComparison, Raptor, RaptorConfig, TrainRecipe

__all__ = [
    "COST",
    "ChosenPhases",
    "check_fit_of_phases",
    "chosen_phases",
    "config_of_phases",
    "cost_beside",
    "fit_grid",
]

COST = "cost.json"
"""The run's file of what its model costs beside the teacher."""


@dataclass(frozen=True, kw_only=True)
class ChosenPhases:
    """Phases to train with: given, found, or drawn as a control."""

    cuts: tuple[int, ...] = ()
    """Layers that end a phase, where phases are contiguous."""
    groups: tuple[tuple[int, ...], ...] | None = None
    """Layers of each block, where they are not."""


def chosen_phases(recipe: TrainRecipe, store: Store, out: Path, *, quiet: bool) -> ChosenPhases:
    """The recipe's phases, or those of a run that was begun, or the store's own, or a control for these.

    A begun run is not looked into twice: `train` holds what stands there against the recipe.

    Raises:
        ConfigError: the recipe's phases are not those of so many layers.
        RunError: the run's record is damaged.
    """
    from activault.train.phases import phases_of_cuts, random_cuts, shuffled_groups
    from activault.train.run_folder import read_run

    num_layers = store.manifest.teacher.num_blocks
    check_fit_of_phases(recipe, store)
    if recipe.cuts is not None or recipe.groups is not None:
        return ChosenPhases(cuts=recipe.cuts or (), groups=recipe.groups)
    assert recipe.num_phases is not None, "a recipe has cuts, groups or num_phases"
    if (out / "run.json").exists():
        return _phases_there(out, read_run(out).get("model", {}))
    if recipe.control == "random":
        return ChosenPhases(cuts=random_cuts(num_layers, recipe.num_phases, recipe.control_seed))
    found = max_cut_phases(training_similarity(store, quiet=quiet), recipe.num_phases, recipe.cost).cuts
    if recipe.control == "shuffled":
        phases = phases_of_cuts(found, num_layers)
        return ChosenPhases(groups=shuffled_groups(phases, recipe.control_seed))
    return ChosenPhases(cuts=found)


def _phases_there(out: Path, model: dict[str, Any]) -> ChosenPhases:
    """What a run's own record says; `train` holds it against the layers."""
    cuts, groups = model.get("cuts", ()), model.get("groups")
    try:
        return ChosenPhases(
            cuts=tuple(int(cut) for cut in cuts),
            groups=None if groups is None else tuple(tuple(map(int, group)) for group in groups),
        )
    except (TypeError, ValueError) as exc:
        raise RunError(
            f"a run's phases are layers; {out / 'run.json'} has cuts {cuts!r:.80} and groups {groups!r:.80}: "
            "restore it, or choose another folder"
        ) from exc


def check_fit_of_phases(recipe: TrainRecipe, store: Store) -> None:
    """Hold what a recipe says of its phases against the store's layers, before anything is read.

    Raises:
        ConfigError: there are not so many layers.
    """
    from activault.train.phases import phases_of

    num_layers, k = store.manifest.teacher.num_blocks, recipe.num_phases
    if k is not None:
        least = 2 if recipe.control == "shuffled" else 1
        most = num_layers if recipe.control == "random" else max_num_phases(num_layers, recipe.cost)
        most = min(most, num_layers - 1) if recipe.control == "shuffled" else most
        if not least <= k <= most:
            raise ConfigError(
                f"the recipe's phases do not fit the {num_layers} blocks of {store.path}: num_phases is "
                f"{least} to {most} with cost = {recipe.cost!r} and control = {recipe.control!r}; got {k}"
            )
        return
    try:
        phases_of(recipe.cuts or (), recipe.groups, num_layers)
    except ValueError as exc:
        raise ConfigError(
            f"the recipe's phases do not fit the {num_layers} blocks of {store.path}: {exc}"
        ) from exc


def config_of_phases(store: Store, k: int, *, cost: PhaseCost = "ncut", quiet: bool) -> RaptorConfig:
    """The shape of a Raptor of k phases found from the store, for baselines without a run beside them.

    Raises:
        ConfigError: k does not fit the layers.
    """
    from activault.train import RaptorConfig

    teacher = store.manifest.teacher
    cuts = max_cut_phases(training_similarity(store, quiet=quiet), k, cost).cuts
    return RaptorConfig(dim=teacher.dim, num_heads=1, num_layers=teacher.num_blocks, cuts=cuts)


def fit_grid(model: Raptor, store: Store, tables: RotaryTables | None = None) -> None:
    """Give a surrogate with rotary positions the tables of the store's grid, another one than its own or not.

    `tables` are read from the teacher's files where the caller has not read them already.

    Raises:
        ConfigError: the store's teacher has none.
    """
    if model.config.rotary is None:
        return
    tables = tables or rotary_of(store)
    if tables is None:
        raise ConfigError(
            f"the surrogate has its teacher's rotary positions, and {store.path} has no tables for its grid; "
            "take a store that `activault extract` made"
        )
    model.use_rotary(tables)


def cost_beside(
    recipe: TrainRecipe,
    store: Store,
    phases: ChosenPhases,
    teacher: Backbone | None,
    tables: RotaryTables | None,
    out: Path,
    device: torch.device,
) -> CostComparison | None:
    """Parameters, MACs and latency of the recipe's model beside its teacher's; measured once a run.

    They are kept in the run's `cost.json`, so that a run that goes on does not measure again. None in all
    processes but the first.
    """
    import torch

    from activault.train import Raptor, compare_cost
    from activault.train.distributed import place_in
    from activault.train.run_setup import raptor_config

    if place_in().rank:
        return None
    if kept := _kept_cost(out / COST):
        return kept
    blocks = None if teacher is None else list(teacher.to(device).blocks)
    config = raptor_config(recipe, store, phases.cuts, phases.groups, tables, blocks)
    with torch.random.fork_rng(devices=[]):
        model = Raptor(config).to(device).eval()
    try:
        return compare_cost(model, blocks, tokens=store.layout.num_tokens, batch_size=1)
    finally:
        if teacher is not None:
            teacher.cpu()  # it trains nothing, and a GPU's memory is for what does


def _kept_cost(path: Path) -> CostComparison | None:
    """What an earlier start measured; None if it has to be measured, as where the file is damaged."""
    from activault.train import CostComparison

    try:
        return CostComparison.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None
