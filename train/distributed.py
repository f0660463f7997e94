"""Several processes that train one model: who they are, and what they have to agree on.

    torchrun or srun's variables  ->  Peers(rank, world), a process group that ends with the block

Every process holds the whole model and draws its own part of each step's rows; DDP averages the gradients.
Process 0 writes; what it does for all (`on_first`) is done or fails in all of them alike. Words between the
processes go through gloo on the CPUs, so that no word waits for a device.

    torchrun --nproc-per-node 4 -m activault.jobs train recipe.toml --out RUN
    srun --ntasks 4 activault train recipe.toml --out RUN
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from activault.store.errors import ActivaultError, ConfigError

__all__ = ["ALONE", "Place", "Peers", "joined", "place_in"]

T = TypeVar("T")
FIRST_PORT, NUM_PORTS = 20_000, 20_000


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where one process stands among those that were started together."""

    rank: int = 0
    """Number of the process, from 0."""
    world: int = 1
    """Number of processes."""
    local_rank: int = 0
    """Number of the process on its machine, which is that of its device."""
    address: str = ""
    """`host:port` of process 0; empty for one process."""


def place_in(environment: Mapping[str, str] = os.environ) -> Place:
    """What torchrun's variables say, or those that srun sets for the tasks of a step; one process otherwise.

    A batch script without srun is one process however many tasks its job has.

    Raises:
        ConfigError: a variable is absent or no number.
    """
    try:
        if "WORLD_SIZE" in environment and "RANK" in environment:
            host, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
            rank, world = int(environment["RANK"]), int(environment["WORLD_SIZE"])
            local = int(environment.get("LOCAL_RANK", rank))
        elif int(environment.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
            world, rank = int(environment["SLURM_STEP_NUM_TASKS"]), int(environment["SLURM_PROCID"])
            local = int(environment["SLURM_LOCALID"])
            host = environment.get("MASTER_ADDR") or _first_host(environment["SLURM_STEP_NODELIST"])
            # One port a step of a job, the same in all its tasks.
            number = 100 * int(environment["SLURM_JOB_ID"]) + int(environment.get("SLURM_STEP_ID", "0"))
            port = environment.get("MASTER_PORT") or str(FIRST_PORT + number % NUM_PORTS)
        else:
            return Place()
    except (KeyError, ValueError) as exc:
        raise ConfigError(
            f"processes that train together are told their places by torchrun or srun; {exc} does not fit: "
            "start them by one of the two"
        ) from exc
    if not 0 <= rank < world:
        raise ConfigError(
            f"a process's rank is below the number of processes; got {rank} and {world}: start them by "
            "torchrun or srun, or unset RANK and WORLD_SIZE for one process"
        )
    if world == 1:
        return Place()
    if not host or not port:
        raise ConfigError(
            f"{world} processes meet at MASTER_ADDR and MASTER_PORT; got {host!r} and {port!r}: start them "
            "by torchrun or srun"
        )
    return Place(rank=rank, world=world, local_rank=local, address=f"{host}:{port}")


def _first_host(nodes: str) -> str:
    """The first machine of Slurm's list: `n1` of `n1,n2`, `node07` of `node[07-09,12]`."""
    name, bracket, rest = re.split(r",(?![^\[]*\])", nodes)[0].partition("[")
    if not bracket:
        return name
    number, _, suffix = rest.partition("]")
    return name + re.split(r"[-,]", number)[0] + suffix


@dataclass(frozen=True, kw_only=True)
class Peers:
    """The processes that train together, seen from one of them; one process alone needs no group."""

    rank: int = 0
    """Number of this process, from 0."""
    world: int = 1
    """Number of processes."""
    words: Any = None
    """gloo's group of all of them; None for one process alone."""

    @property
    def is_first(self) -> bool:
        """Whether this process writes."""
        return self.rank == 0

    def on_first(self, work: Callable[[], T]) -> T:
        """Let process 0 do something for all of them; every process gets its result, or raises its error.

        What is handed on is what users meet: errors of this program, and what the disk says.
        """
        if self.words is None:
            return work()
        told: list[Any] = [None, None]
        if self.is_first:
            try:
                told[0] = work()
            except (ActivaultError, OSError) as exc:
                told[1] = exc
        dist.broadcast_object_list(told, src=0, group=self.words)
        if told[1] is not None:
            raise told[1]
        return cast("T", told[0])

    def mean(self, values: Tensor) -> Tensor:
        """Mean over the processes, in the same shape, on the CPU."""
        if self.words is None:
            return values
        values = values.cpu()
        dist.all_reduce(values, group=self.words)
        return values / self.world

    def gathered(self, value: T) -> list[T]:
        """Every process's value, by rank."""
        if self.words is None:
            return [value]
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value, group=self.words)
        return cast("list[T]", values)


ALONE = Peers()
"""One process."""


class Agreement:
    """Whether any process wants to stop, known to all of them at the same step.

    Each step sends a word and reads that of the step before, which has arrived meanwhile: nobody waits, and
    all stop one step after the first that wanted to.
    """

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._sent: tuple[Any, Tensor] | None = None

    def to_stop(self, wanted: bool) -> bool:
        """Tell what this process wants, and hear whether all stop after this step."""
        if self._peers.words is None:
            return wanted
        word = torch.tensor([int(wanted)])
        before = self._sent
        work = dist.all_reduce(word, dist.ReduceOp.MAX, group=self._peers.words, async_op=True)
        self._sent = (work, word)
        return _heard(before)

    def last_word(self, wanted: bool) -> bool:
        """Whether all stop after the last step; hears what was told there."""
        if self._peers.words is None:
            return wanted
        before, self._sent = self._sent, None
        return _heard(before)

    def close(self) -> None:
        """Hear the last word also where an error ends the loop."""
        self.last_word(False)


def _heard(sent: tuple[Any, Tensor] | None) -> bool:
    """What came of a word, once all have told theirs; False where none was sent."""
    if sent is None:
        return False
    sent[0].wait()
    return bool(sent[1])


@contextmanager
def joined(device: torch.device, place: Place | None = None) -> Iterator[tuple[Peers, torch.device]]:
    """This process among those it was started with, and the device that is its own.

    A group that the caller has made is used and left as it is. CUDA devices talk through nccl, all others
    through gloo. `cuda` becomes `cuda:LOCAL_RANK`.

    Raises:
        ConfigError: the processes' places are not told, or they do not find each other.
    """
    if dist.is_initialized():
        with _words() as words:
            yield Peers(rank=dist.get_rank(), world=dist.get_world_size(), words=words), device
        return
    place = place_in() if place is None else place
    if place.world == 1:
        yield ALONE, device
        return
    if device.type == "cuda":
        device = torch.device("cuda", place.local_rank if device.index is None else device.index)
        torch.cuda.set_device(device)
    try:
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            init_method=f"tcp://{place.address}",
            rank=place.rank,
            world_size=place.world,
        )
    except (RuntimeError, ValueError) as exc:
        raise ConfigError(
            f"{place.world} processes meet at {place.address}; process {place.rank} did not find them: {exc}"
        ) from exc
    try:
        with _words() as words:
            yield Peers(rank=place.rank, world=place.world, words=words), device
    finally:
        dist.destroy_process_group()


@contextmanager
def _words() -> Iterator[Any]:
    """A group of all processes on the CPUs."""
    words = dist.new_group(backend="gloo")
    try:
        yield words
    finally:
        dist.destroy_process_group(words)
