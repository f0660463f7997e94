"""What a sweep runs, before any of it: one TOML file becomes a list of runs, the same every time.

    SweepConfig (`sweep_config.py` shows a file)  ->  [PlannedRun(name, cell, seed, changes, overrides), ...]

A draw is a function of the sweep's seed, its number and its key alone, so that a longer sweep begins with the
shorter one's runs. A run's name, its folder, depends on the run alone, so that a sweep whose file has grown
finds what it has made.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import ValidationError

from activault.store import ConfigError

from .baselines import REPEATED, BaselineName
from .chosen_weights import LAST, ChosenWeights
from .sweep_config import Cell, Draw, RandomDraws, SweepConfig

if TYPE_CHECKING:
    from activault.train import TrainRecipe

__all__ = ["SEED_LIKE", "PlannedBaseline", "PlannedRun", "plan_runs"]

TABLES = ("model", "stage1", "stage2")
"""Tables of a recipe; whatever stands deeper is a value."""
LONGEST_NAME = 100
SEED_LIKE = "control_seed"
"""Draws of a control are compared as seeds are: by their mean and spread."""


@dataclass(frozen=True, kw_only=True)
class PlannedBaseline:
    """A model that is not trained."""

    name: BaselineName
    """Which one."""
    num_phases: int
    """Its phases; 1 for identity, which has none."""
    cost: Literal["ncut", "sum", "greedy"]
    """Cost by which they are found."""


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One run of a sweep, or one baseline beside the runs."""

    name: str
    """Its folder, and its name in tables."""
    cell: str
    """Its configuration, which runs of other seeds share."""
    seed: int | None
    """The recipe's seed; a baseline has none."""
    changes: Mapping[str, Any]
    """What it sets over the recipe, by dotted key."""
    overrides: tuple[str, ...]
    """The same as `--set` takes it."""
    recipe: TrainRecipe
    """The whole recipe; of a baseline, the one that its store and cost are from."""
    weights: ChosenWeights = LAST
    """Those of its weights that are measured."""
    baseline: PlannedBaseline | None = None
    """What it is where it is no run."""

    @property
    def num_steps(self) -> int:
        """Steps of all its stages."""
        if self.baseline is not None:
            return 0
        recipe = self.recipe
        return recipe.stage1.steps * recipe.total_phases + recipe.stage2.steps

    @property
    def num_updates(self) -> int:
        """Updates of each block: those of its phase alone and those of the closed loop."""
        return 0 if self.baseline is not None else self.recipe.stage1.steps + self.recipe.stage2.steps


def plan_runs(sweep: SweepConfig, folder: Path) -> list[PlannedRun]:
    """Every run in the order of the file, then the baselines; `folder` is that of the sweep's file.

    Raises:
        ConfigError: a run's recipe does not fit, or two runs are the same.
    """
    runs: dict[str, PlannedRun] = {}
    for run in itertools.chain(_trained(sweep, folder), _baselines(sweep, folder)):
        if run.name in runs:
            raise ConfigError(
                f"runs of a sweep differ by name; {run.name!r} comes twice: give its cells names of their own"
            )
        runs[run.name] = run
    return list(runs.values())


def _trained(sweep: SweepConfig, folder: Path) -> Iterator[PlannedRun]:
    for cell, named, words, seed, changes in _combinations(sweep):
        text = f"{' '.join([named, *words.values()])} seed={seed}"
        shared = " ".join([named, *(word for key, word in words.items() if key != SEED_LIKE)])
        overrides, name = _overrides(changes), _file_name(text.strip())
        recipe = _recipe(f"run {name!r} of the sweep", folder / sweep.recipe, overrides)
        ema = sweep.ema if cell.ema is None else cell.ema
        weights = ChosenWeights(which=cell.which or sweep.which, ema=ema)
        weights.check_kept(recipe, f"run {name!r} of the sweep")
        yield PlannedRun(
            name=name,
            cell=shared.strip() or "run",
            seed=seed,
            changes=changes,
            overrides=overrides,
            recipe=recipe,
            weights=weights,
        )


def _baselines(sweep: SweepConfig, folder: Path) -> Iterator[PlannedRun]:
    if sweep.baselines is None:
        return
    overrides = _overrides(_flat(sweep.set))
    recipe = _recipe("the sweep's baselines", folder / sweep.recipe, overrides)
    for name in sweep.baselines.names:
        for k in (1,) if name == "identity" else sweep.baselines.num_phases:
            spoken = REPEATED if name == "repeated" else name
            yield PlannedRun(
                name=_file_name(f"baseline {name}" if name == "identity" else f"baseline {name} k={k}"),
                cell=spoken if name == "identity" else f"{spoken} k={k}",
                seed=None,
                changes={},
                overrides=overrides,
                recipe=recipe,
                baseline=PlannedBaseline(name=name, num_phases=k, cost=recipe.cost),
            )


