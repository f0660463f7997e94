"""A writer of two processes, killed at random moments and started again until done, as often as asked.

    python benchmarks/kills.py [--kills 200] [--seed 0]

After every kill the store is verified deep, and all rows that count as finished are read and compared with
what was written. A store that gets done must have the digest of one that was never disturbed; then the next
one is begun. Prints one line for the log and exits 1 on the first lie.
"""

from __future__ import annotations

import argparse
import multiprocessing
import platform
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import numpy as np
import numpy.typing as npt

from activault.store import (
    Manifest,
    NotAStoreError,
    Outcome,
    SourceInfo,
    TeacherInfo,
    TokenLayout,
    create_store,
    open_store,
    plan_samples,
    verify_store,
)
from activault.store.codecs import round_to_bfloat16, to_float32
from activault.store.locks import LOCK

NUM_ROWS, SHARD_ROWS, DIM = 192, 16, 32
BAD_ROWS = {5, 100}
TEACHER = TeacherInfo(
    name="none",
    architecture="none",
    weights="random",
    weights_sha256="0" * 64,
    license="unknown",
    num_blocks=4,
    dim=DIM,
    num_heads=2,
    timm_version="none",
    torch_version="none",
)
MANIFEST = Manifest(
    num_rows=NUM_ROWS,
    layers=(0, 2, 4),
    kinds=("cls", "patches"),
    layout=TokenLayout(num_cls=1, num_registers=0, grid=(6, 6)),
    dtype="bfloat16",
    shard_rows=SHARD_ROWS,
    chunk_rows=4,
    teacher=TEACHER,
    preprocessing=None,
    source=SourceInfo(kind="arrays", name="random", fingerprint="0"),
    row_seed=0,
)
LONGEST = 0.8
"""Seconds that a writer is let live at most; one that is left alone takes some seconds."""


def values_of(rows: range) -> npt.NDArray[np.float32]:
    """(rows, layers, tokens, dim), the same for the same rows whichever process asks."""
    shape = (len(MANIFEST.layers), MANIFEST.layout.num_tokens, DIM)
    found = [np.random.default_rng(row).standard_normal(shape, dtype=np.float32) for row in rows]
    return np.stack(found)


def outcome_of(row: int) -> Outcome:
    """Of two rows the image was bad."""
    if row in BAD_ROWS:
        return Outcome(status="truncated", reason="the data ends early")
    return Outcome(status="ok", width=40 + row % 3, height=30)


def write_teacher(folder: Path) -> None:
    """A file, so that planning takes as many steps as it does in life."""
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 64)


def work(path: Path) -> None:
    """Plan or open the store, publish what nobody else has, complete it when all is finished."""
    samples = plan_samples([f"{row}.jpg" for row in range(NUM_ROWS)], [None] * NUM_ROWS, "random")
    with create_store(path, MANIFEST, samples, write_teacher) as writer:
        while shards := writer.unfinished:
            for shard in shards:
                if not writer.claim(shard):
                    continue
                buffer = writer.buffer(shard)
                values = values_of(buffer.rows)
                for place, layer in enumerate(MANIFEST.layers):
                    buffer.write(layer, 0, values[:, place])
                writer.publish(buffer, [outcome_of(row) for row in buffer.rows])
            time.sleep(0.01)
        writer.complete()


def lies_of(path: Path) -> tuple[list[str], str]:
    """What is wrong with the store as the dead left it, and how far they got."""
    try:
        report = verify_store(path, deep=True)
    except NotAStoreError:
        return [], "planning"
    lies = [str(fault) for fault in report.faults]
    store = open_store(path)
    rows = store.finished_rows
    expected = to_float32(round_to_bfloat16(values_of(range(NUM_ROWS))))[rows]
    expected[np.isin(rows, sorted(BAD_ROWS))] = np.nan
    if not np.array_equal(store.read(rows, store.layers), expected, equal_nan=True):
        lies.append("rows that count as finished read as something else")
    if store.complete:
        return lies, "complete"
    return lies, "all shards" if len(rows) == NUM_ROWS else "some shards" if len(rows) else "no shard"


def kill(start: list[ForkServerProcess], moments: random.Random) -> None:
    """Kill both processes, one a little after the other."""
    time.sleep(moments.uniform(0.0, moments.choice([LONGEST, LONGEST / 6])))
    for process in moments.sample(start, len(start)):
        process.kill()
        time.sleep(moments.choice([0.0, 0.0, moments.uniform(0.0, 0.1)]))
    for process in start:
        process.join()


def begin(context: multiprocessing.context.ForkServerContext, path: Path) -> list[ForkServerProcess]:
    """Two processes at work on the store."""
    processes = [context.Process(target=work, args=(path,)) for _ in range(2)]
    for process in processes:
        process.start()
    return processes


def main() -> int:
    """Kill, verify, start again; print the line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["activault.store"])  # so that a writer starts in moments
    moments, start = random.Random(options.seed), time.perf_counter()
    reached: Counter[str] = Counter()
    folder = Path(tempfile.mkdtemp(prefix="kills"))
    try:
        work(folder / "undisturbed.zarr")
        digest = open_store(folder / "undisturbed.zarr").digest
        kills = stores = 0
        while kills < options.kills:
            path = folder / f"{stores}.zarr"
            while kills < options.kills:
                kill(begin(context, path), moments)
                kills += 1
                lies, state = lies_of(path)
                reached[state] += 1
                if lies:
                    print(f"kill {kills} ({state}): " + "; ".join(lies), file=sys.stderr)
                    return 1
                if state == "complete":
                    break
            # Undisturbed at last: this also takes over what the dead left.
            for process in begin(context, path):
                process.join()
                if process.exitcode:
                    print(f"the writer after kill {kills} failed", file=sys.stderr)
                    return 1
            left = [file for file in path.rglob(".*") if file.is_file() and file.name != LOCK]
            if open_store(path).digest != digest or lies_of(path) != ([], "complete") or left:
                print(f"store {stores} differs from the undisturbed one, or {left} is left", file=sys.stderr)
                return 1
            stores += 1
            shutil.rmtree(path)
    finally:
        shutil.rmtree(folder)
    spoken = ", ".join(f"{state} {count}" for state, count in sorted(reached.items()))
    print(
        f"{datetime.now(UTC):%Y-%m-%d}, {platform.machine()}, Python {platform.python_version()}: {kills} "
        f"kills of a writer of 2 processes (found after them: {spoken}), no lie; {stores} stores finished "
        f"after them, each with the undisturbed one's digest; {time.perf_counter() - start:.0f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
