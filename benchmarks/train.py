"""Our trainer against the reference's, cached training against asking the teacher, and waiting for data.

    python benchmarks/train.py STORE [--reference CHECKOUT] [--images FOLDER] [--rounds 3] [--work DIR]

STORE holds all layers of a teacher of 12 blocks (`activault extract IMAGES STORE --teacher demo
--image-size 98 --resize 98`); FOLDER is a folder of images, for its teacher to be asked online. CHECKOUT is a
clone of github.com/KempnerInstitute/raptor at ba3b53f, whose own trainer and loader are then run. CPU,
float32.

Before anything is timed, the reference's losses and gradients are held against ours, with the same weights on
the same batch. Rounds go in turn through everything, each in a process of its own that stays alive, beginning
with another one each round. Ratios within a round can be trusted, absolute figures belong to the machine.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import shutil
import signal
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import lessons
import train_ours
import train_reference
from activations import take
from formats import num_cores
from lessons import CLOSED, CUTS, LESSONS, LOADER, MEMORY, NUM_LAYERS, ONLINE, ROLLED, Measured, Task, Way
from machine import spawned
from peer_reference import Reference
from train_ours import DEFAULT, PARITY
from train_reference import REFERENCE
from train_report import Results, print_tables, spelled

from activault.store import open_store

Processes = dict[Way, ProcessPoolExecutor]


def main() -> None:
    """Measure, and print the tables."""
    options = _parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no process outlives this one
    work = options.work or Path(tempfile.mkdtemp(prefix="activault-bench-"))
    work.mkdir(parents=True, exist_ok=True)
    task = _task(options, work)
    try:
        if task.checkout is not None:
            with spawned() as process:
                process.submit(_prepare, task).result()
        ways = [
            way for way in _ways(task) if not options.only or any(part in way.name for part in options.only)
        ]
        found = _rounds(task, ways, options.rounds)
    finally:
        if options.work is None:
            shutil.rmtree(work)
    print_tables(task, found)
    if options.json:
        options.json.write_text(json.dumps(spelled(task, found), indent=1))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, metavar="STORE")
    parser.add_argument("--reference", type=Path, metavar="CHECKOUT")
    parser.add_argument("--images", type=Path, metavar="FOLDER")
    parser.add_argument("--rows", type=int, default=1024, help="at most this many of the store's rows")
    parser.add_argument("--k", type=int, choices=sorted(CUTS), default=3, help="phases, the published ones")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=2, help="counted steps of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=num_cores())
    parser.add_argument("--work", type=Path, metavar="DIR", help="kept afterwards, and used again")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="those whose name contains one of these")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every round's figures")
    return parser.parse_args()


def _task(options: argparse.Namespace, work: Path) -> Task:
    """Refuses what cannot be measured before anything is."""
    store = open_store(options.source)
    num_blocks, layers = store.manifest.teacher.num_blocks, tuple(store.layers)
    if num_blocks != NUM_LAYERS or layers != tuple(range(NUM_LAYERS + 1)):
        raise SystemExit(
            f"the reference's trainer is for teachers of {NUM_LAYERS} blocks, all layers stored; "
            f"{options.source.name} holds {len(layers)} layers of {num_blocks} blocks; give another store"
        )
    num_rows = min(options.rows, len(store.valid_rows))
    if num_rows < options.batch:
        raise SystemExit(f"a batch of {options.batch} needs as many rows; got {num_rows}; lower --batch")
    return Task(
        store=options.source.absolute(),
        num_rows=num_rows,
        work=work.absolute(),
        checkout=None if options.reference is None else options.reference.absolute(),
        images=None if options.images is None else options.images.absolute(),
        k=options.k,
        batch_size=options.batch,
        num_steps=options.steps,
        threads=options.threads,
    )


def _ways(task: Task) -> list[Way]:
    """Everything that is measured, in the order of a first round."""
    trainers = [PARITY, DEFAULT] + ([REFERENCE] if task.checkout is not None else [])
    found = [Way(trainer=trainer, lesson=lesson, source=MEMORY) for lesson in LESSONS for trainer in trainers]
    found += [
        Way(trainer=trainer, lesson=lesson, source=LOADER)
        for lesson in (ROLLED, CLOSED)
        for trainer in trainers
        if trainer != DEFAULT or lesson == CLOSED
    ]
    if task.images is not None:
        found.append(Way(trainer=DEFAULT, lesson=CLOSED, source=ONLINE))
    return found


def _prepare(task: Task) -> None:
    """The reference's store of the same rows, and that it computes what we do."""
    folder = train_reference.array_of(task).parent
    if not (folder / ".written").exists():
        form = Reference(folder, take(task.store, task.work, task.num_rows, rounded=True))
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        form.write()
        form.source.file.unlink()
        (folder / ".written").touch()
    print("ready: the reference's store", file=sys.stderr)
    train_reference.check(task)
    print("ready: losses and gradients are the reference's", file=sys.stderr)


def _rounds(task: Task, ways: list[Way], rounds: int) -> Results:
    found: Results = {way: [] for way in ways}
    with ExitStack() as stack:
        processes: Processes = {way: stack.enter_context(spawned()) for way in ways}
        for started in [process.submit(lessons.start) for process in processes.values()]:
            started.result()
        for number in range(rounds):
            first = number * len(ways) // rounds
            for way in ways[first:] + ways[:first]:
                found[way].append(processes[way].submit(_measure, task, way).result())
                print(
                    f"round {number + 1}: {way.name}: {found[way][-1].mean_s:.3f} s a step", file=sys.stderr
                )
    return found


def _measure(task: Task, way: Way) -> Measured:
    """In the way's own process, whose memory is given back afterwards: others are measured while it idles."""
    measure = train_reference.measure if way.trainer == REFERENCE else train_ours.measure
    try:
        return measure(task, way)
    finally:
        gc.collect()
        if sys.platform == "linux" and os.confstr("CS_GNU_LIBC_VERSION"):
            ctypes.CDLL(None).malloc_trim(0)


if __name__ == "__main__":
    main()
