"""What this machine offers an extraction: a device and memory."""

from __future__ import annotations

import torch

from activault.store.cores import memory_bytes
from activault.store.errors import ConfigError

__all__ = ["choose_device", "memory_bytes"]


def choose_device(name: str, local_rank: int = 0) -> torch.device:
    """The device of a name; `auto` is the first there is of cuda, mps and cpu.

    Of several GPUs `auto` takes the one of this worker's rank on the machine, in turn.

    Raises:
        ConfigError: there is no such device here.
    """
    if name == "auto":
        name = "mps" if torch.backends.mps.is_available() else "cpu"
        if torch.cuda.is_available():
            count = torch.cuda.device_count()
            name = f"cuda:{local_rank % count}" if count > 1 else "cuda"
    try:
        device = torch.device(name)
    except RuntimeError as exc:
        raise ConfigError(f"device is auto, cpu, mps, cuda or cuda:N; got {name!r}") from exc
    available = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    if (device.index or 0) >= available.get(device.type, 0):
        raise ConfigError(f"the device {name!r} is not available here; take auto or cpu")
    return device
