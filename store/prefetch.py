"""Executing turns: pools are read on threads while batches are cut from the one before.

Turns (see `turns.py`) in; their batches' tokens (batch, layers, tokens, dim) out, in order and without a gap:
a fault in a thread is raised where its batch would have been. At most two pools and two batches are held. The
first pool of a turn is read while the last batches of the one before are cut.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar

import torch

from .errors import ConfigError
from .pools import PoolRead, Pools
from .turns import RankPool, Turn

__all__ = ["Execution"]

Result = TypeVar("Result")
PoolName = tuple[int, int]
"""Number of the turn, and of the pool in it."""
_BATCHES_AHEAD: Final = 2
_MOST_POOLS: Final = 2


class Execution:
    """One run through some turns; a context manager, which ends its threads.

    Args:
        pools: what pools and batches are like.
        turns: the turn of a number from 0 on; None behind the last.
        num_threads: that read; 0 reads in the caller's thread.
    """

    def __init__(self, pools: Pools, turns: Callable[[int], Turn | None], num_threads: int) -> None:
        self._pools = pools
        self._turns = turns
        self._known: dict[int, Turn | None] = {}
        self._read: dict[PoolName, tuple[PoolRead, RankPool]] = {}
        self._process = os.getpid()
        self._readers = ThreadPoolExecutor(num_threads, "activault-pool") if num_threads else None
        # Batches are cut on a thread of their own: behind the next pool's reads they would wait for all of
        # them.
        self._cutter = _one_core_thread() if num_threads else None

    def __enter__(self) -> Execution:
        return self

    def __exit__(self, *exception: object) -> None:
        for threads in (self._readers, self._cutter):
            # A fork has none of the threads, and perhaps their locks as they were held: it must not wait.
            if threads is not None and self._process == os.getpid():
                threads.shutdown(cancel_futures=True)
        self._read.clear()

    def batches(self) -> Iterator[tuple[Turn, int, torch.Tensor]]:
        """`(turn, number of the step, tokens)` of every step.

        Raises:
            ConfigError: it goes on in a fork of the process that began it.
        """
        steps = self._steps()
        ahead: deque[tuple[int, int, Future[torch.Tensor]]] = deque()
        # A view costs nothing to cut, and one that waits for its turn would hold on to its pool.
        most = _BATCHES_AHEAD if self._cutter and not self._pools.are_views else 1
        # The consumer still looks at the batch before when it asks for the next: its pool is not given up
        # until then, if it is a view of that.
        done: PoolName | None = None
        while True:
            self._refuse_fork()
            while len(ahead) < most and (following := next(steps, None)) is not None:
                ahead.append((*following, self._submit(*following)))
            if not ahead:
                return
            number, step, cut = ahead.popleft()
            turn = self._turn(number)
            assert turn is not None
            last = (number, turn.pools_of(step)[-1])
            self._read_ahead(last)
            tokens = cut.result()
            del cut
            done = (done if self._pools.are_views else last) or last
            self._give_up_before(done)
            self._read_ahead(last)
            done = last
            yield turn, step, tokens

    def _refuse_fork(self) -> None:
        if self._process != os.getpid():
            raise ConfigError(
                "an iterator of a loader reads on threads, which a fork does not have; this one was begun in "
                f"process {self._process} and goes on in {os.getpid()}; make a loader in the child, or start "
                "children by spawn"
            )

    def _turn(self, number: int) -> Turn | None:
        if number not in self._known:
            self._known[number] = self._turns(number)
            self._known.pop(number - 3, None)
        return self._known[number]

    def _steps(self) -> Iterator[tuple[int, int]]:
        """`(number of the turn, step)` of all of them."""
        number = 0
        while (turn := self._turn(number)) is not None:
            for step in range(turn.num_steps):
                yield number, step
            number += 1

    def _after(self, name: PoolName) -> PoolName | None:
        """The pool that is needed next after one; None if there is none."""
        number, pool = name
        turn = self._turn(number)
        assert turn is not None
        if pool < turn.pools_of(turn.num_steps - 1)[-1]:
            return number, pool + 1
        following = self._turn(number + 1)
        return None if following is None else (number + 1, following.pools_of(0)[0])

    def _give_up_before(self, name: PoolName) -> None:
        """Let go of the pools that have been emptied."""
        for earlier in [each for each in self._read if each < name]:
            del self._read[earlier]

    def _read_ahead(self, name: PoolName) -> None:
        """Read the pool after one, if there is room."""
        if self._readers is not None and len(self._read) < _MOST_POOLS:
            following = self._after(name)
            if following is not None:
                self._start(following)

    def _submit(self, number: int, step: int) -> Future[torch.Tensor]:
        turn = self._turn(number)
        assert turn is not None
        pieces = []
        for pool in turn.pools_of(step):
            read, mine = self._start((number, pool))
            pieces.append((read, mine.runs[step]))
        return _call(self._cutter, lambda: self._pools.cut(pieces))

    def _start(self, name: PoolName) -> tuple[PoolRead, RankPool]:
        """The read of one pool, begun if it is not yet."""
        if name not in self._read:
            number, pool = name
            turn = self._turn(number)
            assert turn is not None
            mine = turn.pool(pool)
            read = self._pools.read(mine.rows, turn.most_rows, lambda job: _call(self._readers, job))
            self._read[name] = read, mine
        return self._read[name]


def _one_core_thread() -> ThreadPoolExecutor:
    """A thread whose own torch operations stay on one core.

    OpenMP's team would wait for the cores that decompress, spinning: batches came four times as slowly. The
    number of threads is each thread's own, and also the process's default for new ones, which is put back.
    """
    thread = ThreadPoolExecutor(1, "activault-batch")
    openmp: Any = torch.backends.openmp  # without annotations
    if openmp.is_available():
        num_threads = torch.get_num_threads()
        # Asking makes the thread take the default first; it would otherwise do so later.
        thread.submit(torch.get_num_threads).result()
        thread.submit(torch.set_num_threads, 1).result()
        torch.set_num_threads(num_threads)
    return thread


def _call(threads: ThreadPoolExecutor | None, work: Callable[[], Result]) -> Future[Result]:
    """Do `work` on the threads, or here and now if there are none."""
    if threads is not None:
        return threads.submit(work)
    done: Future[Result] = Future()
    done.set_result(work())
    return done
