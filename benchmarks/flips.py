"""Bytes flipped at random in a store: is every one found by `verify --deep`, and is none ever read as data?

    python benchmarks/flips.py [--flips 500] [--seed 0]

Makes small stores of every dtype, complete and unfinished (a store that is not complete is read through its
records, a complete one through its index). For each flip: one byte of one file, all kinds of file in turn, so
that the few bytes of records and tables are hit as often as the many of arrays. Then the file must be named
by deep verification (or the store refused), and every chunk, the sample table and the statistics must read
as before or raise. Prints one line a kind and one in all.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from activault.store import (
    ChannelStats,
    Manifest,
    NotAStoreError,
    Outcome,
    SourceInfo,
    Store,
    StoredDtype,
    StoreError,
    TeacherInfo,
    TokenLayout,
    create_store,
    open_store,
    plan_samples,
    verify_store,
)
from activault.store.manifest import Quantisation

KINDS = {
    "root": "zarr.json",
    "layer metadata": "layer_*/zarr.json",
    "array metadata": "layer_*/*/zarr.json",
    "arrays": "layer_*/*/c/*/0/0",
    "shard indices": "layer_*/*/c/*/0/0",
    "records": "shards/*.json",
    "statistics": "shards/*.safetensors",
    "samples": "samples.parquet",
    "index": "index.parquet",
    "teacher": "teacher/*",
}
LAYERS, NUM_ROWS, SHARD_ROWS, CHUNK_ROWS, DIM = (0, 3, 6), 90, 32, 8, 16
DTYPES: tuple[StoredDtype, ...] = get_args(StoredDtype)
_INDEX_BYTES = 16 * (SHARD_ROWS // CHUNK_ROWS) + 4


@dataclass
class Target:
    """A store to be damaged, and what a sound one gives."""

    path: Path
    name: str
    values: npt.NDArray[np.float32]
    samples: pa.Table
    statistics: ChannelStats


def main() -> None:
    """Flip, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--flips", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    random, start = np.random.default_rng(options.seed), time.perf_counter()
    found, unseen, read = Counter[str](), list[str](), list[str]()
    with tempfile.TemporaryDirectory() as folder:
        targets = [target(Path(folder), dtype, complete) for dtype in DTYPES for complete in (True, False)]
        for number in range(options.flips):
            victim = targets[number % len(targets)]
            kind = list(KINDS)[number // len(targets) % len(KINDS)]
            if kind == "index" and not (victim.path / KINDS[kind]).exists():
                kind = "arrays"
            what, named, lies = flip(victim, kind, random)
            found[kind] += named
            unseen += [] if named else [what]
            read += [f"{what}: {lie}" for lie in lies]
    for kind in KINDS:
        print(f"{kind}: {found[kind]} found")
    print(
        f"{options.flips} flips (seed {options.seed}): {sum(found.values())} found by verify --deep, "
        f"{len(unseen)} unseen, {len(read)} read as data; {time.perf_counter() - start:.0f} s"
    )
    for what in (*unseen, *read):
        print(what)


def target(folder: Path, dtype: StoredDtype, complete: bool) -> Target:
    """A store of random values."""
    name = f"{dtype}-{'complete' if complete else 'unfinished'}"
    path, values = folder / f"{name}.zarr", np.random.default_rng(1).standard_normal((NUM_ROWS, 3, 8, DIM))
    steps = Quantisation(scale=(5 / 128,) * DIM, offset=(0.0,) * DIM, variance=1.0)
    manifest = Manifest(
        num_rows=NUM_ROWS,
        layers=LAYERS,
        kinds=("cls", "registers", "patches"),
        layout=TokenLayout(num_cls=1, num_registers=1, grid=(2, 3)),
        dtype=dtype,
        quantisation=(steps,) * 3 if dtype == "int8" else None,
        shard_rows=SHARD_ROWS,
        chunk_rows=CHUNK_ROWS,
        teacher=TeacherInfo(
            name="random",
            architecture="random",
            weights="none",
            weights_sha256="0" * 64,
            license="unknown",
            num_blocks=6,
            dim=DIM,
            num_heads=None,
            timm_version="-",
            torch_version="-",
        ),
        preprocessing=None,
        source=SourceInfo(kind="arrays", name="random", fingerprint="0"),
        row_seed=0,
    )
    samples = plan_samples(
        [f"{row}.png" for row in range(NUM_ROWS)], [str(row % 7) for row in range(NUM_ROWS)], "random"
    )
    with create_store(path, manifest, samples, _teacher) as writer:
        for shard in writer.unfinished:
            buffer = writer.buffer(shard)
            for place, layer in enumerate(LAYERS):
                buffer.write(layer, 0, values[buffer.rows, place].astype(np.float32))
            writer.publish(buffer, [_outcome(row) for row in buffer.rows])
        writer.complete()
    if not complete:
        (path / "index.parquet").unlink()
    store = open_store(path)
    return Target(path, name, store.read(slice(None), LAYERS), store.samples, store.statistics(3, "patches"))


def _teacher(folder: Path) -> None:
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 4)


def _outcome(row: int) -> Outcome:
    return Outcome(status="truncated") if row % 31 == 5 else Outcome(status="ok", width=8 + row % 3, height=8)


def flip(victim: Target, kind: str, random: np.random.Generator) -> tuple[str, bool, list[str]]:
    """Flip one byte: what was flipped, whether verification names its file, and what was read wrongly."""
    files = sorted(victim.path.glob(KINDS[kind]))
    file = files[random.integers(len(files))]
    sound = file.read_bytes()
    content, first = bytearray(sound), len(sound) - _INDEX_BYTES if kind == "shard indices" else 0
    place = int(random.integers(first, len(sound)))
    content[place] ^= int(random.integers(1, 256))
    file.write_bytes(content)
    name = file.relative_to(victim.path).as_posix()
    try:
        named = _is_named(victim.path, name)
        lies = [check.__name__ for check in (_values, _samples, _statistics) if not _holds(check, victim)]
    finally:
        file.write_bytes(sound)
    return f"{victim.name}: byte {place} of {name}", named, lies


def _is_named(path: Path, name: str) -> bool:
    try:
        return name in {fault.where for fault in verify_store(path, deep=True).faults}
    except NotAStoreError:
        return name == "zarr.json"


def _holds(check: Callable[[Store, Target], bool], victim: Target) -> bool:
    try:
        return check(open_store(victim.path), victim)
    except StoreError:
        return True


def _values(store: Store, victim: Target) -> bool:
    for first in range(0, NUM_ROWS, CHUNK_ROWS):
        rows = slice(first, min(first + CHUNK_ROWS, NUM_ROWS))
        try:
            found = store.read(rows, LAYERS)
        except StoreError:
            continue
        if not np.array_equal(found, victim.values[rows], equal_nan=True):
            return False
    return True


def _samples(store: Store, victim: Target) -> bool:
    """Rows of a shard whose record cannot be believed are pending, all others what they were."""
    finished = np.isin(np.arange(NUM_ROWS), store.finished_rows)
    same = store.samples.filter(pa.array(finished)).equals(victim.samples.filter(pa.array(finished)))
    others = set(store.samples.filter(pa.array(~finished))["status"].to_pylist())
    return same and others <= {"pending"}


def _statistics(store: Store, victim: Target) -> bool:
    return len(store.finished_rows) < NUM_ROWS or store.statistics(3, "patches") == victim.statistics


if __name__ == "__main__":
    main()
