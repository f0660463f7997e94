"""The thread that compresses and publishes one shard while the next one fills.

In: a shard's buffer, its rows' outcomes and the batches that fill it. Out: the published shard.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final

from activault.store import Outcome, ShardBuffer
from activault.store.errors import ShardTakenError
from activault.store.writing import ShardWriter

from .stalls import StallTimes

__all__ = ["Publisher"]

_log: Final = logging.getLogger(__name__)


@dataclass
class Publisher:
    """Publishes one shard at a time in a thread of its own; an error is raised in the caller's thread."""

    writer: ShardWriter
    stalls: StallTimes
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "publish"))
    _running: Future[None] | None = None

    def __enter__(self) -> Publisher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=True)
        failed = self._running.exception() if self._running is not None else None
        if error is not None and failed is not None and failed is not error:
            error.add_note(f"the shard that was being written failed too: {failed}")

    def check(self) -> None:
        """Raise at once what the running shard failed with, instead of at the end of the next one."""
        if self._running is not None and self._running.done():
            self._running.result()

    def submit(
        self,
        buffer: ShardBuffer,
        outcomes: Sequence[Outcome],
        batches: Sequence[Future[None]],
        threads: int | None,
    ) -> None:
        """Publish a shard when all batches are in its buffer; waits until the one before it is out.

        `threads` encode it; None is one a core.
        """
        self.finish()
        self._running = self._pool.submit(self._publish, buffer, outcomes, batches, threads)

    def _publish(
        self,
        buffer: ShardBuffer,
        outcomes: Sequence[Outcome],
        batches: Sequence[Future[None]],
        threads: int | None,
    ) -> None:
        for batch in batches:
            batch.result()
        # One thread's processor time can be told; that of threads it starts cannot, so the clock's is taken.
        clock = time.thread_time if threads == 1 else time.perf_counter
        start = clock()
        try:
            self.writer.publish(buffer, outcomes, threads)
        except ShardTakenError as exc:
            # Another process holds it and will finish it; if it does not, the next round computes it again.
            _log.warning("%s", exc)
        finally:
            self.stalls.add_work("write", clock() - start)

    def finish(self) -> None:
        """Wait for the shard that is being written."""
        if self._running is not None:
            with self.stalls.spent("write"):
                self._running.result()
