"""What an extraction takes of memory: of this process, and of the device that its teacher is on.

    start_counting(device)
    ...
    host_peak(), device_peak(device)         bytes since the process began, since counting did

    with PeakMemory() as memory: ...
    memory.host_bytes                        bytes of the process at most while something ran

What there is to take, of the machine or of the job on it, `activault.store.cores` tells.
"""

from __future__ import annotations

import re
import sys
import threading
from pathlib import Path
from typing import Final

import torch

__all__ = ["PeakMemory", "device_peak", "host_peak", "is_out_of_memory", "resident_bytes", "start_counting"]

_STATM: Final = Path("/proc/self/statm")
_STATUS: Final = Path("/proc/self/status")
_EVERY_S: Final = 0.005


def start_counting(device: torch.device) -> None:
    """Forget what a device held at most so far."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def device_peak(device: torch.device) -> int | None:
    """Bytes that torch held of a GPU at most, its cache included; of MPS what it holds now, of a CPU None."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    return torch.mps.driver_allocated_memory() if device.type == "mps" else None


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether a device had not the memory; MPS has no error of its own for that."""
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error).lower()


def host_peak() -> int | None:
    """Most resident bytes of this process since it began, by the kernel's count; None where there is none."""
    # On Linux `ru_maxrss` begins with what was held by the process that started this one.
    if _STATUS.exists() and (found := re.search(r"^VmHWM:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)):
        return int(found[1]) << 10
    try:
        import resource
    except ImportError:  # Windows
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


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
