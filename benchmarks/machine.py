"""What a run of a benchmark says of the machine, and the processes that it measures in."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

from formats import num_cores


def environment(libraries: Sequence[str]) -> str:
    """Date, machine and the versions of those libraries that are here, in a line."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = names[0].partition(":")[2].strip() if names else cpu
    found = ", ".join(filter(None, map(_version, libraries)))
    today = datetime.datetime.now(tz=datetime.UTC).date()
    return f"{today}, {num_cores()} cores of {cpu}, Python {platform.python_version()}, {found}"


def _version(library: str) -> str:
    try:
        return f"{library} {importlib.metadata.version(library)}"
    except importlib.metadata.PackageNotFoundError:
        return ""


@contextmanager
def spawned() -> Iterator[ProcessPoolExecutor]:
    """A fresh process: forked ones would share what the first of them started."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        yield executor
