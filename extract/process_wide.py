"""Settings of the whole process that several extractions in it may need at once.

A function that makes a context manager in; a context manager that may be entered in several threads, out. The
first who enters sets, the last who leaves restores: by turns each would restore what another still needs.

    one_thread = ProcessWide(change_and_restore)
    with one_thread() as before: ...
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Generic, TypeVar

__all__ = ["ProcessWide"]

Value = TypeVar("Value")


class ProcessWide(Generic[Value]):
    """One context for all who are in it at once.

    Args:
        make: makes the context; what it gives is given to everyone.
    """

    def __init__(self, make: Callable[[], AbstractContextManager[Value]]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self._users = 0

    @contextmanager
    def __call__(self) -> Iterator[Value]:
        """Enter the context, if nobody is in it; leave it, if nobody else is."""
        with self._lock:
            if not self._users:
                self._value = self._stack.enter_context(self._make())
            self._users += 1
        try:
            yield self._value
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._stack.close()
