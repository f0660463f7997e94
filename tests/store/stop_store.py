"""Writes the tests' store and stops itself on the way: `python stop_store.py PATH STEP`.

It sends itself SIGSTOP before that many calls that change the disk have been made within its shards, and goes
on when it is continued.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from conftest import Plan, make_manifest

from activault.store import ShardTakenError
from activault.store.writer import StoreWriter


def stop_at(step: int) -> None:
    done = 0

    def hooked(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal done
            done += 1
            if done == step:
                os.kill(os.getpid(), signal.SIGSTOP)
            return original(*arguments, **options)

        return call

    for name in ("replace", "rename", "unlink", "mkdir", "rmdir", "link"):
        setattr(os, name, hooked(getattr(os, name)))


def main(path: str, step: int) -> None:
    plan = Plan(Path(path), make_manifest(), frozenset((7, 20)))
    root = plan.open()._root
    with StoreWriter(plan.path, root, plan.samples, 0.6) as writer:
        stop_at(step)
        for shards in writer.rounds(writer.unfinished):
            for shard in shards:
                try:
                    if writer.claim(shard):
                        plan.publish(writer, shard)
                except ShardTakenError as exc:
                    print(exc)
        writer.complete()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
