"""Leases: a living owner renews its mark again and again, and one whose mark stays as it was loses its shard.

An open mark in; whether its owner has been seen to be alive, out. Clocks are not compared between machines:
whoever waits looks whether the mark's time of change is another one, and counts the seconds by its own clock,
those alone in which it looked.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import threading
import time
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from .files import canonical_json

__all__ = ["LEASE", "MOST_LEASE", "Heartbeat", "Holder", "Watch", "read_holder", "write_holder"]

LEASE: Final = 120.0
"""Seconds without a sign of life after which a shard is taken over."""
MOST_LEASE: Final = 86_400
"""Seconds that a lease may have."""
_BEATS: Final = 6
"""Renewals within a lease: five may be lost or late."""
_MAX_BYTES: Final = 4096


@dataclass(frozen=True)
class Holder:
    """What a mark says of its owner."""

    lease: float | None
    """Seconds; None of an owner that does not renew, and has its shard until its lock goes."""
    who: str
    """Process and host, for messages."""


def write_holder(handle: int, lease: float) -> None:
    """Say in a new mark who has it and for how long a sign of life holds."""
    said = {"host": platform.node(), "lease": lease, "process": os.getpid()}
    os.write(handle, canonical_json(said))


def read_holder(handle: int) -> Holder:
    """What an open mark says; nothing is trusted, as it may be half-written, a record or somebody else's."""
    unknown = Holder(None, "another process")
    try:
        said = json.loads(os.pread(handle, _MAX_BYTES, 0))
        lease = float(said["lease"])
        who = f"process {int(said['process'])} on {str(said['host'])[:80]}"
    except (ValueError, TypeError, KeyError):
        return unknown
    return Holder(lease, who) if 0 < lease < float("inf") else unknown


class Watch:
    """For how long the owners of shards have given no sign of life, as seen from here. Any thread may ask.

    Args:
        lease: seconds; an owner that says more has more.
    """

    def __init__(self, lease: float) -> None:
        self._lease = lease
        self._seen: dict[int, tuple[tuple[int, ...], float, float]] = {}
        self._lock = threading.Lock()

    def is_expired(self, shard: int, handle: int) -> bool:
        """Look at a shard's mark, just opened; whether it has stayed the same for the whole lease."""
        status, now, holder = os.fstat(handle), time.monotonic(), read_holder(handle)
        sign = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
        if holder.lease is None:
            return False
        lease = max(self._lease, holder.lease)
        with self._lock:
            before, waited, last = self._seen.get(shard, (None, 0.0, now))
            # One long step says that it is the looker who was stopped, perhaps together with the owner.
            waited = waited + min(now - last, lease / _BEATS) if before == sign else 0.0
            self._seen[shard] = (sign, waited, now)
            if waited < lease:
                return False
            del self._seen[shard]
            return True


class _Renewed(Protocol):
    """What a heartbeat renews."""

    def renew(self) -> None:
        """Give a sign of life."""


class Heartbeat:
    """A thread that renews marks from the first one on until `stop`, or until this is collected."""

    def __init__(self, lease: float) -> None:
        self._interval = lease / _BEATS
        self._marks: weakref.WeakSet[_Renewed] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.stop = weakref.finalize(self, self._stopped.set)
        """No mark is renewed any more."""

    def add(self, mark: _Renewed) -> None:
        """Renew a mark for as long as it lives; one that is closed takes no harm."""
        with self._lock:
            self._marks.add(mark)
            if self._thread is None:
                arguments = (self._marks, self._lock, self._stopped, self._interval)
                self._thread = threading.Thread(target=_beat, args=arguments, name="lease", daemon=True)
                self._thread.start()

    def remove(self, mark: _Renewed) -> None:
        """Renew it no longer."""
        with self._lock:
            self._marks.discard(mark)


def _beat(marks: Iterable[_Renewed], lock: threading.Lock, stopped: threading.Event, interval: float) -> None:
    """A thread's work; it has no hold of the `Heartbeat`, which would never be collected then."""
    while not stopped.wait(interval):
        _renew(marks, lock)


def _renew(marks: Iterable[_Renewed], lock: threading.Lock) -> None:
    with lock:
        found = list(marks)
    for mark in found:
        # A disk that is gone for a while is no reason to end: others look at who has which shard.
        with contextlib.suppress(OSError):
            mark.renew()
