"""Where the time of an extraction goes: what its one coordinating thread waits for, and what the work costs.

Seconds in; shares of them by part out. The parts are `decode` (waiting for images), `compute` (for the
teacher), `copy` (for its layers to come into the shard's buffer) and `write` (for a shard to be compressed
and brought to disk). Whatever is waited for most is what holds the run up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Literal

__all__ = ["PARTS", "Part", "StallTimes"]

Part = Literal["decode", "compute", "copy", "write"]
PARTS: Final[tuple[Part, ...]] = ("decode", "compute", "copy", "write")


@dataclass(kw_only=True)
class StallTimes:
    """Seconds: the coordinating thread's where they were waited, of all threads where they were work."""

    decode: float = 0.0
    """Waiting for images."""
    teacher: float = 0.0
    """Waiting for the teacher and for the copies of its layers."""
    write: float = 0.0
    """Waiting for the writer."""
    work: dict[Part, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    """Seconds of a processor, or of a device, that each part took."""
    num_images: int = 0
    """Images of a forward; 0 if there was none."""
    rates: dict[int, float] = field(default_factory=dict)
    """Images a second of every size of a forward that was tried to find that one."""
    peak_host_bytes: int | None = None
    """Most memory of this process, from its start; None where the system does not tell."""
    peak_device_bytes: int | None = None
    """Most memory of the teacher's device; None on a CPU."""
    _guard: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @contextmanager
    def spent(self, waiting: Literal["decode", "teacher", "write"]) -> Iterator[None]:
        """Add the time of a block to what was waited."""
        start = time.perf_counter()
        try:
            yield
        finally:
            setattr(self, waiting, getattr(self, waiting) + time.perf_counter() - start)

    @contextmanager
    def worked(self, part: Part) -> Iterator[None]:
        """Add this thread's processor time in a block to a part's work; from any thread."""
        start = time.thread_time()
        try:
            yield
        finally:
            self.add_work(part, time.thread_time() - start)

    def add_work(self, part: Part, seconds: float) -> None:
        """Add to a part's work; from any thread."""
        with self._guard:
            self.work[part] += seconds

    def shares(self) -> dict[str, float]:
        """Each part's share of the time that was waited; the wait for the teacher is divided as its work."""
        device = self.work["compute"] + self.work["copy"]
        copied = self.teacher * self.work["copy"] / device if device else 0.0
        waited = {
            "decode": self.decode,
            "compute": self.teacher - copied,
            "copy": copied,
            "write": self.write,
        }
        return _shares(waited)

    def work_shares(self) -> dict[str, float]:
        """Each part's share of all work."""
        return _shares({part: self.work[part] for part in PARTS})


def _shares(seconds: dict[str, float]) -> dict[str, float]:
    total = sum(seconds.values())
    return {part: share / total if total else 0.0 for part, share in seconds.items()}
