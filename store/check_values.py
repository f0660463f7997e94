"""Verification of values: every chunk is decoded, and what the records say of it is held against it.

A place and its records in; findings out. That the bytes are those of the records, `check_bytes.py` finds out;
here it is whether the records themselves tell the truth: row sums, and so `arrays_digest`; rows that are ok,
which hold no NaN; rows that are bad and padding, which hold fill; statistics. A thread holds one chunk. What
int8 has cost, `sse`, cannot be known without the values that were quantised.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .checks import absmax_of, steps_of
from .chunk_index import IndexCache
from .codecs import MAX_CODE, fill_of, held_type, most_chunk_bytes, non_finite, to_float32
from .cores import num_cores
from .errors import StoreError
from .findings import Fault, Findings
from .manifest import Manifest
from .records import ArrayFile, ArrayKey, ShardRecord, arrays_of, extract_again
from .reporting import Advance, Progress, run_reporting
from .shard_files import ShardFile
from .statistics import ChannelStats, read_statistics
from .storage import Storage
from .tally import Tally, row_groups

__all__ = ["M2_SLACK", "MEAN_SLACK", "POWER_SLACK", "check_values", "value_bytes"]

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]
MEAN_SLACK: Final = 1e-9
"""Of a channel's absmax: by how much a mean may differ. The same code gives the same bits."""
M2_SLACK: Final = 1e-6
POWER_SLACK: Final = 1e-12
"""By how much m2 may differ: so much of itself, and so much of count * absmax**2."""
_REMOTE_THREADS: Final = 16
_REMOTE_BYTES: Final = 512 << 20
"""What the threads that wait for answers may hold together."""


def value_bytes(records: Sequence[ShardRecord]) -> int:
    """Bytes that are read to decode the arrays of some shards."""
    return sum(record.num_bytes for record in records)


def check_values(
    storage: Storage,
    manifest: Manifest,
    records: Sequence[ShardRecord],
    findings: Findings,
    progress: Progress | None = None,
) -> None:
    """Every value of some shards against their records and statistics; files a fault names are left out.

    Args:
        storage: where the store lies.
        manifest: of the store.
        records: of the shards.
        findings: where faults go, in the order of the records.
        progress: called in this thread with bytes done and bytes in all.
    """
    named, arrays = findings.named, list(arrays_of(manifest))
    threads = _num_threads(storage, manifest)

    @lru_cache(maxsize=2 * threads)
    def statistics(shard: int) -> dict[ArrayKey, ChannelStats] | None:
        record = by_shard[shard]
        try:
            return None if record.statistics.path in named else read_statistics(storage, manifest, record)
        except StoreError:
            return None  # a fault of its own

    by_shard = {record.shard: record for record in records}
    jobs = [
        partial(_check_array, _Asked(storage, manifest, record, array, file), statistics)
        for record in records
        for array, file in zip(arrays, record.files, strict=True)
        if file.path not in named
    ]
    total = value_bytes(records)
    done = sum(file.bytes for record in records for file in record.files if file.path in named)
    for faults in run_reporting(jobs, threads, progress, done, total):
        findings.faults += faults


