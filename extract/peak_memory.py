"""The most memory that was in use: of this process since it began, of a device since it was asked to count.

start_counting(device)
...
host_peak(), device_peak(device)                        bytes; None where a system does not tell
"""

from __future__ import annotations

import sys

import torch

__all__ = ["device_peak", "host_peak", "start_counting"]


def start_counting(device: torch.device) -> None:
    """Forget what a device held at most so far."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def device_peak(device: torch.device) -> int | None:
    """Bytes that torch held of a GPU at most, its cache included; of MPS what it holds now, of a CPU None."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    return torch.mps.driver_allocated_memory() if device.type == "mps" else None


def host_peak() -> int | None:
    """Most resident bytes of this process; the kernel counts them, so that looking costs nothing."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
