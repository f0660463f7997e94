"""Which flags were said on a command line, as opposed to those that have their default.

with remembered(["extract", "photos", "s.zarr", "--append", "--batch-size", "8"]):
    said()    {"append", "batch_size"}
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

__all__ = ["remembered", "said"]

_flags: Final[ContextVar[frozenset[str]]] = ContextVar("flags", default=frozenset())


@contextmanager
def remembered(arguments: Sequence[str]) -> Iterator[None]:
    """Keep the names of the flags among `arguments` while a command runs."""
    words = [word[2:].partition("=")[0] for word in map(str, arguments) if word.startswith("--")]
    token = _flags.set(frozenset(word.replace("-", "_") for word in words))
    try:
        yield
    finally:
        _flags.reset(token)


def said() -> frozenset[str]:
    """The flags of the command that runs, as names of parameters."""
    return _flags.get()
