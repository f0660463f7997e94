"""Modules that are imported at their first use, because importing them takes a tenth of a second.

    if TYPE_CHECKING:
        import pyarrow.compute as pc
    else:
        pc = Deferred("pyarrow.compute")

`pyarrow.compute` makes 300 functions when it is imported, `numcodecs` looks for codecs of other packages; to
import `activault.store` takes neither.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["Deferred"]


class Deferred:
    """Stands for a module; its attributes are the module's, which is imported for the first of them."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(importlib.import_module(self._name), attribute)
        setattr(self, attribute, found)  # the next time it is found without coming here
        return found
