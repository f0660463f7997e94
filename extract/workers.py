"""Which of several workers this process is: by flags, or by what torchrun or Slurm set.

A rank, a number of workers and the environment in; the order in which this worker takes shards, its device
and its share of the cores out. None of it changes a store: a rank says where a worker begins, so that workers
do not ask for the same shards, and whatever is unfinished then is taken by whoever is free.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from activault.store import ConfigError
from activault.store.cores import num_cores

from .machine import choose_device
from .options import ExtractOptions

__all__ = ["Worker", "find_worker", "own_first"]

_COUNTS: Final = re.compile(r"(\d+)(?:\(x(\d+)\))?")


@dataclass(frozen=True, kw_only=True)
class Worker:
    """One of several processes that extract into one store."""

    rank: int = 0
    world: int = 1
    """How many workers there are, as far as anybody said."""
    local_rank: int = 0
    """Among the workers of this machine."""
    local_world: int = 1
    origin: str | None = None
    """Who said so: `flags`, `torchrun`, `Slurm`; None if nobody did."""
    notes: tuple[str, ...] = ()
    """What was not taken as it was said, in sentences."""

    def applied(self, options: ExtractOptions) -> ExtractOptions:
        """The options of this worker: its rank, and what is automatic about device and decoding threads."""
        device = options.device if options.device != "auto" else str(choose_device("auto", self.local_rank))
        workers = options.workers or self.num_cores()
        return replace(
            options,
            rank=self.rank,
            world=self.world,
            local_world=self.local_world,
            device=device,
            workers=workers,
        )

    def num_cores(self, environment: Mapping[str, str] = os.environ) -> int:
        """Cores for this worker: what the launcher bound it to, or its share of what all may use together."""
        mine = num_cores()
        there = _number(environment, "SLURM_CPUS_ON_NODE") or os.cpu_count() or mine
        return mine if self.local_world == 1 or mine < there else max(1, mine // self.local_world)

    def __str__(self) -> str:
        return f"worker {self.rank} of {self.world} (by {self.origin}), {self.num_cores()} cores"


def own_first(shards: Sequence[int], rank: int, world: int) -> list[int]:
    """Shards in the order in which a worker asks for them.

    First every `world`-th one, ascending; then those of the other ranks, from their ends: their owners come
    from the other side.
    """
    strides = [[shard for shard in shards if shard % world == (rank + step) % world] for step in range(world)]
    return [*strides[0], *chain.from_iterable(reversed(stride) for stride in strides[1:])]


def find_worker(
    rank: int | None = None, world: int | None = None, environment: Mapping[str, str] = os.environ
) -> Worker:
    """This process among the workers; flags go before torchrun, and torchrun before Slurm.

    Tasks of a Slurm array count as a dimension of their own: 4 tasks of an array of 10 are 40 workers.

    Args:
        rank: by flag; None if it was not given.
        world: likewise.
        environment: variables that launchers set.

    Raises:
        ConfigError: one flag without the other, or a rank that is not among 0 to world - 1. What does not
            fit in the environment is told in `Worker.notes`, and left out.
    """
    notes = list[str]()
    torchrun = _pair(environment, "RANK", "WORLD_SIZE", notes)
    slurm = _pair(environment, "SLURM_PROCID", "SLURM_NTASKS", notes) if _is_step(environment) else None
    local = _local(environment, torchrun is not None, notes)
    if rank is not None or world is not None:
        flags = _checked(rank, world)
        if torchrun or slurm:
            notes.append(f"rank {rank} of {world} is by flags; what the launcher says is not looked at")
        return _worker("flags", flags, local or (flags[0], 1), notes)
    if torchrun and slurm and torchrun != slurm and slurm[1] > 1:
        notes.append(
            f"torchrun says rank {torchrun[0]} of {torchrun[1]}, and Slurm {slurm[0]} of {slurm[1]}; "
            "torchrun's is taken"
        )
    tasks = _number(environment, "SLURM_NTASKS") or 1
    if tasks > 1 and torchrun is None and not _is_step(environment):
        notes.append(
            f"this is the script of a Slurm job of {tasks} tasks, and not one of them; `srun activault ...` "
            "in it starts them all"
        )
    of_array = _array(environment, notes)
    if torchrun is None and slurm is None and of_array is None:
        return Worker(notes=tuple(notes))
    (index, count), (place, number) = of_array or (0, 1), torchrun or slurm or (0, 1)
    origin = "torchrun" if torchrun else "Slurm"
    return _worker(origin, (index * number + place, count * number), local or (0, 1), notes)


def _worker(origin: str, place: tuple[int, int], local: tuple[int, int], notes: list[str]) -> Worker:
    return Worker(
        rank=place[0],
        world=place[1],
        local_rank=local[0],
        local_world=local[1],
        origin=origin,
        notes=tuple(notes),
    )


def _checked(rank: int | None, world: int | None) -> tuple[int, int]:
    if rank is None or world is None:
        raise ConfigError(
            f"rank and world go together; got rank {rank} and world {world}; give --rank and --world, or "
            "neither: any number of workers may run without"
        )
    if not 0 <= rank < world:
        raise ConfigError(f"a rank is among 0 to world - 1; got rank {rank} of world {world}")
    return rank, world


def _is_step(environment: Mapping[str, str]) -> bool:
    """Whether srun started this process; a job's script has the same variables as its first task, but one."""
    return bool(environment.get("SLURM_STEP_ID") or environment.get("SLURM_STEPID"))


