"""Runs jobs on this machine, so many at a time, each in a process of its own.

    [job, ...]  ->  exit status and log of each, as they end

The processes are in sessions of their own, so that the terminal's Ctrl-C reaches this one alone, which hands
on exactly one to each: a second would cut a step short. Their standard input is a pipe that nothing is
written to; it ends when this process does, however that happens.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from activault.store.cores import num_cores

__all__ = ["Ended", "LocalJob", "end_with_sweep", "run_locally", "threads_for"]

LOOK_EVERY = 0.1
"""Seconds between looks at the processes."""


@dataclass(frozen=True, kw_only=True)
class LocalJob:
    """One process to be."""

    name: str
    """What it is called."""
    command: Sequence[str]
    """Program and arguments."""
    log: Path
    """Where its output goes; what is there is kept."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A process that ended."""

    job: LocalJob
    """Which one."""
    status: int
    """Its exit status; below 0, the signal that killed it."""
    said: str
    """What it wrote to its log, this time."""

    @property
    def why(self) -> str:
        """Status and last words, in one line."""
        lines = [line for line in self.said.splitlines() if line.strip()]
        last = lines[-1].removeprefix("activault: ") if lines else ""
        if self.status >= 0:
            return f"exit status {self.status}: {last or 'it said nothing'}"
        name = signal.Signals(-self.status).name
        memory = ", as a system does that is out of memory" if name == "SIGKILL" else ""
        return f"killed by {name}{memory}; {f'its last words: {last}' if last else 'it said nothing'}"


@dataclass
class _Running:
    job: LocalJob
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    begins: int
    """Where in the log its own words begin."""

    def close(self) -> None:
        """Let go of its files."""
        self.log.close()
        if self.process.stdin is not None:
            self.process.stdin.close()

    def ended(self) -> Ended:
        """What is left of it."""
        self.close()
        with self.job.log.open("rb") as log:
            log.seek(self.begins)
            said = log.read().decode("utf-8", errors="replace")
        return Ended(job=self.job, status=self.process.returncode, said=said)


def run_locally(
    jobs: Sequence[LocalJob],
    *,
    parallel: int,
    environment: Mapping[str, str],
    keep_open: Sequence[int] = (),
) -> Iterator[Ended]:
    """Run the jobs in their order, `parallel` at a time, and give each as it ends.

    `keep_open` are file descriptors that every process inherits, a lock's say.

    Raises:
        KeyboardInterrupt: Ctrl-C, after every process that was running has ended by one of its own.
    """
    waiting, running = list(jobs), list[_Running]()
    with _stopped_together(running):
        while waiting or running:
            while waiting and len(running) < parallel:
                running.append(_started(waiting.pop(0), environment, keep_open))
            ended = [each for each in running if each.process.poll() is not None]
            for each in ended:
                running.remove(each)
                yield each.ended()
            if not ended:
                time.sleep(LOOK_EVERY)


def _started(job: LocalJob, environment: Mapping[str, str], keep_open: Sequence[int]) -> _Running:
    job.log.parent.mkdir(parents=True, exist_ok=True)
    log = job.log.open("ab")
    begins = log.seek(0, os.SEEK_END)
    process = subprocess.Popen(  # noqa: S603 - this very Python, with arguments of ours
        job.command,
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=dict(environment),
        start_new_session=True,
        pass_fds=keep_open,
    )
    return _Running(job, process, log, begins)


@contextmanager
def _stopped_together(running: Sequence[_Running]) -> Iterator[None]:
    """Interrupt whatever still runs when the block ends, and wait for it."""
    try:
        yield
    finally:
        for each in running:
            each.process.send_signal(signal.SIGINT)
        for each in running:
            each.process.wait()
            each.close()


def end_with_sweep() -> None:
    """Interrupt this process, one of `run_locally`, once the one that started it is gone."""

    def wait() -> None:
        os.read(sys.stdin.fileno(), 1)  # through sys.stdin, its lock would be missed when the program ends
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=wait, daemon=True).start()


def threads_for(parallel: int, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of one of `parallel` processes: they share the cores, unless the user has said how."""
    shared = dict(environment)
    if parallel > 1 and "OMP_NUM_THREADS" not in shared:
        shared["OMP_NUM_THREADS"] = str(max(1, num_cores() // parallel))
    return shared
