"""Processes that have torch and the package from their first moment: `forked().Process(target=...)`.

multiprocessing's own server of forks, one for the whole test run; torch is imported in it once, which takes
longer than what most of its children do. It keeps the environment of its own start: what a child needs beyond
that is given to it as an argument.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerContext
from pathlib import Path

__all__ = ["add_output_to", "command", "forked"]

_PRELOADED = (
    "torch._dynamo",  # what DDP imports
    "activault.jobs.cli",
    "activault.jobs.demo",
    "activault.jobs.tasks",
    "activault.extract.run",
    "activault.extract.growth",
    "activault.train.runs",
)


def forked() -> ForkServerContext:
    """The server's context; the first call starts it, with one thread for torch."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_PRELOADED))
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        first = context.Process(target=time.sleep, args=(0,))
        first.start()
        first.join()
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before
    return context


def command(arguments: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
    """`activault ARGUMENT ...`, as the target of a process; its output is added to `log`."""
    from activault.jobs.cli import main

    add_output_to(log)
    os.environ.update(environment)
    sys.exit(main(list(arguments)))


def add_output_to(log: Path) -> None:
    """From here on this process's standard output and error are added to a file."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
