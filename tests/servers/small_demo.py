"""The demo, small: `python small_demo.py OUT` prints its closing numbers as JSON.

`run` is the same as the target of a process of `fork_server`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from fork_server import add_output_to

from activault.extract.demo_crops import DemoImages
from activault.jobs.demo import DemoOptions, run_demo

OPTIONS = DemoOptions(
    images=DemoImages(side=42, num_train=6, num_test=3),
    shard_rows=16,
    batch_size=8,
    overrides=(
        *("stage1.steps=12", "stage1.warmup_steps=2", "stage1.checkpoint_every=5", "stage1.log_every=4"),
        *("stage2.steps=16", "stage2.warmup_steps=2", "stage2.checkpoint_every=5", "stage2.log_every=4"),
    ),
)


def run(out: Path, log: Path | None = None) -> None:
    """Run it to its end; what it says is added to `log`, and the last line of that are the numbers."""
    if log is not None:
        add_output_to(log)
    torch.set_num_threads(1)
    print(json.dumps(run_demo(out, OPTIONS).numbers()), flush=True)


if __name__ == "__main__":
    run(Path(sys.argv[1]))
