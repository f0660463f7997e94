"""The most memory that this process held while something ran, which the kernel tells of a whole life alone.

with PeakMemory() as memory: ...
memory.host_bytes
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

from .peak_memory import host_peak

__all__ = ["PeakMemory", "resident_bytes"]

_STATM: Final = Path("/proc/self/statm")
_EVERY_S: Final = 0.005


def resident_bytes() -> int:
    """Resident memory of this process; where a system tells its peak alone, that, or 0."""
    if not _STATM.exists():
        return host_peak() or 0
    import resource

    return int(_STATM.read_text().split()[1]) * resource.getpagesize()


class PeakMemory:
    """Looks at this process every 5 ms, in a thread, until it is left."""

    def __init__(self) -> None:
        self.host_bytes = 0
        """The most that was seen."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="memory", daemon=True)

    def _look(self) -> None:
        while True:
            self.host_bytes = max(self.host_bytes, resident_bytes())
            if self._over.wait(_EVERY_S):
                return

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()
