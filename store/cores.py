"""How many cores this process may use."""

from __future__ import annotations

import os

__all__ = ["num_cores"]


def num_cores() -> int:
    """Cores this process may use, which on a cluster are fewer than the machine has."""
    # macOS and Windows do not tell which cores a process may use.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
