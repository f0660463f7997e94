"""Memory of a writer: beside the buffer, at most twice the largest array's shard as float32."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import re, sys
from pathlib import Path
import numpy as np

sys.path.insert(0, sys.argv[1])
from conftest import TEACHER, Outcome, make_manifest, make_samples, write_teacher
from activault.store import TokenLayout, create_store

ROWS = 256
dtype, chunk_rows, threads = sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
manifest = make_manifest(
    num_rows=ROWS, shard_rows=ROWS, chunk_rows=chunk_rows, dtype=dtype, layers=(0, 1, 2, 3),
    kinds=("cls", "patches"), layout=TokenLayout(num_cls=1, num_registers=0, grid=(16, 16)),
    teacher=TEACHER.model_copy(update={"dim": 128}),
)
def resident(name):
    return int(re.search(name + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) << 10

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


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("chunk_rows", "threads"), [(32, 8), (256, 4)], ids=["8 chunks", "1 chunk"])
def test_a_writers_peak(tmp_path: Path, dtype: str, chunk_rows: int, threads: int) -> None:
    arguments = [str(Path(__file__).parent), str(tmp_path / "a.zarr"), dtype, str(chunk_rows), str(threads)]
    done = subprocess.run(
        [sys.executable, "-c", CODE, *arguments], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) <= 2.0
