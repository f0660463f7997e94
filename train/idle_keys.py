"""Keys of a recipe that were set and change nothing, because another key that they belong to was not.

    TrainRecipe  ->  "stage1.huber_delta = 0.5 changes nothing; it is used with loss = 'huber', ..." or None

Asked when a recipe is read, not when a record of a run is: runs of versions that did not ask stay readable.
A key at its default says nothing, and neither do those of a stage that is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import BaseModel

    from .recipe import TrainRecipe

__all__ = ["idle_key"]

Rule = tuple[str, str, Any, str]
"""A key, the other one, the other's value at which the key is idle, and what the key is used with."""
STAGE: Final[tuple[Rule, ...]] = (
    ("horizon_growth", "horizon_start", None, "horizon_start"),
    ("horizon_start", "only_teacher_forcing", True, "only_teacher_forcing = false"),
    ("teacher_forcing", "only_teacher_forcing", True, "only_teacher_forcing = false"),
)


def idle_key(recipe: TrainRecipe) -> str | None:
    """The first such key with its value, the rule and the remedy; None where every key counts."""
    return next(_idle_keys(recipe), None)


def _idle_keys(recipe: TrainRecipe) -> Iterator[str]:
    if recipe.control == "none" and _is_set(recipe, "control_seed"):
        yield _told("control_seed", recipe.control_seed, "control = 'random' or 'shuffled'", "'none'")
    for name, stage in (("stage1", recipe.stage1), ("stage2", recipe.stage2)):
        if not stage.steps:
            continue
        if stage.loss != "huber" and _is_set(stage, "huber_delta"):
            yield _told(f"{name}.huber_delta", stage.huber_delta, "loss = 'huber'", repr(stage.loss))
        for key, other, value, used_with in STAGE:
            known = type(stage).model_fields.keys() >= {key, other}
            if known and _is_set(stage, key) and getattr(stage, other) == value:
                yield _told(f"{name}.{key}", getattr(stage, key), used_with, repr(value).lower())


def _is_set(config: BaseModel, key: str) -> bool:
    return bool(getattr(config, key) != type(config).model_fields[key].default)


def _told(key: str, value: object, used_with: str, there: str) -> str:
    return (
        f"{key} = {value!r} changes nothing: it is used with {used_with}, and that is {there}; leave {key} "
        "out or set the other"
    )
