"""A short trial of an extraction: the engine itself on some rows, and nothing where the store will be.

In: a `Workload` and seconds. Out: images a second with their spread, and the bytes that the rows took, layer
by layer.

`capture` runs as it does for a store. Its writer claims small shards as long as there is time, encodes each
by the code that encodes a store's into a folder for temporary files, measures and removes it. What the disk
of the store itself would take is no part of it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from activault.store import Manifest, Outcome, ShardBuffer, plan_samples
from activault.store.cores import memory_bytes, num_cores
from activault.store.errors import StoreError
from activault.store.extent import index_bytes
from activault.store.facts import float32_bytes
from activault.store.grid import shard_bytes
from activault.store.records import ShardRecord
from activault.store.samples import OK
from activault.store.shard_encoding import checked_shard, encode_shard

from .arithmetic import Arithmetic
from .backbone import Backbone
from .capture import Decode, Decoded, StallTimes, capture
from .memory import PeakMemory

__all__ = ["Trial", "Workload", "run_trial", "trial_manifest"]

_MOST_SHARDS: Final = 10_000
"""More than any time is given for."""
_IN_MEMORY: Final = Path("/dev/shm")  # noqa: S108
"""Linux's folder in memory."""
_MOST_MEMORY: Final = 1 / 16
"""Share of the memory that a trial's files may take: they count as this job's."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Rows of a planned store, and what computes them."""

    manifest: Manifest
    """Of the store; its number of rows and its grid do not matter to a trial."""
    backbone: Backbone
    """The teacher, on its device."""
    decode: Decode
    """A row's pixels."""
    rows: Sequence[int]
    """The rows to take, in this order, again from the first where there are too few."""
    arithmetic: Arithmetic
    """What the teacher computes in."""
    workers: int
    """Decoding threads."""

    def decode_again(self, place: int) -> Decoded:
        """The pixels of the row at a place among `rows`, which have no end."""
        return self.decode(self.rows[place % len(self.rows)])


@dataclass
class Trial:
    """What was measured."""

    num_rows: int = 0
    """Rows that were encoded."""
    num_bad: int = 0
    """Those whose image was bad."""
    num_bytes: int = 0
    """Bytes of their chunks, without the indices of files."""
    statistics_bytes: int = 0
    """Bytes of a shard's statistics, which do not depend on its rows."""
    record_bytes: int = 0
    """Bytes of the last shard's record."""
    bytes_a_row: list[float] = field(default_factory=list)
    """Of every shard."""
    finished: list[float] = field(default_factory=list)
    """Seconds since the start at which each shard was encoded."""
    shard_rows: int = 0
    buffer_bytes: int = 0
    """Bytes of a shard in memory; there are two at most."""
    peak_host_bytes: int = 0
    """Most memory of this process meanwhile."""
    stalls: StallTimes = field(default_factory=StallTimes)

    @property
    def rates(self) -> list[float]:
        """Rows a second between one shard and the next; the first one fills the pipeline, and counts not."""
        gaps = (after - before for before, after in zip(self.finished, self.finished[1:], strict=False))
        return [self.shard_rows / max(gap, 1e-9) for gap in gaps]

    @property
    def rate(self) -> float:
        """Rows a second."""
        if len(self.finished) < 2:
            return self.num_rows / max(sum(self.finished), 1e-9)
        return self.shard_rows * (len(self.finished) - 1) / max(self.finished[-1] - self.finished[0], 1e-9)


