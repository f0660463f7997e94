"""The figures of a run of `store.py`, and the tables that are printed of them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from math import prod
from statistics import median
from typing import Any

import machine
from candidates import OURS, PEERS
from measure import WORKLOADS

_LIBRARIES = (
    "numpy",
    "torch",
    "zarr",
    "numcodecs",
    "h5py",
    "safetensors",
    "webdataset",
    "datasets",
    "litdata",
)
_HEADINGS = {
    "write": "writing",
    "sequential": "sequential 0-7",
    "shuffled": "shuffled 0-7",
    "one layer": "one layer",
    "cls": "CLS, all layers",
    "random rows": "64 random rows",
}
Speeds = dict[str, dict[int, list[float]]]


def _speeds() -> dict[str, Speeds]:
    return {workload: defaultdict(lambda: defaultdict(list)) for workload in WORKLOADS}


@dataclass
class Results:
    """What was measured; lists are in order of the rounds."""

    shape: tuple[int, ...]
    """Rows, layers, tokens, dim."""
    labels: dict[str, str]
    num_bytes: dict[str, int] = field(default_factory=dict)
    lowest_r2: dict[str, float] = field(default_factory=dict)
    """Of a layer's patches over all rows, for formats in int8."""
    speeds: dict[str, Speeds] = field(default_factory=_speeds)
    """Rows a second by workload, format and number of workers."""
    cold: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """Bytes a second of a cold epoch, and of plain reading of its files."""

    @property
    def smaller(self) -> dict[str, float]:
        """How many times smaller than float32."""
        return {name: prod(self.shape) * 4 / size for name, size in self.num_bytes.items()}

    def best(self, workload: str, name: str) -> tuple[int, list[float]]:
        """Number of workers with the best median, and its rounds."""
        return max(self.speeds[workload][name].items(), key=lambda item: median(item[1]))

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return {
            "environment": environment(),
            "shape": self.shape,
            "bytes": self.num_bytes,
            "lowest_r2": self.lowest_r2,
            "rows_a_second": self.speeds,
            "cold_bytes_a_second": self.cold,
        }


def environment() -> str:
    """Date, machine and versions, in a line."""
    return machine.environment(_LIBRARIES)


def print_tables(results: Results) -> None:
    """Speeds, ratios, and the cold cache, as Markdown."""
    rows, layers, tokens, dim = results.shape
    print(f"{rows} rows x {layers} layers x {tokens} tokens x {dim}, page cache warm\n")
    workloads = [workload for workload in WORKLOADS if results.speeds[workload]]
    print("Rows a second as float32 in memory: median (smallest-largest of the rounds)\n")
    _print_head(["format", "bytes against float32", *(_HEADINGS[workload] for workload in workloads)])
    for name, label in results.labels.items():
        cells = [_spoken(results, workload, name) for workload in workloads]
        print(f"| {label} | 1 / {results.smaller[name]:.2f} | {' | '.join(cells)} |")
    _print_notes(results)
    if OURS in results.labels:
        _print_ratios(results, workloads)
    if results.cold:
        _print_cold(results)


def _print_head(headings: list[str]) -> None:
    print(f"| {' | '.join(headings)} |")
    print(f"|{' --- |' * len(headings)}")


def _spoken(results: Results, workload: str, name: str) -> str:
    num_workers, speeds = results.best(workload, name)
    with_workers = f", {num_workers} workers" if num_workers else ""
    return f"{median(speeds):,.0f} ({min(speeds):,.0f}-{max(speeds):,.0f}){with_workers}"


def _print_notes(results: Results) -> None:
    for name, lowest in results.lowest_r2.items():
        print(f"\n{name}: lowest R2 of a layer's patches {lowest:.5f}.")
    for peer in PEERS:
        if peer.notes and peer.name in results.labels:
            print(f"\n{peer.name}: {peer.notes}.")


def _print_ratios(results: Results, workloads: list[str]) -> None:
    """Ours in its default against every format: median of the ratios within the rounds."""
    print(f"\nTimes as fast: {OURS} against each\n")
    _print_head(["format", *(_HEADINGS[workload] for workload in workloads)])
    for name, label in results.labels.items():
        cells = []
        for workload in workloads:
            mine, theirs = results.best(workload, OURS)[1], results.best(workload, name)[1]
            ratios = [one / other for one, other in zip(mine, theirs, strict=True)]
            cells.append(f"{median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})")
        print(f"| {label} | {' | '.join(cells)} |")


def _print_cold(results: Results) -> None:
    print("\nCold cache: a shuffled epoch of layers 0-7 against plain reading of the same files, MB/s\n")
    _print_head(["format", "epoch", "plain reading", "share"])
    for name, rounds in results.cold.items():
        epoch, plain = (median(part) / 1e6 for part in zip(*rounds, strict=True))
        share = median(one / other for one, other in rounds)
        print(f"| {name} | {epoch:,.0f} | {plain:,.0f} | {share:.2f} |")
