"""What is read together: whole chunks, or parts that the rows of a chunk are spread over, by time of reading.

Ascending rows in; units of them out, in the order in which they are due. Nothing is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["Units", "chunks_of", "in_time", "most_copies", "random_stream", "spelled", "spread"]

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]
_BLOCK_ROWS: Final = 65_536
"""Rows worked on at a time: what is needed for them stays in the processor's cache."""


@dataclass(frozen=True, slots=True)
class Units:
    """Rows that are read together: every `strides`-th of the ascending rows from place `firsts` on."""

    firsts: Int64
    strides: Int64
    counts: Int64


def random_stream(seed: int, epoch: int, stream: int) -> np.random.Generator:
    """Random numbers that depend on the three numbers alone; another number, others."""
    # Philox by key: (seed, epoch) names a family, so that neighbouring seeds and epochs share nothing.
    key, counter = np.array([seed, epoch], np.uint64), np.array([0, 0, stream, 0], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


def chunks_of(rows: Int64, chunk_rows: int) -> tuple[Int64, Int64]:
    """For each chunk that has some of ascending `rows`, the place of its first row and how many it has."""
    found = [np.empty(0, np.int64)]
    before = -1
    for start in range(0, len(rows), _BLOCK_ROWS):
        numbers = rows[start : start + _BLOCK_ROWS] // chunk_rows
        found.append(start + np.flatnonzero(np.diff(numbers, prepend=before)))
        before = numbers[-1]
    starts = np.concatenate(found)
    return starts, np.diff(starts, append=len(rows))


def most_copies(rows: Int64, firsts: Int64) -> Int64:
    """(chunks,) how often the row of each chunk that is drawn most often is."""
    blocks = (rows[start : start + _BLOCK_ROWS + 1] for start in range(0, len(rows), _BLOCK_ROWS))
    if not any((block[1:] == block[:-1]).any() for block in blocks):
        return np.ones(len(firsts), np.int64)
    ends = np.append(np.flatnonzero(np.diff(rows, prepend=-1)), len(rows))
    return np.asarray(np.maximum.reduceat(np.repeat(np.diff(ends), np.diff(ends)), firsts))


def spread(num_chunks: int, num_windows: int, random: np.random.Generator) -> Float64:
    """(chunks,) when each is due, 0 to 1: of every `num_windows` chunks in a row each window's time gets one.

    Chunks of rows in the order of their classes are then in every window from all of the classes, evenly.
    """
    groups = np.arange(num_chunks) // num_windows
    order = np.argsort(groups + random.random(num_chunks))
    ranks = np.empty(num_chunks, np.int64)
    ranks[order] = np.arange(num_chunks) % num_windows
    sizes = np.minimum(num_windows, num_chunks - groups * num_windows)
    return np.asarray((ranks + random.random(num_chunks)) / sizes)


def in_time(
    firsts: Int64,
    counts: Int64,
    parts: Int64,
    is_dealt: npt.NDArray[np.bool_],
    times: Float64,
    random: np.random.Generator,
) -> Units:
    """All parts of all chunks by the time they are due, those of one chunk at equal distances.

    A part is a run of its chunk's rows, which are decompressed together; where rows have copies, these are
    dealt to the parts one by one.
    """
    owner = np.repeat(np.arange(len(firsts)), parts)
    nth = np.arange(len(owner)) - np.repeat(parts.cumsum() - parts, parts)
    num_parts, num_rows, dealt = parts[owner], counts[owner], is_dealt[owner]
    order = np.argsort((nth + times[owner]) / num_parts, kind="stable")
    # Which part comes first changes with the epoch.
    part = (nth + random.integers(0, parts)[owner]) % num_parts
    starts, stops = part * num_rows // num_parts, (part + 1) * num_rows // num_parts
    offsets = np.where(dealt, part, starts)
    lengths = np.where(dealt, -((part - num_rows) // num_parts), stops - starts)
    return Units((firsts[owner] + offsets)[order], np.where(dealt, num_parts, 1)[order], lengths[order])


def spelled(units: Units, members: Int64) -> Int64:
    """Places among the epoch's ascending rows of all rows of some units, one unit after the other."""
    counts = units.counts[members]
    behind = counts.cumsum()
    within: Int64 = np.arange(behind[-1]) - np.repeat(behind - counts, counts)
    within *= np.repeat(units.strides[members], counts)
    within += np.repeat(units.firsts[members], counts)
    return within
