"""The last few row groups of Parquet files, each read once however many threads ask for it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

__all__ = ["RowGroupCache"]

_MAX_BYTES: Final = 256 << 20


class RowGroupCache:
    """Keeps what `load` gave for the numbers that were asked for last; may be shared between threads.

    Args:
        load: something with `nbytes`, by number; what it raises is raised, and tried again the next time.
        max_bytes: of what is kept; the last one is kept whatever its size.
    """

    def __init__(self, load: Callable[[int], Any], max_bytes: int = _MAX_BYTES) -> None:
        self._load, self._max_bytes = load, max_bytes
        self._held: OrderedDict[int, Future[Any]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, number: int) -> Any:
        """What `load(number)` gives."""
        with self._lock:
            waiting = self._held.get(number)
            if waiting is not None:
                self._held.move_to_end(number)
            else:
                mine = self._held[number] = Future()
        if waiting is not None:
            return waiting.result()
        try:
            mine.set_result(self._load(number))
        except BaseException as exc:
            with self._lock:
                self._held.pop(number, None)
            mine.set_exception(exc)
            raise
        self._let_go()
        return mine.result()

    def _let_go(self) -> None:
        """Drop the oldest until what is kept fits; those under way are nobody's to drop."""
        with self._lock:
            done = [number for number, held in self._held.items() if held.done()]
            kept = sum(self._held[number].result().nbytes for number in done)
            for number in done[:-1]:
                if kept <= self._max_bytes:
                    return
                kept -= self._held.pop(number).result().nbytes
