"""In what two manifests differ, for messages that refuse one for the other. Pure."""

from __future__ import annotations

from typing import Any

from .manifest import Manifest

__all__ = ["first_difference", "spoken"]


def first_difference(one: Manifest, other: Manifest) -> tuple[str, Any, Any] | None:
    """The first field in which two manifests differ, as `teacher.dim`, and both values."""
    ours, theirs = _flat(one.model_dump(mode="json")), _flat(other.model_dump(mode="json"))
    fields = (*theirs, *(field for field in ours if field not in theirs))
    return next(((f, ours.get(f), theirs.get(f)) for f in fields if ours.get(f) != theirs.get(f)), None)


def spoken(value: Any) -> str:
    """A manifest's value for a message; the thousands of an int8 store's scales are cut short."""
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix.rstrip("."): value}
    return {
        name: leaf for key, part in value.items() for name, leaf in _flat(part, f"{prefix}{key}.").items()
    }
