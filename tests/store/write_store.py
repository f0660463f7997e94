"""Writes the tests' store in a process of its own, to be killed: `python write_store.py PATH [STEP]`.

With STEP it kills itself when that many files have got their final names.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from conftest import Plan, make_manifest


def kill_at(step: int) -> None:
    original, done = os.replace, 0

    def replace(source: str, target: str) -> None:
        nonlocal done
        original(source, target)
        done += 1
        if done == step:
            os.kill(os.getpid(), signal.SIGKILL)

    os.replace = replace  # type: ignore[assignment]


def main(path: str, step: str | None) -> None:
    if step is not None:
        kill_at(int(step))
    print("at work", flush=True)
    Plan(Path(path), make_manifest(), frozenset((7, 20))).write()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
