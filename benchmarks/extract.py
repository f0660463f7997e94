"""Extraction end to end against the bare forward on decoded images, and against other ways to do it.

    python benchmarks/extract.py IMAGES [--reference CHECKOUT] [--images 192] [--rounds 4] [--work DIR]

IMAGES is a folder of class folders of photographs; any 192 will do. CHECKOUT is a clone of
github.com/KempnerInstitute/raptor at ba3b53f, whose own script is then run on the same images and teacher.
The peers' libraries are in benchmarks/requirements.txt.

Rounds go in turn through all candidates, each in a process of its own that stays alive; every round begins
with another one. Ratios within a round can be trusted, absolute figures belong to the machine. Everybody's
time ends when all bytes are on disk; nobody's has the loading of the teacher in it.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from extraction_task import Extractor, Measured, Task
from extractors import CANDIDATES, OurForward, Ours, PlainForward, Reference, measure
from machine import environment, spawned

Results = dict[type[Extractor], list[Measured]]
_LIBRARIES = ("torch", "timm", "numpy", "zarr", "numcodecs", "safetensors", "torchvision")


def main() -> None:
    """Measure, and print the tables."""
    options = _parse()
    work = options.work or Path(tempfile.mkdtemp(prefix="activault-bench-"))
    task = Task(
        images=options.source,
        work=work,
        teacher=options.teacher,
        image_size=options.image_size,
        num_images=options.images,
        shard_rows=options.shard_rows,
        device=options.device,
        dtype=options.dtype,
        reference=options.reference,
    )
    kinds = [kind for kind in CANDIDATES if task.reference is not None or kind is not Reference]
    if options.only:
        kinds = [kind for kind in kinds if any(part in kind.name for part in options.only)]
    found: Results = {kind: [] for kind in kinds}
    with ExitStack() as stack:
        processes = {kind: stack.enter_context(spawned()) for kind in kinds}
        for number in range(-1, options.rounds):
            first = number % len(kinds)
            for kind in kinds[first:] + kinds[:first]:
                measured = (
                    processes[kind].submit(measure, kind, task if number >= 0 else _less(task)).result()
                )
                if number >= 0:
                    found[kind].append(measured)
                    print(f"round {number + 1}: {kind.name}: {measured.rate:.2f} images/s", file=sys.stderr)
    if options.work is None:
        shutil.rmtree(work)
    what = f"{task.num_images} images, {task.teacher} at {task.image_size}, {task.dtype}"
    print(f"{environment(_LIBRARIES)}; {what}\n")
    _print_rates(found, task)
    if Ours in found:
        _print_stalls(found[Ours])


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, metavar="IMAGES")
    parser.add_argument("--reference", type=Path, metavar="CHECKOUT")
    parser.add_argument("--images", type=int, default=192)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--teacher", default="demo")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--shard-rows", type=int, default=32, help="of our store: several shards a run")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--work", type=Path, metavar="DIR", help="kept afterwards")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="those whose name contains one of these")
    return parser.parse_args()


def _less(task: Task) -> Task:
    """A first run, which is not counted: libraries are loaded in it, and kernels chosen."""
    return Task(**vars(task) | {"num_images": min(task.num_images, 32), "work": task.work / "first"})


def _spread(values: list[float], digits: int = 2) -> str:
    low, high = min(values), max(values)
    return f"{median(values):.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def _print_rates(found: Results, task: Task) -> None:
    """Images a second, ours over each within a round, bytes and memory."""
    ours = [measured.rate for measured in found.get(Ours, [])]
    print("Median (smallest-largest of the rounds)\n")
    print("| candidate | images a second | ours over it | MB an image | peak memory, MB |")
    print("|" + " --- |" * 5)
    for kind, runs in found.items():
        rates = [measured.rate for measured in runs]
        ratios = [mine / theirs for mine, theirs in zip(ours, rates, strict=True)] if ours else []
        size = runs[-1].num_bytes / task.num_images / 1e6
        memory = max(measured.peak_host_bytes for measured in runs) / 1e6
        against = "" if kind is Ours or not ratios else _spread(ratios)
        written = "" if kind in (PlainForward, OurForward) else f"{size:.2f}"
        print(f"| {kind.name} | {_spread(rates)} | {against} | {written} | {memory:,.0f} |")


def _print_stalls(runs: list[Measured]) -> None:
    """What ours waited for, and what an image cost; and what the ratio would be if nobody ever waited."""
    print("\n| ours | share of the time that it was waited for | processor time an image, ms |")
    print("|" + " --- |" * 3)
    for part in runs[0].waited:
        waited = [100 * measured.waited[part] for measured in runs]
        work = [measured.work[part] for measured in runs]
        print(f"| {part} | {_spread(waited, 1)} % | {_spread(work, 1)} |")
    bound = [measured.work["compute"] / sum(measured.work.values()) for measured in runs]
    print(f"\nThe forward's share of all processor time: {_spread(bound, 3)}.")


if __name__ == "__main__":
    main()
