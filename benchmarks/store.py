"""Ours against its peers on the same real activations: bytes, and rows a second of writing and reading.

    python benchmarks/store.py STORE_OR_IMAGES [--reference CHECKOUT] [--rows N] [--rounds 5] [--work DIR]

STORE is a float32 store of all layers (`activault extract IMAGES STORE --teacher demo --dtype float32`); a
folder of images is extracted so first. The peers' libraries are in benchmarks/requirements.txt. CHECKOUT is a
clone of github.com/KempnerInstitute/raptor at ba3b53f, whose own loader is then run on its own layout.

Rounds go in turn through all formats; ratios within a round can be trusted, absolute figures belong to the
machine. The page cache is warm, except in the table that says otherwise; DIR needs about 15 times the room of
the activations in 16 bits, and the cache should hold as much.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import measure
from activations import take
from candidates import Candidate, all_candidates
from machine import spawned
from report import Results, environment, print_tables


def main() -> None:
    """Measure, and print the tables."""
    options = _parse()
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # so that no process of a format outlives this one
    work = options.work or Path(tempfile.mkdtemp(prefix="activault-bench-"))
    work.mkdir(parents=True, exist_ok=True)
    source = take(source_store(options.source, work), work, options.rows)
    candidates = [
        candidate
        for candidate in all_candidates(work, source, options.reference)
        if not options.only or any(part in candidate.name for part in options.only)
    ]
    results = Results(
        shape=source.values.shape, labels={candidate.name: candidate.label for candidate in candidates}
    )
    prepare(candidates, results)
    with ExitStack() as stack:
        processes = {candidate: stack.enter_context(spawned()) for candidate in candidates}
        for number in range(options.rounds):
            _round(processes, options.workloads, results, number)
        if hasattr(os, "posix_fadvise"):
            _cold(processes, options.rounds, results)
    print(environment())
    print_tables(results)
    if options.json:
        options.json.write_text(json.dumps(results.to_json(), indent=1))
    if options.work is None:
        shutil.rmtree(work)


def _parse() -> Any:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, metavar="STORE_OR_IMAGES")
    parser.add_argument("--reference", type=Path, metavar="CHECKOUT")
    parser.add_argument("--rows", type=int, help="at most this many of the store's rows")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", type=Path, metavar="DIR", help="kept afterwards, and used again")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="formats whose name contains one of these")
    parser.add_argument("--workloads", nargs="+", choices=measure.WORKLOADS, default=measure.WORKLOADS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="every round's figures")
    return parser.parse_args()


def source_store(source: Path, work: Path) -> Path:
    """The store itself, or one made of the images."""
    if (source / "zarr.json").exists():
        return source
    store = work / "source.zarr"
    command = [
        "extract",
        str(source),
        str(store),
        "--teacher",
        "demo",
        "--dtype",
        "float32",
        "--limit",
        "256",
    ]
    subprocess.run([str(Path(sys.executable).with_name("activault")), *command], check=True)
    return store


def prepare(candidates: Iterable[Candidate], results: Results) -> None:
    """Write what is not there, check it, and bring it into the page cache.

    Each in a process that ends with it: a check holds all rows, a dozen of which would not fit memory.
    """
    for candidate in candidates:
        with spawned() as process:
            done = candidate.folder / ".written"
            if not done.exists():
                process.submit(measure.write, candidate).result()
            results.num_bytes[candidate.name] = process.submit(measure.num_bytes, candidate).result()
            lowest = process.submit(measure.check_all, candidate).result()
        if lowest is not None:
            results.lowest_r2[candidate.name] = lowest
        done.touch()
        print(f"ready: {candidate.name}", file=sys.stderr)


def _round(
    processes: dict[Candidate, ProcessPoolExecutor], workloads: list[str], results: Results, number: int
) -> None:
    """Every workload through every format, beginning with another one each round."""
    for workload in workloads:
        order = list(processes)
        first = number % len(order)
        for candidate in order[first:] + order[:first]:
            process = processes[candidate]
            for num_workers in process.submit(measure.settings, candidate, workload).result():
                rows, seconds = process.submit(measure.run, candidate, workload, num_workers).result()
                results.speeds[workload][candidate.name][num_workers].append(rows / seconds)
    print(f"round {number + 1} is done", file=sys.stderr)


def _cold(processes: dict[Candidate, ProcessPoolExecutor], rounds: int, results: Results) -> None:
    ours = {candidate: process for candidate, process in processes.items() if "activault" in candidate.name}
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for _ in range(rounds):
        for candidate, process in ours.items():
            found[candidate.name].append(process.submit(measure.cold_epoch, candidate).result())
    results.cold.update(found)


if __name__ == "__main__":
    main()
