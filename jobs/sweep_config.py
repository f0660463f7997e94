"""What a sweep's file may say: a recipe, what is varied over it, and the baselines beside it.

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
[[cells]]
name = "averaged"
set = { stage2.ema_decay = 0.99 }
ema = true                          # measured with the moving average; which = "best": at the best validation
[baselines]                         # beside the runs, from the same store, under the same evaluation
names = ["identity", "repeated", "linear", "power"]
num_phases = [1, 2, 3, 4]
"""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from activault.store import ConfigError

from .baselines import BaselineName

__all__ = ["Baselines", "Cell", "Draw", "RandomDraws", "SweepConfig", "load_sweep"]


class Draw(BaseModel):
    """Where a random value comes from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    choice: tuple[Any, ...] | None = Field(default=None, min_length=1)
    """One of these; or between `min` and `max`."""
    min: float | None = Field(default=None, allow_inf_nan=False)
    """Least value."""
    max: float | None = Field(default=None, allow_inf_nan=False)
    """Largest value."""
    log: bool = False
    """Whether the value's logarithm is spread evenly."""
    integer: bool = False
    """Whether it is a whole number."""

    @model_validator(mode="after")
    def _check(self) -> Draw:
        if self.choice is not None:
            if len(self.model_fields_set) > 1:
                beside = ", ".join(sorted(self.model_fields_set - {"choice"}))
                raise ValueError(f"a choice has no other keys; got {beside} beside it: leave one of them out")
            return self
        if self.min is None or self.max is None or self.min >= self.max:
            raise ValueError(
                f"a draw has a choice, or a min below a max; got min {self.min} and max {self.max}"
            )
        if self.log and self.min <= 0:
            raise ValueError(f"a draw on a log scale has a min above 0; got {self.min}")
        if self.integer and (self.min % 1 or self.max % 1):
            raise ValueError(
                f"a whole number is drawn between whole numbers; got min {self.min} and max {self.max}: "
                "round them, or leave out integer"
            )
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
    which: Literal["last", "best"] | None = None
    """Weights that its runs are measured with, in place of the sweep's."""
    ema: bool | None = None
    """Whether these are the moving average, in place of the sweep's."""


class Baselines(BaseModel):
    """Models beside the runs that are not trained, or fitted in closed form."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    names: tuple[BaselineName, ...] = Field(min_length=1)
    """Which ones; identity has no phases and is made once."""
    num_phases: tuple[int, ...] = Field(default=(3,), min_length=1)
    """Every other one is made for each of these numbers of phases, found as the recipe's `cost` says."""

    @model_validator(mode="after")
    def _check(self) -> Baselines:
        if min(self.num_phases) < 1:
            raise ValueError(f"a baseline has at least 1 phase; got num_phases {list(self.num_phases)}")
        if "num_phases" in self.model_fields_set and set(self.names) == {"identity"}:
            raise ValueError(
                f"identity has no phases; got num_phases {list(self.num_phases)}: leave it out, or name a "
                "baseline that has"
            )
        return self


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
    baselines: Baselines | None = None
    """Baselines beside the runs."""
    which: Literal["last", "best"] = "last"
    """Weights that runs are measured with: the last ones, or those of the best validation."""
    ema: bool = False
    """Whether these are their moving average."""
    probe: bool = True
    """Whether every run is probed; R2 on the test rows is measured anyway."""


TABLES: dict[str, type[BaseModel]] = {"cells": Cell, "random": RandomDraws, "baselines": Baselines}


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
        raise ConfigError(f"{path}: {_fault(exc)}") from exc


def _fault(exc: ValidationError) -> str:
    """The first fault in words: key, value and what is allowed; for an unknown key, the keys of its table."""
    fault = exc.errors()[0]
    location = [str(part) for part in fault["loc"]]
    key = ".".join(location)
    if fault["type"] == "extra_forbidden":
        known = TABLES.get(location[0], SweepConfig) if len(location) > 1 else SweepConfig
        return f"unknown key {key}; keys here are {', '.join(known.model_fields)}"
    if fault["type"] == "missing":
        return f"key {key} is missing; a sweep gives it"
    message = fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "value_error":
        return f"{key}: {message}"
    return f"{key} = {fault['input']!r} does not fit: {message}"
