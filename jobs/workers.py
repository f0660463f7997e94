"""This process among several that extract into one store: its place, and what the terminal shows of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import console

if TYPE_CHECKING:
    from activault.extract import ExtractOptions

__all__ = ["as_worker"]


def as_worker(
    options: ExtractOptions, rank: int | None, world: int | None, *, quiet: bool = False
) -> ExtractOptions:
    """The options of this worker among several, by flags or by what torchrun or Slurm set.

    Where workers share the cores of a machine, torch's threads are set to this worker's share: torchrun would
    give each of them one.
    """
    import torch

    from activault.extract.workers import find_worker

    worker = find_worker(rank, world)
    for note in worker.notes:
        console.warn(note)
    options = worker.applied(options)
    if worker.local_world > 1 and options.device == "cpu":
        torch.set_num_threads(worker.num_cores())
    if worker.world > 1 and not quiet:
        console.err.print(f"activault: {worker}, {options.device}", soft_wrap=True)
    return options
