"""Where what was fetched or made once is kept; without torch, for processes that only decode."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cache_folder"]


def cache_folder() -> Path:
    """`$ACTIVAULT_CACHE`, else `activault` in the user's cache folder."""
    if own := os.environ.get("ACTIVAULT_CACHE"):
        return Path(own)
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "activault"
