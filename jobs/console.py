"""What the terminal shows: progress bars on standard error, results on standard output.

Every long task reports through a plain callback; here the callback moves a bar with rate and time left.
Away from a terminal the bars keep silent and a line is printed at the end of each task.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

__all__ = ["human_bytes", "human_seconds", "out", "print_json", "progress_bar", "table", "warn"]

# Without markup: a path may hold [brackets].
out = Console(highlight=False, markup=False)
err = Console(stderr=True, highlight=False, markup=False)

Advance = Callable[..., None]


class _Rate(ProgressColumn):
    """Units a second since the bar began."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        if speed is None:
            return Text("", style="progress.data.speed")
        if self.unit == "B":
            return Text(f"{human_bytes(speed)}/s", style="progress.data.speed")
        return Text(f"{speed:,.1f} {self.unit}/s", style="progress.data.speed")


@contextmanager
def progress_bar(
    title: str, unit: str, *, quiet: bool = False, only_if_begun: bool = False
) -> Iterator[Advance]:
    """A bar with rate and time left; gives `advance(done, total, note="")`.

    Without a terminal (a log file, a job) nothing moves: one line says what was done and how long it took;
    `only_if_begun` leaves it out where nothing was to do.
    """
    count = TextColumn("{task.fields[done]}") if unit == "B" else MofNCompleteColumn()
    columns = (
        TextColumn("{task.description:<18}"),
        BarColumn(),
        count,
        _Rate(unit),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    began = time.perf_counter()
    reached, said, begun = 0.0, "", False
    with Progress(*columns, console=err, disable=quiet or not err.is_terminal) as progress:
        bar = progress.add_task(title, total=None, note="", done="")

        def advance(done: float, total: float, note: str = "") -> None:
            nonlocal reached, said, begun
            reached, said = done, note
            spoken = f"{human_bytes(done)} of {human_bytes(total)}"
            if begun:
                progress.update(bar, completed=done, total=total, note=note, done=spoken)
            else:  # what an earlier start had done is no part of this one's rate
                progress.reset(bar, completed=int(done), total=total, note=note, done=spoken)
            begun = True

        yield advance
    if not quiet and not err.is_terminal and (begun or not only_if_begun):
        amount = human_bytes(reached) if unit == "B" else f"{reached:,.0f} {unit}"
        err.print(f"{title}: {amount} in {human_seconds(time.perf_counter() - began)} {said}".rstrip())


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table whose first column is text and whose others are numbers."""
    result = Table(title=title, title_justify="left", title_style="bold")
    for number, column in enumerate(columns):
        result.add_column(column, justify="right" if number else "left")
    for row in rows:
        result.add_row(*row)
    return result


def warn(line: str) -> None:
    """A line on standard error on what is not as it should be, and stops nothing."""
    err.print(f"activault: {line}", style="yellow", soft_wrap=True)


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
    """`3 min 05 s`."""
    minutes, rest = divmod(seconds, 60)
    return f"{minutes:.0f} min {rest:02.0f} s" if minutes else f"{rest:.1f} s"
