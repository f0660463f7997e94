"""What an epoch reads from a disk: every inner chunk of the chosen arrays once, and their indices once."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pytest

from activault.store import ActivationLoader, TokenLayout, open_store
from activault.store.records import array_file
from activault.store.storage import Folder, OpenFile

from .conftest import TEACHER, MakePlan


class CountingFile:
    """An opened file that notes every byte that is read of it."""

    def __init__(self, file: OpenFile, note: Any) -> None:
        self._file = file
        self._note = note
        self.size = file.size

    def read(self, offset: int, length: int) -> bytes:
        self._note(offset, length)
        return self._file.read(offset, length)

    def fill(self, block: memoryview, offset: int) -> None:
        self._note(offset, len(block))
        self._file.fill(block, offset)

    def __enter__(self) -> Self:
        self._file.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.__exit__(kind, value, trace)


class CountingFolder(Folder):
    """A folder that notes the ranges of files that are read."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.ranges: list[tuple[str, int, int]] = []
        self._lock = threading.Lock()

    def open(self, path: str, size: int | None = None) -> OpenFile:
        def note(offset: int, length: int) -> None:
            with self._lock:
                self.ranges.append((path, offset, length))

        return CountingFile(super().open(path, size), note)

    def counts(self) -> dict[str, np.ndarray]:
        """How often each byte of each array's file was read."""
        found: dict[str, np.ndarray] = {}
        for path, offset, length in self.ranges:
            if path.startswith("layer_"):
                counts = found.setdefault(path, np.zeros((self.folder / path).stat().st_size, np.int64))
                counts[offset : offset + length] += 1
        return found


@pytest.mark.parametrize("dim", [8, 4096], ids=["small chunks", "a chunk a job"])
@pytest.mark.parametrize("pool", ["of some chunks", "of all"])
@pytest.mark.parametrize("num_threads", [0, 3])
def test_a_shuffled_epoch_reads_every_chunk_once(
    make_plan: MakePlan, dim: int, pool: str, num_threads: int
) -> None:
    layout = TokenLayout(num_cls=1, num_registers=2, grid=(2, 3))
    plan = make_plan(
        num_rows=200, layout=layout, teacher=TEACHER.model_copy(update={"dim": dim}), shard_rows=32
    )
    plan.write()
    storage = CountingFolder(plan.path)
    store = open_store(plan.path)
    store.storage = storage  # from here on; opening is not counted
    row_bytes = 2 * 7 * dim * 2
    loader = ActivationLoader(
        store,
        layers=[4, 0],
        tokens="cls,patches",
        batch_size=16,
        pool_bytes=row_bytes * (48 if pool == "of some chunks" else 1000),
        num_threads=num_threads,
    )
    storage.ranges.clear()
    rows = [row for batch in loader for row in batch.rows.tolist()]
    assert sorted(rows) == list(range(200))
    files = {
        array_file(layer, kind, shard)
        for layer in (0, 4)
        for kind in ("cls", "patches")
        for shard in range(7)
    }
    counts = storage.counts()
    assert counts.keys() == files
    # Chunks stand in a file without a gap and the index behind them, so that every byte is read just once.
    assert all((found == 1).all() for found in counts.values())

    storage.ranges.clear()
    for _ in loader:  # the second epoch: the indices are known
        pass
    read = sum(length for path, _, length in storage.ranges if path.startswith("layer_"))
    index_bytes = 16 * store.manifest.chunks_per_shard + 4
    assert read == sum((plan.path / path).stat().st_size - index_bytes for path in files)
