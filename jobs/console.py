"""What the terminal shows: progress bars on standard error, results on standard output.

Every long task reports through a plain callback; here the callback moves a bar with rate and time left.
Away from a terminal nothing moves, and a line is printed at the end of each task that had something to do.
`rich` is imported where it is needed: `info` and `verify` print lines, and it would be a tenth of their time.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import ProgressColumn
    from rich.table import Table

__all__ = ["human_bytes", "human_seconds", "out", "print_json", "progress_bar", "say", "table", "warn"]

Advance = Callable[..., None]


@cache
def _console(stderr: bool) -> Console:
    from rich.console import Console

    # Without markup: a path may hold [brackets].
    return Console(stderr=stderr, highlight=False, markup=False)


if TYPE_CHECKING:
    out: Console
    err: Console
else:

    def __getattr__(name: str) -> Any:
        """`out` and `err`, made at their first use."""
        if name not in {"out", "err"}:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return _console(stderr=name == "err")


def say(text: str) -> None:
    """A line of a result on standard output, as it is, and at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@contextmanager
def progress_bar(title: str, unit: str, *, quiet: bool = False) -> Iterator[Advance]:
    """A bar with rate and time left; gives `advance(done, total, note="")`.

    Without a terminal (a log file, a job) nothing moves: one line says what was done and how long it took, if
    anything was counted.
    """
    if quiet:
        yield _ignore
    elif sys.stderr.isatty():
        with _moving_bar(title, unit) as advance:
            yield advance
    else:
        with _closing_line(title, unit) as advance:
            yield advance


def _ignore(*_: object, **__: object) -> None:
    """Nobody is told."""


@contextmanager
def _moving_bar(title: str, unit: str) -> Iterator[Advance]:
    from rich.progress import Progress

    begun = False
    with Progress(*_columns(unit), console=_console(stderr=True)) as progress:
        bar = progress.add_task(title, total=None, note="", done="")

        def advance(done: float, total: float, note: str = "") -> None:
            nonlocal begun
            spoken = f"{human_bytes(done)} of {human_bytes(total)}"
            if begun:
                progress.update(bar, completed=done, total=total, note=note, done=spoken)
            else:  # what an earlier start had done is no part of this one's rate
                progress.reset(bar, completed=int(done), total=total, note=note, done=spoken)
            begun = True

        yield advance


@contextmanager
def _closing_line(title: str, unit: str) -> Iterator[Advance]:
    began = time.perf_counter()
    reached, said = 0.0, ""

    def advance(done: float, total: float, note: str = "") -> None:  # noqa: ARG001
        nonlocal reached, said
        reached, said = done, note

    yield advance
    if reached:  # a plain `verify` reads no array, and counts nothing
        amount = human_bytes(reached) if unit == "B" else f"{reached:,.0f} {unit}"
        line = f"{title}: {amount} in {human_seconds(time.perf_counter() - began)} {said}".rstrip()
        sys.stderr.write(f"{line}\n")


def _columns(unit: str) -> list[ProgressColumn]:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        ProgressColumn,
        Task,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        """Units a second since the bar began."""

        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            if speed is None:
                spoken = ""
            else:
                spoken = f"{human_bytes(speed)}/s" if unit == "B" else f"{speed:,.1f} {unit}/s"
            return Text(spoken, style="progress.data.speed")

    return [
        TextColumn("{task.description:<18}"),
        BarColumn(),
        TextColumn("{task.fields[done]}") if unit == "B" else MofNCompleteColumn(),
        Rate(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    ]


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table whose first column is text and whose others are numbers."""
    from rich.table import Table

    result = Table(title=title, title_justify="left", title_style="bold")
    for number, column in enumerate(columns):
        result.add_column(column, justify="right" if number else "left")
    for row in rows:
        result.add_row(*row)
    return result


def warn(line: str) -> None:
    """A line on standard error on what is not as it should be, and stops nothing."""
    _console(stderr=True).print(f"activault: {line}", style="yellow", soft_wrap=True)


def print_json(value: Any) -> None:
    """A result as a program reads it, on standard output; rich would break and colour its lines."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def human_bytes(count: float) -> str:
    """`1.4 GB`: decimal units, as disks are sold."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(count) < 1000 or unit == "TB":
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


def human_seconds(seconds: float) -> str:
    """`3 min 05 s`, `5 h 20 min`."""
    minutes, rest = divmod(seconds, 60)
    if minutes >= 120:
        return f"{minutes // 60:,.0f} h {minutes % 60:02.0f} min"
    return f"{minutes:.0f} min {rest:02.0f} s" if minutes else f"{rest:.1f} s"
