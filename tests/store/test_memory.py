"""Memory of a writer: beside the buffer, at most twice the largest array's shard as float32.

And of a loader: its pool, three batches and room for a chunk a thread. Each in a fresh process.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from activault.store import TokenLayout

from .conftest import TEACHER, MakePlan

COMMON = """
import re, sys
from pathlib import Path
import numpy as np

sys.path.insert(0, sys.argv[1])
from conftest import TEACHER, Outcome, make_manifest, make_samples, write_teacher
from activault.store import TokenLayout, create_store, open_store

def resident(name):
    return int(re.search(name + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) << 10
"""
WRITE = """
ROWS = 256
dtype, chunk_rows, threads = sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
manifest = make_manifest(
    num_rows=ROWS, shard_rows=ROWS, chunk_rows=chunk_rows, dtype=dtype, layers=(0, 1, 2, 3),
    kinds=("cls", "patches"), layout=TokenLayout(num_cls=1, num_registers=0, grid=(16, 16)),
    teacher=TEACHER.model_copy(update={"dim": 128}),
)
with create_store(Path(sys.argv[2]), manifest, make_samples(ROWS), write_teacher) as writer:
    buffer = writer.buffer(0)
    random = np.random.default_rng(0)
    for layer in manifest.layers:
        for row in range(0, ROWS, 8):
            buffer.write(layer, row, random.standard_normal((8, 257, 128), dtype=np.float32))
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    writer.publish(buffer, [Outcome(status="ok")] * ROWS, threads=threads)
    print((resident("VmHWM") - before) / (ROWS * 256 * 128 * 4))
"""


LOAD = """
from activault.store import ActivationLoader
BATCH, POOL = 32, int(sys.argv[3])
store = open_store(sys.argv[2])
# Code is memory too when it is first used; of one chunk, which is a pool then.
few = ActivationLoader(store, layers=[0], batch_size=8, pool_bytes=1, rows=range(16), num_threads=1)
print(len(list(few)), file=sys.stderr)
loader = ActivationLoader(store, layers=store.layers, batch_size=BATCH, pool_bytes=POOL)
store.label_ids  # a table of all rows, which is no part of the bound
before = resident("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
for _ in range(2):
    for batch in loader:
        batch_bytes = max(batch.tokens.numel() * 4, locals().get("batch_bytes", 0))
chunk = max(4 * store.manifest.chunk_rows * store.layout.count(kind) * store.dim for kind in store.kinds)
allowed = POOL + 3 * batch_bytes + 2 * chunk * (loader.num_threads + 1) + (12 << 20)
print(store.num_bytes, resident("VmHWM") - before, allowed)
"""


def said(code: str, *arguments: object) -> str:
    command = [sys.executable, "-c", COMMON + code, str(Path(__file__).parent), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "int8"])
@pytest.mark.parametrize(("chunk_rows", "threads"), [(32, 8), (256, 4)], ids=["8 chunks", "1 chunk"])
def test_a_writers_peak(tmp_path: Path, dtype: str, chunk_rows: int, threads: int) -> None:
    assert float(said(WRITE, tmp_path / "a.zarr", dtype, chunk_rows, threads)) <= 2.0


@pytest.mark.parametrize(
    ("dtype", "num_mb", "row_seed"), [("bfloat16", 100, 0), ("int8", 40, 0), ("bfloat16", 100, None)]
)
def test_a_loaders_peak(make_plan: MakePlan, dtype: str, num_mb: int, row_seed: int | None) -> None:
    """With pools of half of the store, also where all of its rows, in their source's order, are mixed."""
    plan = make_plan(
        row_seed=row_seed,
        num_rows=512,
        shard_rows=128,
        chunk_rows=16,
        dtype=dtype,
        layers=(0, 1, 2, 3),
        kinds=("cls", "patches"),
        layout=TokenLayout(num_cls=1, num_registers=0, grid=(16, 16)),
        teacher=TEACHER.model_copy(update={"dim": 128}),
    )
    plan.write()
    num_bytes, held, allowed = map(int, said(LOAD, plan.path, num_mb * 500_000).split())
    assert num_bytes > num_mb * 1_000_000
    assert held <= allowed
