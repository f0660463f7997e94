"""How fast `verify --deep` is, against plainly reading the same files one after the other.

    python benchmarks/verify.py STORE [--rounds 5]

Every round reads all files of the store from start to end in blocks of 4 MiB (what the page cache or the disk
gives to one reader), then verifies the store deeply; first with the page cache warm, then with the files put
out of it. Prints gigabytes a second, and the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from activault.store import verify_store
from activault.store.cores import num_cores

_BLOCK_BYTES = 4 << 20


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    files = sorted(path for path in options.store.rglob("*") if path.is_file())
    size = sum(path.stat().st_size for path in files)
    print(f"{size / 1e9:.2f} GB in {len(files):,} files; {num_cores()} cores of {platform.processor()}")
    print("\n| page cache | plain reading, GB/s | verify --deep, GB/s | ratio, median (min-max) |")
    print("| --- | --- | --- | --- |")
    _read(files)
    for name, before in (("warm", _nothing), ("cold", _evict)):
        plain, deep = [], []
        for _ in range(options.rounds):
            before(files)
            plain.append(_seconds(lambda: _read(files)))
            before(files)
            deep.append(_seconds(lambda: _verify(options.store)))
        ratios = sorted(a / b for a, b in zip(plain, deep, strict=True))
        speeds = [size / statistics.median(seconds) / 1e9 for seconds in (plain, deep)]
        print(
            f"| {name} | {speeds[0]:.2f} | {speeds[1]:.2f} | "
            f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f}) |"
        )


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _read(files: list[Path]) -> None:
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.read(_BLOCK_BYTES):
                pass


def _verify(store: Path) -> None:
    report = verify_store(store, deep=True)
    assert report.ok, report.faults[0]


def _nothing(files: list[Path]) -> None:
    pass


def _evict(files: list[Path]) -> None:
    """Put clean pages of the files out of the page cache."""
    os.sync()
    for path in files:
        handle = os.open(path, os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


if __name__ == "__main__":
    main()
