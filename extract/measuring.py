"""The figures of a short trial, scaled to a whole extraction: images a second, bytes a row, memory.

    found = measure(work, batch_size=64, seconds=4)
    found.speed.images_a_second, found.bytes_a_row, found.working_bytes

Short trials come first, of batches that grow from a single image to what was asked for, or to what there is
time for. Memory that grows with the batch is a line through the first trial and the last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .memory import resident_bytes
from .trial import Trial, Workload, run_trial

__all__ = ["Measurement", "Speed", "measure"]


@dataclass(frozen=True, kw_only=True)
class Speed:
    """How fast the engine was."""

    images_a_second: float
    low: float
    high: float
    """Between which eight of ten rates were, each from one encoded batch to the next."""
    num_images: int
    """Images of the trial."""
    num_bad: int
    """Those of them that were bad."""
    batch_size: int
    """Images of a batch in the trial: as asked for, or what the time allowed."""
    seconds: float
    """That the trial took."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What a trial says of a whole extraction."""

    speed: Speed
    bytes_a_row: float
    """Of chunks alone."""
    lowest_bytes_a_row: float
    highest_bytes_a_row: float
    """Of the trial's batches."""
    statistics_bytes: int
    """Of a shard."""
    record_bytes: int
    """Of a shard of the trial."""
    base_bytes: int
    """Memory of this process before the trial."""
    working_bytes: int
    """Memory beside that and the shards' buffers, at the batch size that was asked for: images decoded ahead,
    the teacher's activations, copies under way."""
    device_bytes: int | None
    """Peak memory of a CUDA device at that batch size."""


def measure(work: Workload, *, batch_size: int, seconds: float) -> Measurement:
    """Run the engine on some rows for about so many seconds.

    Args:
        work: what the extraction does.
        batch_size: images of a batch in it.
        seconds: for the trial itself; those before it take about as long together.

    Raises:
        NonFiniteError, StoreError: as `capture`.
    """

    def affordable(tried: Trial) -> int:
        """Images of a batch of which there are six in the time: five gaps between them give a spread."""
        return max(1, min(batch_size, int(tried.rate * seconds / 6)))

    base = resident_bytes()
    if work.arithmetic.is_padded:  # a forward of one image is one of all of them
        single = found = run_trial(work, batch := batch_size, seconds)
    else:
        run_trial(work, 1, 0.0)  # what happens once, such as starting a device
        single, batch = (tried := run_trial(work, 1, 0.0)), 1
        while (larger := affordable(tried)) > 1.5 * batch:
            # A small shard takes longer a row, so that what it affords is less than what there is time for.
            batch, tried = larger, run_trial(work, larger, 0.0)
        found = run_trial(work, batch, seconds)
    device, device_of_one = found.stalls.peak_device_bytes, single.stalls.peak_device_bytes
    if device is not None and device_of_one is not None:
        device = _at(batch_size, batch, device_of_one, device)
    low, high = np.percentile(found.rates or [found.rate], (10, 90)).tolist()
    return Measurement(
        speed=Speed(
            images_a_second=found.rate,
            low=low,
            high=high,
            num_images=found.num_rows,
            num_bad=found.num_bad,
            batch_size=batch,
            seconds=found.finished[-1],
        ),
        bytes_a_row=found.num_bytes / found.num_rows,
        lowest_bytes_a_row=min(found.bytes_a_row),
        highest_bytes_a_row=max(found.bytes_a_row),
        statistics_bytes=found.statistics_bytes,
        record_bytes=found.record_bytes,
        base_bytes=base,
        working_bytes=_at(batch_size, batch, *(_working(each, base) for each in (single, found))),
        device_bytes=device,
    )


def _working(trial: Trial, base: int) -> int:
    return max(0, trial.peak_host_bytes - base - 2 * trial.buffer_bytes)


def _at(batch_size: int, measured: int, of_one: int, of_measured: int) -> int:
    """A line through the bytes of one image and those of the measured batch."""
    if batch_size == measured:
        return of_measured
    if measured == 1:  # whatever is there may grow
        return of_measured * batch_size
    each = max(0, of_measured - of_one) / (measured - 1)
    return round(of_measured + each * (batch_size - measured))
