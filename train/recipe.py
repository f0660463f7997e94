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
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, model_validator

from activault.store.errors import ConfigError

from .losses import LossKind, TokenWeights
from .raptor import ModelConfig
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


def _weights_or_word(value: object) -> str:
    return "(word)" if isinstance(value, str) else "(table)"


# Tagged, so that a wrong weight is told as one fault and not once for each form it might have had.
MaybeWeights = Annotated[
    Annotated[TokenWeights, Tag("(table)")] | Annotated[Literal["plain"], Tag("(word)")],
    Discriminator(_weights_or_word),
]


class StageConfig(BaseModel):
    """One stage's optimisation."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: int = Field(ge=0)
    """Updates; 0 leaves the stage out."""
    batch_size: int = Field(default=64, ge=1)
    """Rows a step."""
    learning_rate: float = Field(default=3e-4, gt=0, allow_inf_nan=False)
    """Peak learning rate of AdamW."""
    weight_decay: float = Field(default=1e-4, ge=0, allow_inf_nan=False)
    """Decoupled weight decay, on every parameter."""
    beta2: float = Field(default=0.999, gt=0, lt=1)
    """Decay of AdamW's second moments."""
    warmup_steps: int = Field(default=10_000, ge=0)
    """Steps from 0 to the peak."""
    floor: float = Field(default=1e-6, ge=0, allow_inf_nan=False)
    """Learning rate at the end of the cosine."""
    clip: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Largest norm of a step's gradient."""
    loss: LossKind = "raw"
    """Squared errors as they are, or over each layer's variance."""
    token_weights: MaybeWeights = Field(default="plain")
    """Weight of each token kind, or `plain` for the same weight on every token."""
    checkpoint_every: int = Field(default=1000, ge=1)
    """Steps between checkpoints; one is also written at the end and on Ctrl-C."""
    log_every: int = Field(default=50, ge=1)
    """Steps between lines of `metrics.jsonl`."""

    @model_validator(mode="after")
    def _check(self) -> StageConfig:
        if self.steps and self.warmup_steps >= self.steps:
            raise ValueError(
                f"warmup_steps is below steps; got warmup_steps {self.warmup_steps} and steps {self.steps}"
            )
        if self.floor > self.learning_rate:
            raise ValueError(f"floor is at most learning_rate; got {self.floor} and {self.learning_rate}")
        return self


class Stage1Config(StageConfig):
    """Stage 1: every phase alone, for `steps` each, from teacher forcing to its own roll-out."""

    teacher_forcing: float = Field(default=0.25, ge=0, le=1)
    """Part of the steps over which the weight of teacher forcing falls from 1 to 0."""
    last_phase_token_weights: MaybeWeights = TokenWeights(cls=0.34, registers=0.33, patches=0.33)
    """Token weights of the last phase, in place of `token_weights`."""


class Stage2Config(StageConfig):
    """Stage 2: all phases end to end from layer 0, on their own outputs."""

    token_weights: MaybeWeights = TokenWeights(cls=0.45, registers=0.10, patches=0.45)
    """Weight of each token kind, or `plain` for the same weight on every token."""


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
    cost: PhaseCost = "ncut"
    """Cost by which `num_phases` are found."""
    split: Literal["train", "all"] = "train"
    """Rows to train on: the training split, or every row."""
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
        if (self.cuts is None) == (self.num_phases is None):
            raise ValueError(
                f"one of cuts and num_phases is given; got cuts {self.cuts}, num_phases {self.num_phases}"
            )
        return self

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
        return self.model_dump(mode="json", exclude={"store"})


def load_recipe(path: Path | str, overrides: Sequence[str] = ()) -> TrainRecipe:
    """The recipe of a TOML file, with `key=value` overrides laid over it.

    A key is dotted (`stage2.steps`); a value is TOML, and a bare word that is no TOML is taken as a string.

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
    try:
        return TrainRecipe.model_validate(table)
    except ValidationError as exc:
        raise ConfigError(f"{name}: {_first_fault(exc)}") from exc


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
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError as exc:
        # Shells eat quotes: `--set init=teacher-middle` is meant as a string.
        if re.fullmatch(r"[\w./~:+-]+", text):
            return text
        raise ConfigError(
            f"--set {override}: the value is TOML, such as 3, 0.5, true, 'text' or [7, 10]; {exc}"
        ) from exc


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