def trial_manifest(manifest: Manifest, shard_rows: int, threads: int) -> Manifest:
    """The same store in shards of a trial's size, of so many chunks that `threads` can encode them.

    The steps of int8 are from few rows here, so the bound on their error, which would refuse a shard, is let
    out to four times as much.
    """
    chunk_rows = min(manifest.chunk_rows, max(1, shard_rows // threads))
    while shard_rows % chunk_rows:
        chunk_rows -= 1
    parts: dict[str, Any] = {"shard_rows": shard_rows, "chunk_rows": chunk_rows, "shards": None}
    parts["num_rows"] = shard_rows * _MOST_SHARDS
    if manifest.quantisation is not None:
        steps = [step.model_dump() | {"variance": 4 * step.variance} for step in manifest.quantisation]
        parts["quantisation"] = steps
    return Manifest.model_validate(manifest.model_dump() | parts)


class _TrialWriter:
    """A `ShardWriter` of small shards that are measured and removed."""

    def __init__(self, manifest: Manifest, trial: Trial, seconds: float, folder: Path) -> None:
        self.manifest = manifest
        self.samples: pa.Table = plan_samples(["-"], [None], "trial")
        self.unfinished = list(range(_MOST_SHARDS))
        self._trial = trial
        self._folder = folder
        self._start = time.perf_counter()
        self._seconds = seconds
        self._claimed = 0

    def is_finished(self, shard: int) -> bool:  # noqa: ARG002
        return False

    def rounds(self, shards: Sequence[int]) -> Iterator[Sequence[int]]:
        yield shards

    def claim(self, shard: int) -> bool:  # noqa: ARG002
        """As long as there is time; three at least, as two give the first gap."""
        if self._claimed >= 3 and time.perf_counter() - self._start > self._seconds:
            return False
        self._claimed += 1
        return True

    def buffer(self, shard: int) -> ShardBuffer:
        return ShardBuffer(self.manifest, shard)

    def publish(
        self, buffer: ShardBuffer, outcomes: Sequence[Outcome], threads: int | None = None
    ) -> ShardRecord:
        trial, folder = self._trial, self._folder / str(buffer.shard)
        folder.mkdir()
        try:
            checked = checked_shard(self.manifest, buffer, outcomes, _RowNumbers(), threads)
            encoded = encode_shard(folder, self.manifest, checked)
        except OSError as exc:
            raise StoreError(
                f"a trial writes into {self._folder}, which failed ({exc.strerror}); {_remedy(self._folder)}"
            ) from exc
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        trial.finished.append(time.perf_counter() - self._start)
        size = sum(file.bytes - index_bytes(self.manifest) for file in encoded.files.values())
        trial.num_rows += len(outcomes)
        trial.num_bad += sum(outcome.status != OK for outcome in outcomes)
        trial.num_bytes += size
        trial.bytes_a_row.append(size / len(outcomes))
        trial.statistics_bytes = encoded.statistics.bytes
        record, data = encoded.record(self.manifest, buffer.shard)
        trial.record_bytes = len(data)
        return record

    def complete(self) -> None:
        """There is nothing to complete."""

    def close(self) -> None:
        """Nothing is held."""

    def __enter__(self) -> _TrialWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _RowNumbers:
    """Keys of rows, for messages."""

    def __getitem__(self, row: int) -> pa.StringScalar:
        return pa.scalar(f"row {row} of the trial")


def _quick_folder(num_bytes: int) -> Path | None:
    """A folder in memory that has room for so many bytes; None where the one for temporary files has to do.

    Waiting for a disk once a small shard would be most of a trial's time. Containers often have 64 MB of it.
    """
    if num_bytes > _MOST_MEMORY * memory_bytes() or not os.access(_IN_MEMORY, os.W_OK | os.X_OK):
        return None
    return _IN_MEMORY if shutil.disk_usage(_IN_MEMORY).free >= num_bytes else None


def _remedy(folder: Path) -> str:
    """What helps where a trial cannot write."""
    if folder.is_relative_to(_IN_MEMORY):
        return "free space there"
    return "free space there, or set TMPDIR to another folder"


def run_trial(work: Workload, batch_size: int, seconds: float) -> Trial:
    """Run the engine for about so many seconds.

    Args:
        work: what it does.
        batch_size: images of a batch, and rows that are encoded together.
        seconds: after which no further rows are taken; what is under way is finished.

    Raises:
        NonFiniteError, StoreError: as `capture`.
    """
    trial = Trial(shard_rows=batch_size)
    threads = 1 if work.backbone.mean.device.type == "cpu" else num_cores()
    planned = trial_manifest(work.manifest, trial.shard_rows, threads)
    trial.buffer_bytes = shard_bytes(planned)

    # One shard is written while the folder of the one before may not be gone yet; no file takes more.
    quick = _quick_folder(2 * float32_bytes(planned, trial.shard_rows))
    memory = PeakMemory()
    with tempfile.TemporaryDirectory(prefix="activault-trial-", dir=quick) as folder, memory:
        writer = _TrialWriter(planned, trial, seconds, Path(folder))
        trial.stalls = capture(
            writer,
            work.backbone,
            work.decode_again,
            batch_size=batch_size,
            workers=work.workers,
            arithmetic=work.arithmetic,
        )
    trial.peak_host_bytes = memory.host_bytes
    return trial