def _recipe(whose: str, path: Path, overrides: Sequence[str]) -> TrainRecipe:
    from activault.train import load_recipe

    try:
        recipe = load_recipe(path, overrides)
    except ConfigError as exc:
        raise ConfigError(f"{whose}: {exc}") from exc
    if recipe.split == "all":
        raise ConfigError(
            f"{whose}: a sweep measures on test rows, and split = 'all' trains on them; leave the key out"
        )
    return recipe


def _overrides(changes: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(f"{key}={_toml(value)}" for key, value in changes.items())


def _combinations(sweep: SweepConfig) -> Iterator[tuple[Cell, str, dict[str, str], int, dict[str, Any]]]:
    """(cell, its name, words for what varies by key, seed, what it sets) of every run."""
    for cell in sweep.cells or (Cell(name="run"),):
        fixed = _flat(sweep.set) | _flat(cell.set)
        grid = _flat(sweep.grid) | _flat(cell.grid)
        drawn_keys = {} if sweep.random is None else _flat(sweep.random.keys)
        _check_keys(sweep, cell, grid, drawn_keys)
        for values in itertools.product(*grid.values()):
            chosen = dict(zip(grid, values, strict=True))
            words = {key: f"{key}={_spoken(value)}" for key, value in chosen.items()}
            for draw, drawn in _draws(sweep.random):
                named = cell.name if sweep.cells or not (words or draw) else ""
                for seed in cell.seeds or sweep.seeds:
                    yield cell, named, {**words, **draw}, seed, {**fixed, **chosen, **drawn, "seed": seed}


def _check_keys(sweep: SweepConfig, cell: Cell, grid: Mapping[str, Any], drawn: Mapping[str, Any]) -> None:
    """Refuse what would be laid over in silence: a run would then not be what its name says."""
    where = f"cell {cell.name!r}" if sweep.cells else "the sweep"
    given = {**_flat(sweep.set), **_flat(cell.set), **grid, **drawn}
    if "seed" in given:
        raise ConfigError(f"seeds of runs are given as seeds = [0, 1]; {where} sets the key seed itself")
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            raise ConfigError(f"grid key {key} has a list of values; got {values!r}")
    tables = {"set": {**({} if sweep.cells else _flat(sweep.set)), **_flat(cell.set)}, "grid": grid}
    for (one, first), (other, second) in itertools.combinations({**tables, "random": drawn}.items(), 2):
        if both := sorted(set(first) & set(second)):
            raise ConfigError(
                f"a key has its value from one place; {where} has {both[0]} in {one} and {other}"
            )


def _draws(random: RandomDraws | None) -> Iterator[tuple[dict[str, str], dict[str, Any]]]:
    """A word for the name and the values of every draw; one without either where nothing is drawn."""
    if random is None:
        yield {}, {}
        return
    keys = {key: _draw_of(key, value) for key, value in _flat(random.keys).items()}
    for number in range(random.draws):
        drawn = {}
        for key, draw in keys.items():
            place = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")
            drawn[key] = draw.value(np.random.default_rng([random.seed, number, place]))
        yield {"": f"draw={number}"}, drawn


def _draw_of(key: str, value: Any) -> Draw:
    try:
        return Draw.model_validate(value)
    except ValidationError as exc:
        message = exc.errors()[0]["msg"].removeprefix("Value error, ")
        raise ConfigError(f"random key {key} = {value!r} does not fit: {message}") from exc


def _flat(table: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys of a table's values."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if key in TABLES and isinstance(value, dict):
            flat.update({f"{key}.{inner}": deeper for inner, deeper in value.items()})
        else:
            flat[key] = value
    return flat


def _toml(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool | str):
        return json.dumps(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return repr(value)


def _spoken(value: Any) -> str:
    return value if isinstance(value, str) else _toml(value)


def _file_name(text: str) -> str:
    """A name that every file system takes, and that differs where the text does."""
    name = re.sub(r"[^\w.=+-]+", "_", text).strip("_.")
    # Without their brackets [[1, 2], [3]] and [[1], [2, 3]] read alike.
    if len(name) <= LONGEST_NAME and not re.search(r"[\[{]", text):
        return name
    return f"{name[:LONGEST_NAME]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
