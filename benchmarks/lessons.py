"""What `train.py` has every trainer do, and the clock that it is held against.

A `Task` and a lesson (the kind of training step) in; a `Measured` out: seconds that each step took and that
was waited for each batch. Trainers run their own loops, whole and unaltered: they are handed batches by a
`Feed`, which looks at its clock when it is asked and when it has answered, and ends them with `EnoughError`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from activault.extract.memory import host_peak
from activault.store import Store, open_store

BOTH, ROLLED, CLOSED = "stage 1, both losses", "stage 1, roll-out", "stage 2"
LESSONS: Final = (BOTH, ROLLED, CLOSED)
"""Steps of the first phase while teacher forcing is annealed (the first quarter of them), of the first phase
after that, and of the closed loop."""
CUTS: Final = {2: (7,), 3: (7, 10), 4: (4, 7, 10)}
"""The published phases by their number; the reference's trainer knows no others."""
NUM_LAYERS: Final = 12
Source = str
MEMORY, LOADER, ONLINE = "memory", "loader", "online"
"""Where a batch comes from: the same one each time, the trainer's own loader, or images and the teacher."""
_WARM: Final = 3
"""Steps that are not counted: the first one allocates, and is also where the reference saves. The allocator
settles in those after it: with one step left out ours took up to 63,000 page faults in the next ones, and
the reference, whose first step is of both losses and reserves 2.2 GB, none."""
T = TypeVar("T")


class EnoughError(Exception):
    """Ends a trainer whose steps have been counted."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What all trainers share; they are in processes of their own."""

    store: Path
    num_rows: int
    """The store's first valid rows: those that everybody learns from."""
    work: Path
    checkout: Path | None
    """The reference."""
    images: Path | None
    """For the teacher that is asked online."""
    k: int
    batch_size: int
    num_steps: int
    """That are counted, of one measurement."""
    threads: int

    @property
    def cuts(self) -> tuple[int, ...]:
        """A phase ends after each of these layers."""
        return CUTS[self.k]

    def layers(self, lesson: str) -> range:
        """Layers of a batch."""
        return range(NUM_LAYERS + 1 if lesson == CLOSED else self.cuts[0] + 1)

    def opened(self) -> Store:
        """The store."""
        return open_store(self.store)


@dataclass(frozen=True, kw_only=True)
class Way:
    """One thing to measure."""

    trainer: str
    lesson: str
    source: Source

    @property
    def name(self) -> str:
        """In words."""
        return f"{self.trainer}: {self.lesson}, batches from {self.source}"


@dataclass(kw_only=True)
class Measured:
    """One measurement of one way."""

    step_s: list[float]
    """Seconds of each step, from the batch to the question for the next one."""
    wait_s: list[float]
    """Seconds that each of these steps waited for its batch."""
    first_wait_s: float
    """Seconds until the first batch was there."""
    peak_bytes: int
    """Most memory that the process has had so far, beyond what it had before its first measurement."""

    @property
    def mean_s(self) -> float:
        """Seconds of a step with its waiting."""
        return (sum(self.step_s) + sum(self.wait_s)) / len(self.step_s)

    @property
    def data_s(self) -> float:
        """Seconds of it that are waiting."""
        return sum(self.wait_s) / len(self.wait_s)


class Feed(Generic[T]):
    """Batches for a trainer, and what it did with its time.

    Args:
        batches: without end.
        num_steps: to count; the one before them is not.
    """

    def __init__(self, batches: Iterator[T], num_steps: int) -> None:
        self._batches = batches
        self._num_steps = num_steps
        self._waited: list[float] = []
        self._worked: list[float] = []

    def __iter__(self) -> Iterator[T]:
        for _ in range(_WARM + self._num_steps):
            asked = time.perf_counter()
            batch = next(self._batches)
            handed = time.perf_counter()
            yield batch
            self._waited.append(handed - asked)
            self._worked.append(time.perf_counter() - handed)
        raise EnoughError

    def measured(self) -> Measured:
        """What was counted."""
        assert len(self._worked) == _WARM + self._num_steps, "the trainer ended before it was told to"
        return Measured(
            step_s=self._worked[_WARM:],
            wait_s=self._waited[_WARM:],
            first_wait_s=self._waited[0],
            peak_bytes=(host_peak() or 0) - _imported,
        )


_imported = 0
"""Most memory of this process before it measured anything."""


def start() -> None:
    """To be called in a process when it has imported everything."""
    global _imported
    _imported = host_peak() or 0
