"""In what two records differ, for messages that refuse one for the other. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .manifest import Manifest

__all__ = ["first_difference", "first_differing", "spoken"]


def first_difference(one: Manifest, other: Manifest) -> tuple[str, Any, Any] | None:
    """The first field in which two manifests differ, as `teacher.dim`, and both values."""
    return first_differing(one.model_dump(mode="json"), other.model_dump(mode="json"))


def first_differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """The same of two tables; a field that one does not have is None there."""
    ours, theirs = _flat(one), _flat(other)
    fields = (*theirs, *(field for field in ours if field not in theirs))
    return next(((f, ours.get(f), theirs.get(f)) for f in fields if ours.get(f) != theirs.get(f)), None)


def spoken(value: Any) -> str:
    """A manifest's value for a message; the thousands of an int8 store's scales are cut short."""
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {prefix.rstrip("."): value}
    return {
        name: leaf for key, part in value.items() for name, leaf in _flat(part, f"{prefix}{key}.").items()
    }