def _pair(environment: Mapping[str, str], rank: str, world: str, notes: list[str]) -> tuple[int, int] | None:
    """A rank and of how many; None if they are not set, or are no such pair, which is noted."""
    said = {name: environment[name] for name in (rank, world) if environment.get(name)}
    if not said:
        return None
    found = _number(environment, rank), _number(environment, world)
    if found[0] is None or found[1] is None or found[0] >= found[1]:
        spoken = ", ".join(f"{name}={value}" for name, value in said.items())
        notes.append(f"{rank} is below {world}, and both are set; got {spoken}; they are left out")
        return None
    return found[0], found[1]


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "").strip()
    return int(text) if text.isascii() and text.isdigit() else None


def _local(environment: Mapping[str, str], is_torchrun: bool, notes: list[str]) -> tuple[int, int] | None:
    """Rank and number of workers on this machine; None where nobody says."""
    if is_torchrun:
        if (
            not environment.get("LOCAL_WORLD_SIZE")
            and (rank := _number(environment, "LOCAL_RANK")) is not None
        ):
            return rank, 1
        return _pair(environment, "LOCAL_RANK", "LOCAL_WORLD_SIZE", notes)
    rank = _number(environment, "SLURM_LOCALID")
    if rank is None or not _is_step(environment):
        return None
    return rank, max(_slurm_tasks(environment), rank + 1)


def _slurm_tasks(environment: Mapping[str, str]) -> int:
    """Tasks of this step on this machine; 1 where that is not told."""
    # A step inherits what its job's script asked for, and may be smaller.
    text = environment.get("SLURM_STEP_TASKS_PER_NODE", "")
    if not text and (found := _number(environment, "SLURM_NTASKS_PER_NODE")) is not None:
        return found
    text = text or environment.get("SLURM_TASKS_PER_NODE", "")
    counts = list[int]()  # `2(x3),1`: two on each of three machines, one on the fourth
    for part in text.split(","):
        if match := _COUNTS.fullmatch(part.strip()):
            counts += [int(match[1])] * min(int(match[2] or 1), 1 << 16)
    node = _number(environment, "SLURM_NODEID") or 0
    return counts[node] if node < len(counts) else 1


def _array(environment: Mapping[str, str], notes: list[str]) -> tuple[int, int] | None:
    """Place in a Slurm array and the array's length; None outside of one."""
    task, count = (_number(environment, f"SLURM_ARRAY_TASK_{name}") for name in ("ID", "COUNT"))
    if task is None:
        return None
    if not count:
        notes.append("SLURM_ARRAY_TASK_ID is set without SLURM_ARRAY_TASK_COUNT; it is left out")
        return None
    first, step = (_number(environment, f"SLURM_ARRAY_TASK_{name}") for name in ("MIN", "STEP"))
    # Of an array such as 1,5,9 two tasks may come out at one place: they begin at the same shards.
    return (task - (first or 0)) // (step or 1) % count, count
