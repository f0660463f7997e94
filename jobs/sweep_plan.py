"""What a sweep runs, before any of it: one TOML file becomes a list of runs, the same every time.

    sweep.toml  ->  [PlannedRun(name, cell, seed, changes, overrides), ...]

    recipe = "cifar_k3.toml"            # seen from the sweep's file
    seeds = [0, 1, 2]                   # every run once a seed
    [set]                               # of all runs, over the recipe
    store = "cifar.zarr"
    [grid]                              # every combination
    num_phases = [1, 2, 3, 4]
    stage1.steps = [100, 200]
    [random]                            # so many draws of all these keys together
    draws = 8
    [random.keys]
    stage1.learning_rate = { min = 1e-5, max = 1e-3, log = true }
    model.depth = { choice = ["raw", "normalised", "none"] }
    [[cells]]                           # named variants; grid, random and seeds hold for each
    name = "teacher forcing only"
    set = { stage1.only_teacher_forcing = true }

A draw is a function of the sweep's seed, its number and its key alone, so that a longer sweep begins with the
shorter one's runs.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from activault.store import ConfigError

if TYPE_CHECKING:
    from activault.train import TrainRecipe

__all__ = ["Cell", "Draw", "PlannedRun", "RandomDraws", "SweepConfig", "load_sweep", "plan_runs"]

TABLES = ("model", "stage1", "stage2")
"""Tables of a recipe; whatever stands deeper is a value."""
LONGEST_NAME = 100


class Draw(BaseModel):
    """Where a random value comes from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    choice: tuple[Any, ...] | None = Field(default=None, min_length=1)
    """One of these; or between `min` and `max`."""
    min: float | None = None
    """Least value."""
    max: float | None = None
    """Largest value."""
    log: bool = False
    """Whether the value's logarithm is spread evenly."""
    integer: bool = False
    """Whether it is a whole number."""

    @model_validator(mode="after")
    def _check(self) -> Draw:
        between = self.min is not None and self.max is not None and self.min < self.max
        if (self.choice is None) != between or (self.choice and (self.min, self.max) != (None, None)):
            raise ValueError("a draw has a choice, or a min below a max")
        if self.log and (self.min is None or self.min <= 0):
            raise ValueError(f"a draw on a log scale has a min above 0; got {self.min}")
        return self

    def value(self, rng: np.random.Generator) -> Any:
        """One value."""
        if self.choice is not None:
            return self.choice[int(rng.integers(len(self.choice)))]
        assert self.min is not None, "checked when it was made"
        assert self.max is not None, "checked when it was made"
        if self.log:
            drawn = math.exp(rng.uniform(math.log(self.min), math.log(self.max)))
        else:
            drawn = float(rng.uniform(self.min, self.max))
        return round(drawn) if self.integer else float(f"{drawn:.6g}")


class RandomDraws(BaseModel):
    """Random search over some keys together."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    draws: int = Field(ge=1)
    """How many."""
    seed: int = Field(default=0, ge=0)
    """Seed of all of them."""
    keys: dict[str, Any]
    """A draw a key."""


class Cell(BaseModel):
    """One named variant."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    """What tables and figures call it."""
    set: dict[str, Any] = {}
    """Its keys, over those of the sweep."""
    grid: dict[str, Any] = {}
    """More keys with several values, for this cell alone."""
    seeds: tuple[int, ...] | None = Field(default=None, min_length=1)
    """Seeds of its own."""


class SweepConfig(BaseModel):
    """All of a sweep."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    recipe: str = Field(min_length=1)
    """Path of the recipe, seen from the sweep's file."""
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1)
    """Seeds of every run."""
    set: dict[str, Any] = {}
    """Keys of all runs, over the recipe."""
    grid: dict[str, Any] = {}
    """Keys with several values; every combination is run."""
    random: RandomDraws | None = None
    """Random search."""
    cells: tuple[Cell, ...] = ()
    """Named variants."""
    probe: bool = True
    """Whether every run is probed; R2 on the test rows is measured anyway."""


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One run of a sweep."""

    name: str
    """Its folder, and its name in tables."""
    cell: str
    """Its configuration, which runs of other seeds share."""
    seed: int
    """The recipe's seed."""
    changes: Mapping[str, Any]
    """What it sets over the recipe, by dotted key."""
    overrides: tuple[str, ...]
    """The same as `--set` takes it."""
    recipe: TrainRecipe
    """The whole recipe."""


def load_sweep(path: Path) -> SweepConfig:
    """The sweep of a TOML file.

    Raises:
        ConfigError: the file is absent or no TOML, or a key or a value of it does not fit.
    """
    try:
        return SweepConfig.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as exc:
        raise ConfigError(f"a sweep is a TOML file that can be read; got {path} ({exc.strerror})") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise ConfigError(f"a sweep is a TOML file; {path} is not: {exc}") from exc
    except ValidationError as exc:
        fault = exc.errors()[0]
        key = ".".join(map(str, fault["loc"]))
        known = ", ".join(SweepConfig.model_fields)
        hint = f"; keys are {known}" if fault["type"] == "extra_forbidden" else ""
        raise ConfigError(f"{path}: {key}: {fault['msg'].removeprefix('Value error, ')}{hint}") from exc


def plan_runs(sweep: SweepConfig, folder: Path) -> list[PlannedRun]:
    """Every run, in the order of the file; `folder` is that of the sweep's file.

    Raises:
        ConfigError: a run's recipe does not fit, or two runs are the same.
    """
    from activault.train import load_recipe

    runs: dict[str, PlannedRun] = {}
    for cell, seed, changes in _combinations(sweep):
        overrides = tuple(f"{key}={_toml(value)}" for key, value in changes.items())
        name = _file_name(f"{cell} seed={seed}")
        try:
            recipe = load_recipe(folder / sweep.recipe, overrides)
        except ConfigError as exc:
            raise ConfigError(f"run {name!r} of the sweep: {exc}") from exc
        if name in runs:
            raise ConfigError(
                f"runs of a sweep differ by name; {name!r} comes twice: give its cells names of their own"
            )
        runs[name] = PlannedRun(
            name=name, cell=cell, seed=seed, changes=changes, overrides=overrides, recipe=recipe
        )
    return list(runs.values())


def _combinations(sweep: SweepConfig) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """(configuration's name, seed, what it sets) of every run."""
    for cell in sweep.cells or (Cell(name="run"),):
        fixed = _flat(sweep.set) | _flat(cell.set)
        grid = _flat(sweep.grid) | _flat(cell.grid)
        for key, values in grid.items():
            if not isinstance(values, list) or not values:
                raise ConfigError(f"grid key {key} has a list of values; got {values!r}")
        for values in itertools.product(*grid.values()):
            chosen = dict(zip(grid, values, strict=True))
            for words, drawn in _draws(sweep.random):
                varied = {**chosen, **drawn}
                words = [f"{key}={_spoken(value)}" for key, value in chosen.items()] + words
                named = " ".join([cell.name, *words] if sweep.cells or not words else words)
                for seed in cell.seeds or sweep.seeds:
                    yield named, seed, {**fixed, **varied, "seed": seed}


def _draws(random: RandomDraws | None) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """A word for the name and the values of every draw; one without either where nothing is drawn."""
    if random is None:
        yield [], {}
        return
    keys = {key: _draw_of(key, value) for key, value in _flat(random.keys).items()}
    for number in range(random.draws):
        drawn = {}
        for key, draw in keys.items():
            place = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")
            drawn[key] = draw.value(np.random.default_rng([random.seed, number, place]))
        yield [f"draw={number}"], drawn


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
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[:LONGEST_NAME]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
