"""The loader against its peers: shuffled batches of 64 rows, layers 0-7, and how long a consumer waits.

    python benchmarks/loader.py STORE_OR_IMAGES [--reference CHECKOUT] [--rows N] [--rounds 3] [--work DIR]

Stores, peers, checkout and DIR as for `store.py`, which makes the same folders: one DIR serves both.
Batches are of float32, and of the 16 bits that are stored (bfloat16; of float16 stores float16), for a
consumer that casts on its device; peers that have no such way are left out there. Each format is tried in
the process itself and, where it has workers, with as many as there are cores; the better counts.

Prints rows a second with a warm page cache, from a cold one in a fresh process, and the share of its time
that a consumer waits whose steps take as long as a GPU's might and leave the cores alone. Ratios within a
round can be trusted, absolute figures belong to the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import loading
from activations import BATCH_ROWS, take
from candidates import OURS, Candidate, all_candidates
from loading import KINDS, Way
from machine import spawned
from peer_arrays import MemoryMap, Safetensors
from peer_reference import Reference
from report import Results, environment

from store import prepare, source_store

_SECONDS = 1.0
_STEPS_S = (0.05, 0.1, 0.2)
_NUM_STEPS = 8
_COLD = (OURS, "activault float16, uncompressed", MemoryMap.name, Safetensors.name)
"""Formats that are also read cold: the fastest with a warm cache, and ours."""
_WAITED_FOR = (*_COLD, Reference.name)
Rounds = dict[Way, list[float]]


def main() -> None:
    """Measure, and print the tables."""
    options = _parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    work = options.work or Path(tempfile.mkdtemp(prefix="activault-bench-"))
    work.mkdir(parents=True, exist_ok=True)
    source = take(source_store(options.source, work), work, options.rows)
    candidates = [
        candidate
        for candidate in all_candidates(work, source, options.reference)
        if not options.only or any(part in candidate.name for part in options.only)
    ]
    labels = {candidate.name: candidate.label for candidate in candidates}
    results = Results(shape=source.values.shape, labels=labels)
    prepare(candidates, results)
    warm = _warm(candidates, options.rounds)
    best = _best(warm)
    waits = _waiting(best)
    cold = _cold(best, options.rounds) if hasattr(os, "posix_fadvise") else {}
    print(environment())
    print(f"load {os.getloadavg()[0]:.1f}; {results.shape[0]} rows, batches of {BATCH_ROWS}, layers 0-7\n")
    _print_warm(labels, warm, best)
    _print_ratios(labels, warm, best)
    _print_waiting(labels, waits)
    _print_cold(cold)
    if options.json:
        options.json.write_text(json.dumps(_spelled(warm, cold, waits), indent=1))
    if options.work is None:
        shutil.rmtree(work)


def _parse() -> Any:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, metavar="STORE_OR_IMAGES")
    parser.add_argument("--reference", type=Path, metavar="CHECKOUT")
    parser.add_argument("--rows", type=int, help="at most this many of the store's rows")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", type=Path, metavar="DIR", help="kept afterwards, and used again")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="formats whose name contains one of these")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every round's figures")
    return parser.parse_args()


def _warm(candidates: list[Candidate], rounds: int) -> Rounds:
    """Rows a second of every way; each round begins with another format.

    No two formats are open at once: pools and workers of a dozen would leave no memory for the files' pages.
    """
    found: Rounds = defaultdict(list)
    for number in range(rounds):
        first = number % len(candidates)
        for candidate in candidates[first:] + candidates[:first]:
            with spawned() as process:
                for way in process.submit(loading.ways, candidate).result():
                    found[way].append(process.submit(loading.warm, way, _SECONDS).result())
        print(f"round {number + 1} is done", file=sys.stderr)
    return found


def _best(warm: Rounds) -> dict[tuple[str, str], Way]:
    """By format and kind of batch, the number of workers with the best median."""
    best: dict[tuple[str, str], Way] = {}
    for way, speeds in warm.items():
        key = (way.candidate.name, way.kind)
        if key not in best or median(speeds) > median(warm[best[key]]):
            best[key] = way
    return best


def _waiting(best: dict[tuple[str, str], Way]) -> dict[Way, dict[float, float]]:
    found = {}
    for way in best.values():
        if way.candidate.name in _WAITED_FOR:
            with spawned() as process:
                found[way] = {
                    step_s: process.submit(loading.waiting, way, step_s, _NUM_STEPS).result()
                    for step_s in _STEPS_S
                }
    return found


def _cold(best: dict[tuple[str, str], Way], rounds: int) -> dict[Way, list[tuple[float, float]]]:
    found: dict[Way, list[tuple[float, float]]] = defaultdict(list)
    for _ in range(rounds):
        for (name, kind), way in best.items():
            if kind == KINDS[0] and name in _COLD:
                with spawned() as process:
                    found[way].append(process.submit(loading.cold, way).result())
    return found


def _print_table(headings: list[str], rows: list[list[str]]) -> None:
    print(f"| {' | '.join(headings)} |\n|{' --- |' * len(headings)}")
    for cells in rows:
        print(f"| {' | '.join(cells)} |")
    print()


def _spoken(figures: list[float], digits: int = 0) -> str:
    low, middle, high = (f"{value:,.{digits}f}" for value in (min(figures), median(figures), max(figures)))
    return f"{middle} ({low}-{high})"


def _print_warm(labels: dict[str, str], warm: Rounds, best: dict[tuple[str, str], Way]) -> None:
    print("Rows a second, page cache warm: median (smallest-largest of the rounds)\n")
    rows = []
    for name, label in labels.items():
        cells = [label]
        for kind in KINDS:
            way = best.get((name, kind))
            workers = f", {way.num_workers} workers" if way is not None and way.num_workers else ""
            cells.append(_spoken(warm[way]) + workers if way is not None else "")
        rows.append(cells)
    _print_table(["format", *(f"batches of {kind}" for kind in KINDS)], rows)


def _print_ratios(labels: dict[str, str], warm: Rounds, best: dict[tuple[str, str], Way]) -> None:
    if OURS not in labels:
        return
    print(f"Times as fast: {OURS} against each, median of the rounds\n")
    rows = []
    for name, label in labels.items():
        cells = [label]
        for kind in KINDS:
            mine, theirs = best[OURS, kind], best.get((name, kind))
            ratios = [] if theirs is None else [a / b for a, b in zip(warm[mine], warm[theirs], strict=True)]
            cells.append(_spoken(ratios, 2) if ratios else "")
        rows.append(cells)
    _print_table(["format", *(f"batches of {kind}" for kind in KINDS)], rows)


def _print_waiting(labels: dict[str, str], waits: dict[Way, dict[float, float]]) -> None:
    print("Share of its time that a consumer waits, by the length of its steps\n")
    rows = [
        [labels[way.candidate.name], way.kind, *(f"{100 * shares[step_s]:.0f} %" for step_s in _STEPS_S)]
        for way, shares in waits.items()
    ]
    _print_table(["format", "batches of", *(f"{1000 * step_s:.0f} ms" for step_s in _STEPS_S)], rows)


def _print_cold(cold: dict[Way, list[tuple[float, float]]]) -> None:
    if not cold:
        return
    print("From a cold page cache, batches of float32, one epoch of a fresh process\n")
    rows = []
    for way, rounds in cold.items():
        speeds, rates = (list(part) for part in zip(*rounds, strict=True))
        rows.append([way.candidate.name, _spoken(speeds), f"{median(rates) / 1e6:,.0f}"])
    _print_table(["format", "rows a second", "MB of its files a second"], rows)


def _spelled(
    warm: Rounds, cold: dict[Way, list[tuple[float, float]]], waits: dict[Way, dict[float, float]]
) -> dict[str, Any]:
    """All figures, by the names of the ways."""

    def name(way: Way) -> str:
        return f"{way.candidate.name}, batches of {way.kind}, {way.num_workers} workers"

    return {
        "environment": environment(),
        "rows_a_second": {name(way): speeds for way, speeds in warm.items()},
        "cold": {name(way): rounds for way, rounds in cold.items()},
        "waiting": {name(way): shares for way, shares in waits.items()},
    }


if __name__ == "__main__":
    main()
