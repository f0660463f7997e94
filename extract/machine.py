"""What this machine offers an extraction: a device and memory."""

from __future__ import annotations

import torch

from activault.store.cores import memory_bytes
from activault.store.errors import ConfigError

__all__ = ["choose_device", "memory_bytes"]


def choose_device(name: str) -> torch.device:
    """The device of a name; `auto` is the first there is of cuda, mps and cpu.

    Raises:
        ConfigError: there is no such device here.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as exc:
        raise ConfigError(f"device is auto, cpu, mps, cuda or cuda:N; got {name!r}") from exc
    available = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    if (device.index or 0) >= available.get(device.type, 0):
        raise ConfigError(f"the device {name!r} is not available here; take auto or cpu")
    return device
