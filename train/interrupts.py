"""Ctrl-C and a scheduler's SIGTERM as a flag that the loop looks at where its state is whole.

Python delivers a signal between any two instructions, also half-way through an optimiser's update.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["interrupt_flag"]


@contextmanager
def interrupt_flag(*, patient: bool = False) -> Iterator[threading.Event]:
    """An event that the first Ctrl-C or SIGTERM sets; a second Ctrl-C interrupts at once.

    `patient` never interrupts at once: torchrun hands on the Ctrl-C that the terminal has sent already.
    Outside the main thread, which gets no signals, the event stays unset.
    """
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def note(number: int, _frame: object) -> None:
        if event.is_set() and number == signal.SIGINT and not patient:
            raise KeyboardInterrupt
        event.set()

    previous = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield event
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
