"""A training recipe: one TOML file that says all of a run, with dotted overrides from the command line.

    recipe.toml + ["stage2.steps=100", "model.mlp='swiglu'"]  ->  TrainRecipe

Defaults are the paper's but for depth = "normalised", which lets one checkpoint run at other depths, and the
plain MLP, which costs what the teacher's does; `recipes/paper_k3.toml` spells the paper's out. A key left out
keeps its default, but every stage names its steps.

    store = "cifar.zarr"
    seed = 0
    num_phases = 3            # or cuts = [7, 10]
    init = "teacher-middle"
    [model]
    depth = "normalised"
    [stage1]
    steps = 100
    warmup_steps = 5
    [stage2]
    steps = 100
    warmup_steps = 5
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from activault.store.errors import ConfigError

from .identity import identity_of
from .idle_keys import idle_key
from .losses import TokenWeights
from .raptor import ModelConfig
from .stage_config import Stage1Config, Stage2Config, StageConfig
from .teacher_init import BlockChoice

__all__ = [
    "InitKind",
    "Stage1Config",
    "Stage2Config",
    "StageConfig",
    "TrainRecipe",
    "load_recipe",
    "parse_recipe",
]

InitKind = Literal["random", "teacher-first", "teacher-middle", "teacher-last", "teacher-mean"]
PhaseCost = Literal["ncut", "sum", "greedy"]
PhaseControl = Literal["none", "random", "shuffled"]
BARE = re.compile(r"[\w./~:+-]+|[A-Za-z/~.][^\[\]{}'\"#\n]*")
"""Shells eat quotes: `--set init=teacher-middle` and `--set store=s3://b/k@2` are meant as strings."""


class TrainRecipe(BaseModel):
    """All of a training run but the device it runs on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    store: str = Field(min_length=1)
    """Path of the activation store, seen from the working directory."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed of random blocks and of the order of the rows."""
    cuts: tuple[int, ...] | None = None
    """A phase ends after each of these layers; or `num_phases`."""
    num_phases: int | None = Field(default=None, ge=1)
    """Number of phases, found from the store's layer similarity; or `cuts`."""
    groups: tuple[tuple[int, ...], ...] | None = None
    """The layers that each block makes, where they are no contiguous phases; or `cuts`."""
    control: PhaseControl = "none"
    """Controls for `num_phases`: other contiguous phases (random), or the found ones shuffled."""
    control_seed: int = Field(default=0, ge=0)
    """Seed of the control's draw."""
    cost: PhaseCost = "ncut"
    """Cost by which `num_phases` are found."""
    split: Literal["train", "all"] = "train"
    """Rows to train on: the training split, or every row."""
    validation: float = Field(default=0.0, ge=0, lt=1)
    """Part of these rows that is held out for validation, drawn by the hash of their keys."""
    pool_bytes: int | None = Field(default=None, ge=1)
    """Memory for rows that wait for their step, of all processes together; none: what the loader takes. Rows
    of stores that were shuffled when they were planned mix within half of it."""
    init: InitKind = "random"
    """Blocks start at random, or from a teacher's block of their phase."""
    model: ModelConfig = ModelConfig()
    """Kind of the model."""
    stage1: Stage1Config
    """Each phase alone."""
    stage2: Stage2Config
    """The closed loop."""

    @model_validator(mode="after")
    def _check(self) -> TrainRecipe:
        if sum(given is not None for given in (self.cuts, self.num_phases, self.groups)) != 1:
            raise ValueError(
                f"one of cuts, num_phases and groups is given; got cuts {self.cuts}, num_phases "
                f"{self.num_phases}, groups {self.groups}"
            )
        if self.control != "none" and self.num_phases is None:
            raise ValueError(f"a control is drawn for num_phases; got control {self.control!r} without it")
        for name, stage in (("stage1", self.stage1), ("stage2", self.stage2)):
            if stage.steps and stage.validate_every and not self.validation:
                raise ValueError(
                    f"{name}.validate_every needs rows that are held out; got validation = 0: set it to the "
                    "part of the training rows to hold out, such as 0.05"
                )
        return self

    @property
    def total_phases(self) -> int:
        """Number of phases, however they are given."""
        return self.num_phases or len(self.groups or (*(self.cuts or ()), 0))

    @property
    def teacher_block(self) -> BlockChoice | None:
        """Which of a phase's teacher blocks it starts from; None for random blocks."""
        choices: dict[str, BlockChoice] = {
            "teacher-first": "first",
            "teacher-middle": "middle",
            "teacher-last": "last",
            "teacher-mean": "mean",
        }
        return choices.get(self.init)

    def identity(self) -> dict[str, Any]:
        """What makes two runs the same: all but the store's path, for which its digest stands."""
        return identity_of(self, leave_out=frozenset({"store"}))


