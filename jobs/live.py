"""The live view of a training run: bar, loss, step time, waiting for data, memory, time left.

    with training_view(total_steps) as report:
        train(..., progress=report)           # told a StageProgress after every step

On a terminal a bar and a line of figures move; away from one, and quietly, what `console.progress_bar` does.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from . import console

if TYPE_CHECKING:
    from activault.train import StageProgress

__all__ = ["Pace", "memory_in_use", "training_view"]

Report = Callable[["StageProgress"], None]
EVERY = 0.5
"""Seconds over which step time and waiting are averaged, at least."""


@dataclass
class Pace:
    """Step time and share of waiting over the last moments, and steps in all."""

    clock: Callable[[], float] = time.perf_counter
    """What tells the time."""
    done: dict[str, int] = field(default_factory=dict)
    """Steps by stage, those of earlier starts too."""
    step_seconds: float | None = None
    """Time of a step; None before the first ones."""
    wait_share: float = 0.0
    """Part of it spent waiting for data."""
    _since: tuple[str, float, int, float] | None = None

    def take(self, state: StageProgress) -> None:
        """Count one more report."""
        self.done[state.stage] = state.step
        now = self.clock()
        if self._since is None or self._since[0] != state.stage:
            self._since = (state.stage, now, state.step, state.wait_seconds)
            return
        _, began, step, waited = self._since
        if now - began >= EVERY and state.step > step:
            self.step_seconds = (now - began) / (state.step - step)
            self.wait_share = (state.wait_seconds - waited) / (now - began)
            self._since = (state.stage, now, state.step, state.wait_seconds)

    @property
    def steps(self) -> int:
        """Steps made in all stages together."""
        return sum(self.done.values())

    def spoken(self, state: StageProgress, total: int) -> str:
        """The figures in one line."""
        parts = [state.stage]
        if state.loss is not None:
            parts.append(f"loss {state.loss:.4g}")
        if state.validation is not None:
            parts.append(f"R2 {state.validation:.4f}")
        if self.step_seconds is not None:
            parts.append(f"{1000 * self.step_seconds:,.1f} ms a step")
            parts.append(f"waiting {self.wait_share:.1%}")
            parts.append(f"{console.human_seconds(self.step_seconds * (total - self.steps))} left")
        parts.append(memory_in_use())
        return "  ".join(parts)


def memory_in_use() -> str:
    """Resident memory of this process, and what it holds on its GPU."""
    import torch

    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        held = pages * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # no Linux: the most it ever held
        import resource

        held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    text = console.human_bytes(held)
    if torch.cuda.is_available():
        text += f" and {console.human_bytes(torch.cuda.memory_allocated())} on the GPU"
    return text


@contextmanager
def training_view(total: int, *, quiet: bool = False) -> Iterator[Report]:
    """A view of `total` steps; gives what is to be told after every step."""
    if not quiet and sys.stderr.isatty():
        with _moving(total) as report:
            yield report
        return
    with console.progress_bar("train", "steps", quiet=quiet) as advance:
        pace = Pace()

        def report(state: StageProgress) -> None:
            pace.take(state)
            loss = "" if state.loss is None else f" loss {state.loss:.4f}"
            advance(pace.steps, total, f"{state.stage}{loss}")

        yield report


@contextmanager
def _moving(total: int) -> Iterator[Report]:
    from rich.console import Group
    from rich.live import Live
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.text import Text

    bar = Progress(TextColumn("train"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    task, pace, shown = bar.add_task("train", total=total), Pace(), [0.0]
    with Live(Group(bar), console=console.err, refresh_per_second=4) as live:

        def report(state: StageProgress) -> None:
            pace.take(state)
            bar.update(task, completed=pace.steps)
            # A step may take a millisecond; nobody reads faster than this.
            if time.perf_counter() - shown[0] > 0.25 or state.step == state.steps:
                live.update(Group(bar, Text(pace.spoken(state, total), style="dim")))
                shown[0] = time.perf_counter()

        yield report
