"""Processes of one command, made in moments: `python fork_workers.py ARGUMENT ...`, then lines on its input.

Torch is imported once. Each line makes a child that runs `activault ARGUMENT ...`, and is answered by its
process id; the end of the input waits for all and is answered by the exit status of each, -9 for killed ones.
"""

from __future__ import annotations

import os
import sys

from activault.extract import backbone, run  # noqa: F401  (what children need)
from activault.jobs.cli import main


def serve(arguments: list[str]) -> None:
    children = []
    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # standard output is for answers
            os._exit(main(arguments))
        children.append(child)
        print(child, flush=True)
    for child in children:
        print(child, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1:])
