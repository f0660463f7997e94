"""Keys of a recipe that were set and change nothing, because another key that they belong to was not.

    recipe, stages  ->  "stage1.huber_delta = 0.5 changes nothing; it is used with loss = 'huber', ..." | None

Asked when a recipe is read, not when a record of a run is: runs of versions that did not ask stay readable.
A key at its default says nothing, and neither do those of a stage that is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel

from .stage_config import StageConfig

__all__ = ["idle_key"]

Rule = tuple[str, str, Any, str]
"""A key, the other one, the other's value at which the key is idle, and what the key is used with."""
RECIPE: Final[tuple[Rule, ...]] = (("control_seed", "control", "none", "control = 'random' or 'shuffled'"),)
STAGE: Final[tuple[Rule, ...]] = (
    ("horizon_growth", "horizon_start", None, "horizon_start"),
    ("horizon_start", "only_teacher_forcing", True, "only_teacher_forcing = false"),
    ("teacher_forcing", "only_teacher_forcing", True, "only_teacher_forcing = false"),
)


def idle_key(recipe: BaseModel, stages: Mapping[str, StageConfig]) -> str | None:
    """The first such key with its value, the rule and the remedy; None where every key counts.

    `stages` are the recipe's, by the names of their tables.
    """
    return next(_idle_keys(recipe, stages), None)


def _idle_keys(recipe: BaseModel, stages: Mapping[str, StageConfig]) -> Iterator[str]:
    yield from _broken(recipe, RECIPE, "")
    for name, stage in stages.items():
        if not stage.steps:
            continue
        if stage.loss != "huber" and _is_set(stage, "huber_delta"):
            yield _told(f"{name}.huber_delta", stage.huber_delta, "loss = 'huber'", repr(stage.loss))
        yield from _broken(stage, STAGE, f"{name}.")


def _broken(config: BaseModel, rules: tuple[Rule, ...], prefix: str) -> Iterator[str]:
    for key, other, value, used_with in rules:
        known = type(config).model_fields.keys() >= {key, other}
        if known and _is_set(config, key) and getattr(config, other) == value:
            there = repr(value) if isinstance(value, str) else repr(value).lower()
            yield _told(f"{prefix}{key}", getattr(config, key), used_with, there)


def _is_set(config: BaseModel, key: str) -> bool:
    return bool(getattr(config, key) != type(config).model_fields[key].default)


def _told(key: str, value: object, used_with: str, there: str) -> str:
    return (
        f"{key} = {value!r} changes nothing: it is used with {used_with}, and that is {there}; leave {key} "
        "out or set the other"
    )
