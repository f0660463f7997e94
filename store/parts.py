"""Which part of a store is meant, and the manifest and sample table that the part has. Pure: no disk.

A manifest, layers, token kinds and rows in; the manifest of a partial copy and its sample table out. Rows are
taken in whole shards: a range is widened to them, never cut short.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .arrow import pa
from .errors import ConfigError
from .held import HeldShards
from .layout import TokenKind, parse_kept_kinds, parse_layers
from .manifest import Manifest
from .samples import with_records
from .selection import check_layers

__all__ = ["Part", "choose_part", "parse_rows", "part_samples", "shard_ranges"]


@dataclass(frozen=True)
class Part:
    """A part of a store that was asked for."""

    manifest: Manifest
    """The part's own."""
    asked_rows: range
    """Rows as they were asked for."""
    rows: range
    """The same, widened to whole shards; of a source that is partial itself, not all of them are held."""


def choose_part(
    manifest: Manifest,
    layers: str | Iterable[int] | None = None,
    tokens: str | Iterable[str] | None = None,
    rows: str | range | slice | None = None,
) -> Part:
    """The part of a store with some of its layers, kinds and rows; None is all that the store holds.

    Args:
        manifest: the whole's.
        layers: `"7-12"`, or numbers.
        tokens: `"cls,patches"`, or kinds.
        rows: `"0:10000"`, or a range; widened to whole shards.

    Raises:
        ConfigError: a layer, a kind or a row is not in the store.
    """
    asked = parse_rows(rows, manifest.num_rows)
    shards = _shards_of(manifest, asked, every=rows is None)
    size = manifest.shard_rows
    widened = range(asked.start // size * size, min(-(-asked.stop // size) * size, manifest.num_rows))
    part = manifest.with_parts(_layers(manifest, layers), _kinds(manifest, tokens), shard_ranges(shards))
    return Part(part, asked, widened)


def parse_rows(rows: str | range | slice | None, num_rows: int) -> range:
    """`"0:10000"`, `":500"`, `"500:"`, a range or a slice as consecutive rows out of `num_rows`.

    Raises:
        ConfigError: it is none of these, or not within the rows.
    """
    if rows is None:
        return range(num_rows)
    if isinstance(rows, str):
        # Of no more digits than a store can have rows.
        match = re.fullmatch(r"\s*(\d{0,18})\s*:\s*(\d{0,18})\s*", rows)
        if match is None:
            raise ConfigError(f"rows are first:stop, such as 0:10000, :500 or 500:; got {_short(rows)}")
        first, stop = int(match[1] or 0), int(match[2] or num_rows)
    else:
        first, stop = _ends(rows, num_rows)
    if not 0 <= first < stop <= num_rows:
        raise ConfigError(f"rows rise within 0:{num_rows}; got {first}:{stop}")
    return range(first, stop)


def _ends(rows: range | slice, num_rows: int) -> tuple[int, int]:
    if not isinstance(rows, range | slice):
        raise ConfigError(
            f"rows of a copy are text such as 0:10000, a range or a slice; got {_short(repr(rows))}"
        )
    try:
        first = operator.index(rows.start or 0)
        stop = num_rows if rows.stop is None else operator.index(rows.stop)
    except TypeError as exc:
        raise ConfigError(f"a slice of rows is of whole numbers; got {_short(repr(rows))}") from exc
    if rows.step not in (None, 1):
        raise ConfigError(f"rows of a copy are consecutive; got {rows}")
    return first, stop


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."


def _shards_of(manifest: Manifest, rows: range, *, every: bool) -> Sequence[int]:
    if every:
        return manifest.held_shards
    shards = range(rows.start // manifest.shard_rows, (rows.stop - 1) // manifest.shard_rows + 1)
    for gap in manifest.absent_rows:
        if gap.start < rows.stop and rows.start < gap.stop:
            shard = max(gap.start // manifest.shard_rows, shards.start)
            lost = manifest.shard_range(shard)
            raise ConfigError(
                f"rows {rows.start}:{rows.stop} are not all in this partial copy: it lacks {lost.start}:"
                f"{lost.stop} (shard {shard}); ask for rows that it holds, or pull from the whole store"
            )
    return shards


def _layers(manifest: Manifest, layers: str | Iterable[int] | None) -> tuple[int, ...]:
    if layers is None:
        return manifest.layers
    if isinstance(layers, str):
        return parse_layers(layers, manifest.layers)
    return tuple(sorted(set(check_layers(layers, manifest.layers))))


def _kinds(manifest: Manifest, tokens: str | Iterable[str] | None) -> tuple[TokenKind, ...]:
    if tokens is None:
        return manifest.kinds
    return parse_kept_kinds(tokens, manifest.layout, manifest.kinds)


def shard_ranges(shards: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Ascending shards as `(first, stop)` ranges that do not touch."""
    if isinstance(shards, range):
        return ((shards.start, shards.stop),)
    if isinstance(shards, HeldShards):  # of a hostile manifest there may be 2^40
        return shards.ranges
    ranges: list[tuple[int, int]] = []
    for shard in shards:
        if ranges and ranges[-1][1] == shard:
            ranges[-1] = (ranges[-1][0], shard + 1)
        else:
            ranges.append((shard, shard + 1))
    return tuple(ranges)


def part_samples(samples: pa.Table, manifest: Manifest) -> pa.Table:
    """The planned table of a part: the whole's keys, labels and sources; `absent` where no shard is held."""
    return with_records(samples, (), manifest.absent_rows)
