"""Stores that grow, without a teacher: the new part written from the values of a store that has it all."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from activault.store import Manifest, Store, create_store, open_store
from activault.store.growing import GROWING
from activault.store.growing_plan import appended_manifest, appended_samples, extended_manifest, new_part
from activault.store.growing_writer import GrowingWriter
from activault.store.parts import part_samples

from .conftest import Plan


def more_rows(there: Store, whole: Plan) -> tuple[Manifest, pa.Table]:
    """What an addition of the rows that only `whole` has is planned as."""
    samples = whole.samples.slice(there.num_rows)
    keys, labels = list(map(str, samples["key"].to_pylist())), samples["label"].to_pylist()
    grown = appended_manifest(there.manifest, whole.manifest.num_rows, there.manifest.source, {})
    return new_part(there.manifest, grown), appended_samples(there.samples, keys, labels, "images")


def more_arrays(there: Store, whole: Plan) -> tuple[Manifest, pa.Table]:
    """What an addition of the layers and kinds that only `whole` has is planned as."""
    wanted = whole.manifest
    steps = dict(zip(wanted.layers, wanted.quantisation or (), strict=False))
    grown = extended_manifest(there.manifest, wanted.layers, wanted.kinds, wanted.layout, steps, {})
    return new_part(there.manifest, grown), there.samples


def write_part(path: Path, whole: Plan, shards: range | None = None) -> None:
    """Write the new part of the store at `path`, or some shards of it."""
    there = open_store(path)
    more = more_rows if whole.manifest.num_rows > there.num_rows else more_arrays
    part, samples = more(there, whole)
    made = create_store(path / GROWING, part, part_samples(samples, part), {})
    with GrowingWriter(made, there) as writer:
        for shard in writer.unfinished if shards is None else shards:
            publish(writer, there, whole, shard)


def publish(writer: GrowingWriter, there: Store, whole: Plan, shard: int) -> None:
    """One shard; old rows are left to the writer where rows come."""
    buffer = writer.buffer(shard)
    first = max(buffer.rows.start, there.num_rows) if writer.adds_rows else buffer.rows.start
    for layer in writer.manifest.layers:
        place = whole.manifest.layers.index(layer)
        buffer.write(layer, first - buffer.rows.start, whole.values[first : buffer.rows.stop, place])
    writer.publish(buffer, whole.outcomes(buffer.rows))
