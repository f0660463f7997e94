"""Opening, planning an epoch and taking the first batch on a store of 10 million rows: seconds and memory.

    python benchmarks/ten_million.py [--rows 10000000] [--work DIR] [--rounds 3]

The store's tables are of full size, its arrays are there only where they are read (see `fabricate.py`). Every
step runs in a fresh process; memory is the most that it ever held, beside the most that it held before the
step (imports, and the keys that a plan is made of). Each reading step includes the opening of the
store, and a first batch the plan. Building the store takes minutes and about 1 GB; with DIR it is kept and
used again.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import activault.store


def main() -> None:
    """Build the store if it is not there, measure, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--work", type=Path, metavar="DIR")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        _run_step(options.step, options.work / _name(options.rows), options.rows)
        return
    work = options.work or Path(tempfile.mkdtemp(prefix="activault-ten-million-"))
    work.mkdir(parents=True, exist_ok=True)
    store = work / _name(options.rows)
    found = {step: [_in_process(step, work, options.rows)] for step in _building(store)}
    for _ in range(options.rounds):
        for step in READING:
            found.setdefault(step, []).append(_in_process(step, work, options.rows))
    _print(found, store, options.rows)
    if options.work is None:
        shutil.rmtree(work)


def _name(num_rows: int) -> str:
    return f"rows-{num_rows}.zarr"


def _building(store: Path) -> list[str]:
    """Steps that make the store, if it is not whole."""
    if (store / "index.parquet").exists():
        return []
    return ["plan the store", "fill", "complete the store"]


Work = Callable[[], object]


def _plan(path: Path, num_rows: int) -> Work:
    import fabricate

    shutil.rmtree(path, ignore_errors=True)
    keys, labels = fabricate.names(num_rows)
    return lambda: fabricate.plan(path, activault.store.plan_samples(keys, labels, "images")).close()


def _fill(path: Path, num_rows: int) -> Work:
    import fabricate

    return lambda: fabricate.fill(path, num_rows)


def _complete(path: Path, num_rows: int) -> Work:
    import fabricate

    table = fabricate.samples(num_rows)
    return lambda: fabricate.complete(path, table)


def _open(path: Path, num_rows: int) -> Work:  # noqa: ARG001
    return lambda: activault.store.open_store(path)


def _read(path: Path, num_rows: int) -> Work:  # noqa: ARG001
    return lambda: activault.store.open_store(path).read(slice(0, 64), range(8))


def _info(path: Path, num_rows: int) -> Work:  # noqa: ARG001
    return lambda: activault.store.open_store(path).info()


def _samples(path: Path, num_rows: int) -> Work:  # noqa: ARG001
    return lambda: activault.store.open_store(path).samples


def _epoch(path: Path, num_rows: int) -> Work:  # noqa: ARG001
    import fabricate

    return lambda: fabricate.loader(path).plan(0)


def _batch(path: Path, num_rows: int) -> Work:  # noqa: ARG001
    import fabricate

    return lambda: next(iter(fabricate.loader(path)))


STEPS: dict[str, Callable[[Path, int], Work]] = {
    "plan the store": _plan,
    "fill": _fill,
    "complete the store": _complete,
    "open": _open,
    "read rows 0 to 63, layers 0-7": _read,
    "info": _info,
    "sample table": _samples,
    "plan an epoch": _epoch,
    "first batch, shuffled": _batch,
}
READING = list(STEPS)[3:]


def _run_step(name: str, path: Path, num_rows: int) -> None:
    """Measure one step in this process, and print what it took as JSON."""
    work = STEPS[name](path, num_rows)
    before, start, used = _most_held(), time.perf_counter(), time.process_time()
    kept = work()  # not let go before the clock is read: ending a loader's threads is no part of it
    seconds, used = time.perf_counter() - start, time.process_time() - used
    print(json.dumps({"seconds": seconds, "used": used, "held": _most_held(), "before": before}))
    del kept


def _most_held() -> float:
    """Most bytes that this process ever held; not what its parent held, which getrusage may count in."""
    status = Path("/proc/self/status")
    if status.exists():
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return float(lines["VmHWM"].split()[0]) * 1024
    unit = 1 if platform.system() == "Darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * unit


def _in_process(step: str, work: Path, num_rows: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--step", step, "--work", str(work), "--rows", str(num_rows)]
    result = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    print(f"{step}: {result.stdout.strip()}", file=sys.stderr)
    found: dict[str, float] = json.loads(result.stdout.splitlines()[-1])
    return found


def _print(found: dict[str, list[dict[str, float]]], store: Path, num_rows: int) -> None:
    manifest: Any = activault.store.open_store(store).manifest
    tables = {name: (store / name).stat().st_size / 1e6 for name in ("samples.parquet", "index.parquet")}
    sizes = ", ".join(f"{name} {size:,.0f} MB" for name, size in tables.items())
    print(
        f"{num_rows:,} rows, {manifest.num_shards:,} shards of {manifest.shard_rows} rows in chunks of ",
        end="",
    )
    print(f"{manifest.chunk_rows}, 13 layers x 3 kinds; {sizes}\n")
    print(
        "| step | seconds: median (smallest-largest) | of a processor | peak memory, MB | before it, MB |\n"
        "| --- | --- | --- | --- | --- |"
    )
    for step, rounds in found.items():
        if step == "fill":
            continue
        seconds = [each["seconds"] for each in rounds]
        held, before = (max(each[name] for each in rounds) / 1e6 for name in ("held", "before"))
        spread = f"{median(seconds):.2f} ({min(seconds):.2f}-{max(seconds):.2f})"
        used = median(each["used"] for each in rounds)
        print(f"| {step} | {spread} | {used:.2f} | {held:,.0f} | {before:,.0f} |")


if __name__ == "__main__":
    main()
