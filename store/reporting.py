"""Jobs on threads that tell how many bytes they have done, to a caller who shows it.

Jobs that call `advance(bytes)` in; their results in the jobs' order out. `progress` is called in the caller's
own thread. A caller that is interrupted stops the jobs at their next `advance`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from typing import Final, Generic, TypeVar

__all__ = ["Advance", "Progress", "run_reporting"]

Result = TypeVar("Result")
Advance = Callable[[int], None]
Progress = Callable[[int, int], None]
"""Called with bytes done and bytes in all."""
_REPORT_BYTES: Final = 32 << 20


class _StoppedError(Exception):
    """The caller wants no more."""


class _Jobs(Generic[Result]):
    """Running jobs, which report the bytes they have done to the one that waits for them."""

    def __init__(self) -> None:
        self._reports: SimpleQueue[int | None] = SimpleQueue()
        """Bytes that were done; None for a job that is."""
        self.stop = threading.Event()

    def submit(self, pool: ThreadPoolExecutor, job: Callable[[Advance], Result]) -> Future[Result]:
        """Have a job done in a thread of the pool."""
        future = pool.submit(partial(self._run, job))
        future.add_done_callback(lambda _: self._reports.put(None))
        return future

    def _run(self, job: Callable[[Advance], Result]) -> Result:
        waiting = 0

        def advance(size: int) -> None:
            nonlocal waiting
            if self.stop.is_set():
                raise _StoppedError
            waiting += size
            if waiting >= _REPORT_BYTES:  # a report takes the interpreter from those that work
                self._reports.put(waiting)
                waiting = 0

        try:
            return job(advance)
        finally:
            self._reports.put(waiting)

    def wait(self, num_jobs: int, told: Callable[[int], None]) -> None:
        """Until so many jobs are done; `told` is called with their bytes, 0 at first."""
        told(0)
        while num_jobs:
            size = self._reports.get()
            if size is None:
                num_jobs -= 1
            else:
                told(size)


def run_reporting(
    jobs: Sequence[Callable[[Advance], Result]],
    threads: int,
    progress: Progress | None,
    done: int,
    total: int,
) -> list[Result]:
    """Results of all jobs, in their order; raises what the first of them that failed has raised.

    Args:
        jobs: each is called with a function that it tells its bytes.
        threads: how many work at a time.
        progress: called with bytes done and bytes in all.
        done: bytes that count as done before.
        total: bytes in all.
    """
    running: _Jobs[Result] = _Jobs()

    def told(size: int) -> None:
        nonlocal done
        done += size
        if progress is not None:
            progress(min(done, total), total)

    with ThreadPoolExecutor(threads, "activault-verify") as pool:
        try:
            futures = [running.submit(pool, job) for job in jobs]
            running.wait(len(futures), told)
        finally:
            running.stop.set()
            pool.shutdown(cancel_futures=True)
    return [future.result() for future in futures]