def _num_threads(storage: Storage, manifest: Manifest) -> int:
    if storage.folder is not None:
        return num_cores()
    largest = max(most_chunk_bytes(manifest.chunk_shape(kind)) for kind in manifest.kinds)
    return max(1, min(_REMOTE_THREADS, _REMOTE_BYTES // (2 * largest)))


@dataclass(frozen=True)
class _Asked:
    """One array's shard, as its record has it."""

    storage: Storage
    manifest: Manifest
    record: ShardRecord
    array: ArrayKey
    file: ArrayFile

    @cached_property
    def is_ok(self) -> Mask:
        """(rows,) of the shard."""
        first, stop = self.record.rows
        is_ok = np.ones(stop - first, np.bool_)
        is_ok[[row - first for row, *_ in self.record.bad]] = False
        return is_ok


@dataclass
class _Seen:
    """What the chunks of one array's shard turned out to hold."""

    tally: Tally
    absmax: npt.NDArray[np.float64]
    """(dim,) over the rows that are ok."""
    at_ends: npt.NDArray[np.int64]
    """(dim,) int8 codes that clipped values could have become."""
    not_finite: list[int] = field(default_factory=list)
    """Rows that are ok and are not."""
    not_fill: list[int] = field(default_factory=list)
    """Rows that are bad and hold something."""
    padded: bool = True
    """Whether all beyond the last row is fill."""


def _check_array(asked: _Asked, statistics: Any, advance: Advance) -> list[Fault]:
    """All faults of one array's shard."""
    dim, faults = asked.manifest.dim, Findings()
    seen = _Seen(Tally(dim), np.zeros(dim), np.zeros(dim, np.int64))
    try:
        for first, held in _chunks(asked, advance):
            _look(asked, first, held, seen)
    except StoreError as exc:
        faults.unreadable(asked.file.path, exc, "extract", asked.record.shard)
        return faults.faults
    _judge_rows(asked, seen, faults)
    found = statistics(asked.record.shard)
    if found is not None and not seen.not_finite:
        difference = _difference(seen, found[asked.array])
        if difference is not None:
            _fault(asked, faults, "must state what the rows hold", difference, asked.record.statistics.path)
    return faults.faults


def _chunks(asked: _Asked, advance: Advance) -> Iterator[tuple[int, Array]]:
    """`(its first row within the shard, held values (chunk_rows, tokens, dim))` of every chunk with a row.

    Valid until the next one is asked for.
    """
    manifest, kind = asked.manifest, asked.array.kind
    first, stop = asked.record.rows
    scratch = np.empty(manifest.chunk_shape(kind), held_type(manifest, kind))
    every_row = np.arange(manifest.chunk_rows)
    told = 0
    with ShardFile(asked.storage, manifest, asked.file, kind, IndexCache()) as file:
        numbers = range(-(-(stop - first) // manifest.chunk_rows))
        for number, data in file.encoded(numbers, lambda size, _: np.empty(size, np.uint8)):
            size = len(data)  # before it is decoded, which may write over it
            yield number * manifest.chunk_rows, file.decode(number, data, scratch, every_row)
            told += size
            advance(size)
    advance(max(0, asked.file.bytes - told))  # the index


def _look(asked: _Asked, first: int, held: Array, seen: _Seen) -> None:
    """Take in one chunk, whose first row is `first` within the shard."""
    rows = asked.record.rows
    is_ok = asked.is_ok[first : first + len(held)]
    held, padding = held[: len(is_ok)], held[len(is_ok) :]
    seen.padded &= bool(_is_fill(padding).all())
    steps = steps_of(asked.manifest, asked.array)
    absmax = absmax_of(held, is_ok, steps)
    if not np.isfinite(absmax).all():
        wrong = is_ok & non_finite(held).any(axis=(1, 2))
        seen.not_finite += (rows[0] + first + np.flatnonzero(wrong)).tolist()
        is_ok = is_ok & ~wrong
        absmax = absmax_of(held, is_ok, steps)
    bad = ~asked.is_ok[first : first + len(held)]
    seen.not_fill += (rows[0] + first + np.flatnonzero(bad & ~_is_fill(held, bad))).tolist()
    np.maximum(seen.absmax, absmax, out=seen.absmax)
    if steps is not None:
        seen.at_ends += (np.abs(held[is_ok].astype(np.int16)) == MAX_CODE).sum(axis=(0, 1))
    for group in row_groups(0, len(held), held[0].size):
        with np.errstate(invalid="ignore"):  # NaNs of float16 may be ones that signal
            scale, offset = (None, None) if steps is None else (steps.scale, steps.offset)
            values = to_float32(held[group], scale, offset)
        seen.tally.add(rows[0] + first + group.start, values, is_ok[group])


def _is_fill(held: Array, asked: Mask | None = None) -> Mask:
    """(rows,) whether a row is the fill value, bit by bit; rows that are not asked for count as such."""
    found = np.ones(len(held), np.bool_)
    rows = np.arange(len(held)) if asked is None else np.flatnonzero(asked)
    bits = f"u{held.itemsize}"
    fill = np.array([fill_of(held.dtype)], held.dtype).view(bits)
    for row in rows.tolist():
        found[row] = (held[row].view(bits) == fill).all()
    return found


def _judge_rows(asked: _Asked, seen: _Seen, faults: Findings) -> None:
    rows = {
        "must hold finite values in rows that are ok": (
            seen.not_finite,
            "is ok and holds a NaN or an infinity",
        ),
        "must hold the fill value in rows that are bad": (seen.not_fill, "is bad and holds something else"),
    }
    for rule, (found, what) in rows.items():
        if found:
            more = f" ({len(found)} rows in all)" if len(found) > 1 else ""
            _fault(asked, faults, rule, f"row {found[0]} {what}{more}")
    if not seen.padded:
        _fault(asked, faults, "must hold the fill value beyond the last row", "it holds something else")
    if seen.tally.row_sum != asked.file.values:
        first, stop = asked.record.rows
        detail = f"rows {first} to {stop - 1} add up to {seen.tally.row_sum}, not {asked.file.values}"
        _fault(asked, faults, "must hold the values of the row sum in its record", detail)


def _fault(asked: _Asked, faults: Findings, rule: str, detail: str, where: str | None = None) -> None:
    array, shard = asked.array, asked.record.shard
    faults.fault(
        where or asked.file.path,
        rule,
        f"layer {array.layer}, {array.kind}: {detail}; {extract_again(shard)}",
        "extract",
        shard,
    )


def _difference(seen: _Seen, claimed: ChannelStats) -> str | None:
    """The first thing in which statistics are not those of the values; rounding is none."""
    found = seen.tally.statistics(seen.absmax)
    if found.count != claimed.count:
        return f"its count is {claimed.count}, and the rows have {found.count} tokens"
    power = found.count * found.absmax * found.absmax
    slack = {
        "absmax": 0 * power,
        "mean": MEAN_SLACK * found.absmax,
        "m2": M2_SLACK * found.m2 + POWER_SLACK * power,
    }
    for name, most in slack.items():
        is_other = ~(np.abs(getattr(found, name) - getattr(claimed, name)) <= most)
        if is_other.any():
            channel = int(np.flatnonzero(is_other)[0])
            stated, held = getattr(claimed, name)[channel], getattr(found, name)[channel]
            return f"its {name} of channel {channel} is {stated:g}, and the rows have {held:g}"
    if claimed.losses is not None and (beyond := claimed.losses.clipped > seen.at_ends).any():
        channel = int(np.flatnonzero(beyond)[0])
        return (
            f"it says that {claimed.losses.clipped[channel]} codes of channel {channel} were clipped, and "
            f"{seen.at_ends[channel]} are at the ends"
        )
    return None
