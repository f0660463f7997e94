"""From images to a store: sources, frozen teachers, and the capture of their layers.

    from activault.extract import ExtractOptions, extract

    extract(Path("photos"), Path("photos.zarr"), ExtractOptions(teacher="demo", image_size=98))

The names are imported on first use, since they need torch, timm and Pillow (`activault[all]`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from activault.store.errors import MissingExtraError

if TYPE_CHECKING:
    from .backbone import Backbone, load_backbone, load_teacher, save_teacher
    from .estimates import Estimate, estimate
    from .growth import GrowthSummary, append, extend
    from .images import ImageFolder
    from .listing import ImageSource
    from .mending import repair
    from .options import SourceOptions
    from .run import ExtractOptions, ExtractSummary, extract
    from .sources import open_source

__all__ = [
    "extract",
    "append",
    "extend",
    "repair",
    "estimate",
    "Estimate",
    "ExtractOptions",
    "ExtractSummary",
    "GrowthSummary",
    "ImageFolder",
    "ImageSource",
    "SourceOptions",
    "open_source",
    "Backbone",
    "load_backbone",
    "load_teacher",
    "save_teacher",
]

_HOMES = {
    "backbone": ("Backbone", "load_backbone", "load_teacher", "save_teacher"),
    "estimates": ("Estimate", "estimate"),
    "growth": ("GrowthSummary", "append", "extend"),
    "images": ("ImageFolder",),
    "listing": ("ImageSource",),
    "mending": ("repair",),
    "options": ("SourceOptions",),
    "run": ("ExtractOptions", "ExtractSummary", "extract"),
    "sources": ("open_source",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_EXTRA = {"torch", "timm", "PIL", "jaxtyping"}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(f".{_HOME_OF[name]}", __name__), name)
    except ModuleNotFoundError as exc:
        if exc.name not in _EXTRA:
            raise
        raise MissingExtraError(f"extraction needs {exc.name}; pip install 'activault[all]'") from exc
    globals()[name] = value
    return value