def load_recipe(path: Path | str, overrides: Sequence[str] = ()) -> TrainRecipe:
    """The recipe of a TOML file, with `key=value` overrides laid over it.

    A key is dotted (`stage2.steps`); a value is TOML, and a word or a path that is no TOML is taken as a
    string.

    Raises:
        ConfigError: the file is absent or no TOML, or a key or a value of it does not fit.
    """
    path = Path(path)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise ConfigError(f"a recipe is a TOML file that can be read; got {path} ({exc.strerror})") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise ConfigError(f"a recipe is a TOML file; {path} is not: {exc}") from exc
    for override in overrides:
        _lay_over(table, override)
    return parse_recipe(table, name=str(path))


def parse_recipe(table: Mapping[str, Any], *, name: str = "recipe") -> TrainRecipe:
    """A recipe from an already parsed table.

    Raises:
        ConfigError: a key or a value does not fit; names `name`, the key and the value.
    """
    if key := _truth_out_of_place(table, TrainRecipe):
        raise ConfigError(f"{name}: {key} does not fit: true and false are for keys that are on or off")
    try:
        recipe = TrainRecipe.model_validate(table)
    except ValidationError as exc:
        raise ConfigError(f"{name}: {_first_fault(exc)}") from exc
    if fault := idle_key(recipe, {"stage1": recipe.stage1, "stage2": recipe.stage2}):
        raise ConfigError(f"{name}: {fault}")
    return recipe


def _lay_over(table: dict[str, Any], override: str) -> None:
    """Set one `key=value` in place."""
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(re.fullmatch(r"\w+", part) for part in parts):
        raise ConfigError(
            f"an override is key=value with a dotted key, such as stage2.steps=100; got {override!r}"
        )
    for depth, part in enumerate(parts[:-1]):
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set {override}: {'.'.join(parts[: depth + 1])} is a value and has no keys")
    table[parts[-1]] = _toml_value(override, text.strip())


def _toml_value(override: str, text: str) -> Any:
    try:
        found = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError as exc:
        if BARE.fullmatch(text):
            return text
        why = str(exc).partition(" (at ")[0]  # a place in a line that nobody wrote
        raise ConfigError(
            f"--set {override}: the value is TOML, such as 3, 0.5, true, 'text' or [7, 10]; {why}"
        ) from exc
    if len(found) > 1:
        raise ConfigError(f"an override sets one key; got {override!r}: give each its own key=value")
    return found["value"]


def _truth_out_of_place(table: Mapping[str, Any], model: type[BaseModel], above: str = "") -> str | None:
    """The first `key = true` where a number or a word belongs: pydantic takes true for 1."""
    for key, value in table.items():
        field = model.model_fields.get(key)
        kind = field.annotation if field else None
        if isinstance(value, Mapping) and isinstance(kind, type) and issubclass(kind, BaseModel):
            if found := _truth_out_of_place(value, kind, f"{above}{key}."):
                return found
        elif isinstance(value, bool) and field is not None and kind is not bool:
            return f"{above}{key} = {str(value).lower()}"
    return None


def _first_fault(exc: ValidationError) -> str:
    """The first fault in words: key, value and what is allowed; for an unknown key the names near it."""
    fault = exc.errors()[0]
    location = [str(part) for part in fault["loc"] if not str(part).startswith("(")]
    key = ".".join(location)
    if fault["type"] == "extra_forbidden":
        near = difflib.get_close_matches(location[-1], _fields_at(location[:-1]), n=3, cutoff=0.5)
        known = ", ".join(_fields_at(location[:-1]))
        hint = f"did you mean {' or '.join(near)}?" if near else f"keys are {known}"
        return f"unknown key {key} = {fault['input']!r}; {hint}"
    if fault["type"] == "missing":
        return f"key {key} is missing; a recipe gives it"
    message = fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "value_error":
        return f"{key}: {message}" if key else message
    return f"{key} = {fault['input']!r} does not fit: {message}"


def _fields_at(location: Sequence[str]) -> list[str]:
    """Names of the keys of one table of the recipe."""
    model: type[BaseModel] = TrainRecipe
    for part in location:
        field = model.model_fields.get(part)
        inner = field.annotation if field else None
        model = inner if isinstance(inner, type) and issubclass(inner, BaseModel) else TokenWeights
    return list(model.model_fields)
