"""How many images go through the teacher at once: as many as are asked for, or found by a short measurement.

A teacher on its device and a request in; images of a forward out. `auto` doubles the size until no more
images a second come of it or memory ends, and takes the smallest size that is within 3 % of the best.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import torch

from activault.store.errors import ConfigError

from .arithmetic import FIXED_BATCH, Arithmetic, Forward, exact_arithmetic
from .backbone import Backbone
from .engines import core_batch
from .machine import one_thread_each
from .memory import is_out_of_memory, start_counting

__all__ = ["AskedBatch", "BatchSize", "choose_batch_size", "plateau"]

AskedBatch = int | Literal["auto"]
_log: Final = logging.getLogger(__name__)
_MOST: Final = {"cpu": 32, "cuda": 1024, "mps": 128}
"""Images of the largest forward that is tried."""
_LEAST_SECONDS: Final = 0.25
"""For which a size is run again and again."""
_WITHIN: Final = 0.03
_MOST_MEMORY: Final = 0.8
"""Share of a device's memory that a forward may take: copies and whoever else is there need the rest."""


@dataclass(frozen=True)
class BatchSize:
    """Images of a forward, and what was measured for it."""

    num_images: int
    rates: dict[int, float] = field(default_factory=dict)
    """Images a second of every size that was tried; empty where none was."""


def choose_batch_size(asked: AskedBatch, backbone: Backbone, arithmetic: Arithmetic) -> BatchSize:
    """Images of a forward for a teacher on its device.

    On a CPU every core runs forwards of its own, which are kept small enough for its caches.

    Raises:
        ConfigError: not even one image fits the device's memory.
    """
    if arithmetic.batch_invariant:
        return BatchSize(FIXED_BATCH)
    device = backbone.mean.device
    if asked != "auto":
        return BatchSize(core_batch(asked, backbone.layout.num_tokens) if _on_cores(device) else asked)
    # Compiling every size would take minutes; which size is best hardly depends on it.
    forward = Forward(backbone, replace(arithmetic, compile=False), range(backbone.num_blocks + 1))
    sizes = (1 << power for power in range(_MOST[device.type].bit_length()))
    with exact_arithmetic():
        found = plateau(sizes, lambda size: _rate(forward, size))
    spoken = ", ".join(f"{size}: {rate:.1f}" for size, rate in found.rates.items())
    _log.info("forwards of %d images (images a second by size: %s)", found.num_images, spoken)
    return found


def _on_cores(device: torch.device) -> bool:
    """Whether every core runs forwards of its own."""
    return device.type == "cpu"


def plateau(sizes: Iterable[int], rate_of: Callable[[int], float | None]) -> BatchSize:
    """The smallest size that is within 3 % of the best, of ascending ones.

    Args:
        sizes: what to try, in this order; at least one is taken.
        rate_of: images a second at a size, or None where memory does not suffice; larger ones are not tried
            then, nor after two in a row that gained nothing.

    Raises:
        ConfigError: not even the first one fits.
    """
    rates = dict[int, float]()
    idle = 0
    for size in sizes:
        rate = rate_of(size)
        if rate is None:
            break
        idle = 0 if rate > (1 + _WITHIN) * max(rates.values(), default=0.0) else idle + 1
        rates[size] = rate
        if idle == 2:
            break
    if not rates:
        raise ConfigError("a forward of one image must fit the device's memory; choose another device")
    best = max(rates.values())
    return BatchSize(min(size for size, rate in rates.items() if rate >= (1 - _WITHIN) * best), rates)


def _rate(forward: Forward, size: int) -> float | None:
    """Images a second of forwards of one size; None where they do not fit the device's memory."""
    device = forward.backbone.mean.device
    if _on_cores(device):
        return _rate_of_cores(forward, size)
    try:
        start_counting(device)
        forward.run_once(size)
        start, runs = time.perf_counter(), 0
        while (seconds := time.perf_counter() - start) < _LEAST_SECONDS:
            forward.run_once(size)
            torch.accelerator.synchronize(device)
            runs += 1
    except RuntimeError as exc:
        if not is_out_of_memory(exc):
            raise
        (torch.mps if device.type == "mps" else torch.cuda).empty_cache()
        return None
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
        if torch.cuda.max_memory_allocated(device) > _MOST_MEMORY * free:
            return None
    return runs * size / seconds


def _rate_of_cores(forward: Forward, size: int) -> float:
    """All cores at once, as the engine uses them."""

    def run(_: int) -> int:
        runs, start = 0, time.perf_counter()
        while time.perf_counter() - start < _LEAST_SECONDS:
            forward.run_once(size)
            runs += 1
        return runs

    with (
        one_thread_each() as threads,
        ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool,
    ):
        start = time.perf_counter()
        runs = sum(pool.map(run, range(threads)))
        return runs * size / (time.perf_counter() - start)
