"""Leases in a bucket: who is at work on what, kept apart by conditional requests and given up by time-out.

The path of a lease in; whether it is held out. A lease is an object that its owner writes anew again and
again. Others take it over when they have seen it unchanged for its time-out, by their own clock: no two
clocks are compared. Takeover, renewal and giving up are each one request under the condition that the lease
is still the one that was seen.

A lease saves work and decides nothing: an owner that was stopped for an hour does not know that it lost it.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from pydantic import Field, ValidationError

from .errors import ConfigError, StorageError
from .files import canonical_json
from .models import Model
from .objects import Entry, Objects

__all__ = ["Leases"]

_log: Final = logging.getLogger(__name__)
_RENEWALS: Final = 4
"""Renewals within one time-out."""
_LONGEST_S: Final = 86_400.0


class _Lease(Model):
    """What a lease says."""

    owner: str | None
    """A name of its own for every writer; None where it was given up."""
    beat: int = Field(ge=0)
    """Counts its renewals, so that each is another object."""
    timeout_s: float = Field(gt=0, le=_LONGEST_S)
    """Seconds after which others may take it over if it has not changed."""
    holder: str
    """Host and process, for people."""

    def to_bytes(self) -> bytes:
        return canonical_json(self.model_dump())


@dataclass
class _Held:
    """A lease of our own."""

    tag: str
    beat: int


@dataclass(frozen=True)
class _Seen:
    """Another's lease, as it was first seen so."""

    tag: str
    since: float
    timeout_s: float


class Leases:
    """The leases that one writer holds, renewed by a thread; safe to call from several threads.

    Args:
        objects: the store.
        timeout_s: seconds without a renewal after which others take over.
        clock: seconds that pass.
        impatient: the same store, for renewals, which are soon tried again anyway, and for giving up.
    """

    def __init__(
        self,
        objects: Objects,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        impatient: Objects | None = None,
    ) -> None:
        if not 0 < timeout_s <= _LONGEST_S:
            raise ConfigError(f"a lease's time-out is above 0 and at most 86,400 seconds; got {timeout_s}")
        self._objects = objects
        self._impatient = impatient or objects
        self.timeout_s = timeout_s
        """Seconds without a renewal after which others take over."""
        self._clock = clock
        self._owner = uuid.uuid4().hex
        self._held: dict[str, _Held] = {}
        self._seen: dict[str, _Seen] = {}
        self._lock = threading.RLock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self, path: str) -> bool:
        """Become the owner, if there is none, or it gave no sign for its time-out."""
        with self._lock:
            if path in self._held:
                return True
            mine = self._lease(0)
            tag = None if path in self._seen else self._objects.create(path, mine)
            if tag is None:
                theirs = self._free(path)
                tag = theirs and self._objects.replace(path, mine, theirs)
            if tag is None:
                return False
            self._seen.pop(path, None)
            self._held[path] = _Held(tag, 0)
            self._start()
            return True

    def _free(self, path: str) -> str | None:
        """Tag of another's lease that may be taken over; None where it may not, or is gone by now."""
        found = self._objects.read_tagged(path)
        if found is None:
            self._seen.pop(path, None)
            return None
        data, tag = found
        try:
            lease = _Lease.model_validate_json(data)
        except ValidationError:  # no writer's; whoever made it gives no sign either
            lease = _Lease(owner="", beat=0, timeout_s=self.timeout_s, holder="unknown")
        seen = self._seen.get(path)
        if seen is None or seen.tag != tag:
            seen = self._seen[path] = _Seen(tag, self._clock(), lease.timeout_s)
        if lease.owner is not None and not self._is_over(seen):
            return None
        if lease.owner is not None:
            _log.warning(
                "%s of %s is taken over from %s, which gave no sign for %g s",
                path,
                self._objects.where,
                lease.holder,
                lease.timeout_s,
            )
        return tag

    def _is_over(self, seen: _Seen) -> bool:
        return self._clock() - seen.since >= seen.timeout_s

    def look(self, entries: Mapping[str, Entry]) -> None:
        """Take in what a listing says of leases; those that are not in it are gone."""
        with self._lock:
            self._seen = {
                path: seen
                for path, seen in self._seen.items()
                if path in entries and entries[path].tag == seen.tag
            }

    def is_others(self, path: str) -> bool:
        """Whether another owns it, as far as was seen, so that nothing need be asked."""
        with self._lock:
            seen = self._seen.get(path)
            return seen is not None and not self._is_over(seen)

    def holds(self, path: str) -> bool:
        """Whether it is ours, as far as is known here."""
        with self._lock:
            return path in self._held

    def renew(self, path: str) -> bool:
        """Give a sign now; False where it was lost."""
        with self._lock:
            held = self._held.get(path)
            if held is None:
                return False
            tag = self._impatient.replace(path, self._lease(held.beat + 1), held.tag)
            if tag is None:
                del self._held[path]
                _log.warning(
                    "%s of %s was taken over by another writer, as this one gave no sign for %g s; it goes "
                    "on with others",
                    path,
                    self._objects.where,
                    self.timeout_s,
                )
                return False
            self._held[path] = _Held(tag, held.beat + 1)
            return True

    def give_up(self, path: str) -> None:
        """Leave it to others at once, if it is ours still and the place can be reached."""
        with self._lock:
            held = self._held.pop(path, None)
            if held is None:
                return
            free = _Lease(owner=None, beat=held.beat + 1, timeout_s=self.timeout_s, holder=self._holder())
            try:
                self._impatient.replace(path, free.to_bytes(), held.tag)
            except StorageError as exc:  # others wait for its time-out then
                _log.warning("%s of %s could not be given up: %s", path, self._objects.where, exc)

    def remove(self, path: str) -> None:
        """Remove one that nobody needs any more, since what it was for is done, whoever's it is."""
        with self._lock:
            self._held.pop(path, None)
            self._seen.pop(path, None)
            self._objects.remove(path)

    def close(self) -> None:
        """Give up what is held, and stop renewing."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        for path in list(self._held):
            self.give_up(path)

    def _lease(self, beat: int) -> bytes:
        lease = _Lease(owner=self._owner, beat=beat, timeout_s=self.timeout_s, holder=self._holder())
        return lease.to_bytes()

    @staticmethod
    def _holder() -> str:
        return f"process {os.getpid()} on {socket.gethostname()}"

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep, name="renew leases", daemon=True)
            self._thread.start()

    def _keep(self) -> None:
        while not self._stopped.wait(self.timeout_s / _RENEWALS):
            with self._lock:
                paths = list(self._held)
            for path in paths:
                try:
                    self.renew(path)
                except StorageError as exc:
                    # The next one may get through; until then others may take over, which harms nothing.
                    _log.warning("%s of %s could not be renewed: %s", path, self._objects.where, exc)
