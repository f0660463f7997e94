"""A store's plan in the words of the command line, for messages that refuse another request. Pure.

as_option("row_seed", 0, 1)        ("seed", 0, 1)
asked_with("seed", 0)              " with --seed 0"
"""

from __future__ import annotations

import shlex
from typing import Any, Final

from .tokens import spoken_patches

__all__ = ["as_option", "asked_with"]

_NAMES: Final = {
    "row_seed": "seed",
    "kinds": "tokens",
    "num_rows": "rows",
    "teacher.name": "teacher",
    "layout.kept_patches": "patches",
}
"""Options whose field of the manifest is called otherwise."""
_PARTS: Final = ("preprocessing.", "details.")
_SWITCHES: Final = ("compile", "batch_invariant")
_CHOICES: Final = ("where", "split")
"""Options that are None where nothing was chosen."""
_PLAIN: Final = (
    *("teacher", "interpolation", "crop_mode", "orientation", "resize", "dtype", "compression", "license"),
    *("citation", "shard_rows", "order", "seed", "split", "max_pixels", "autocast", "where"),
)
"""Options whose flag takes their value as it is."""


def as_option(field: str, old: Any, new: Any) -> tuple[str, Any, Any]:
    """A manifest's field, such as `preprocessing.resize`, and two values, as the option that decides it."""
    for part in _PARTS:
        field = field.removeprefix(part)
    name = _NAMES.get(field, field)
    if name == "seed" and None in (old, new):
        name, old, new = "order", *("kept" if seed is None else "shuffled" for seed in (old, new))
    elif name in _SWITCHES:
        old, new = old is not None, new is not None
    elif field == "layout.kept_patches":
        old, new = (spoken_patches(tuple(v) if isinstance(v, list) else v) for v in (old, new))
    elif name == "autocast":
        old, new = old or "off", new or "off"
    return name, old, new


def asked_with(name: str, value: Any) -> str:
    """The flag that asks for a value of an option, as `as_option` gives them; empty where none does.

    None does for other images, versions or weights, nor for what a store keeps the hash of.
    """
    flag = f"--{name.replace('_', '-')}"
    if name in _SWITCHES or (name in _CHOICES and value is None):
        return f" with {flag}" if value else f" without {flag}"
    said = _said(name, value)
    return f" with {flag} {said}" if said else ""


def _said(name: str, value: Any) -> str:
    """A value as a flag takes it."""
    match name, value:
        case "layers" | "tokens", (*parts,):
            return ",".join(map(str, parts))
        case "mean" | "std", (*parts,):
            return " ".join(map(str, parts))
        case "image_size", (height, width):
            return f"{height}x{width}"
        case "patches", "all" | "mean":
            return str(value)
        case "where", str() if " and " in value or value.startswith("sha256:"):
            return ""
        case _, str() | int() if name in _PLAIN:
            return shlex.quote(str(value))
    return ""
