"""Where a teacher runs: its device, and torch's threads on the cores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

import torch

from activault.store.errors import ConfigError

from .process_wide import ProcessWide

__all__ = ["choose_device", "one_thread_each"]


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


@contextmanager
def _one_thread() -> Iterator[int]:
    threads = torch.get_num_threads()
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)


_shared_one_thread: Final = ProcessWide(_one_thread)


def one_thread_each() -> AbstractContextManager[int]:
    """Lets threads set torch to one thread each; gives how many torch had, and restores it afterwards.

    What a thread sets is also the process's number for threads to come.
    """
    return _shared_one_thread()
