"""The base of this room's pydantic models, which are built at their first use.

    class Part(Model):
        number: int

Building the validators of all of them took a tenth of what importing `activault.store` does, and what opens a
store uses half of them.
"""

from __future__ import annotations

import threading
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

__all__ = ["Model"]

_BUILDING: Final = threading.RLock()


class Model(BaseModel):
    """A frozen model without a field more or less."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    @classmethod
    def model_rebuild(cls, *, _parent_namespace_depth: int = 2, **how: Any) -> bool | None:
        """What pydantic calls at the first use: by one thread at a time, which it sees to only since 2.14."""
        with _BUILDING:  # one frame deeper than it counts
            return super().model_rebuild(_parent_namespace_depth=_parent_namespace_depth + 1, **how)
