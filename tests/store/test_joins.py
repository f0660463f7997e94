"""Records and statistics of parts, joined again, are the very bytes of the whole's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save

from activault.store import CorruptStoreError, open_store
from activault.store.joins import RecordPiece, join_record, join_statistics
from activault.store.records import (
    ArrayKey,
    ShardRecord,
    arrays_of,
    read_record,
    record_path,
    statistics_path,
)
from activault.store.storage import Folder

from .conftest import MakePlan, Plan

LAYERS, KINDS = (0, 2, 4), ("cls", "registers", "patches")


def part_of(plan: Plan, layers: set[int], kinds: set[str]) -> tuple[RecordPiece, bytes]:
    """One shard's record and statistics in a part."""
    record, _ = read_record(Folder(plan.path), plan.manifest, 1) or pytest.fail("no record")
    data = (plan.path / statistics_path(1)).read_bytes()
    manifest = plan.manifest.with_parts(
        sorted(layers), [kind for kind in plan.manifest.kinds if kind in kinds], ((1, 2),)
    )
    whole = RecordPiece("whole", record, tuple(arrays_of(manifest)))
    statistics = join_statistics([(whole, data)], manifest)
    made, text = join_record([whole], manifest, statistics)
    assert text != (plan.path / record_path(1)).read_bytes()
    return RecordPiece("part", made, tuple(arrays_of(manifest))), statistics


def joined(plan: Plan, pieces: list[tuple[RecordPiece, bytes]]) -> tuple[ShardRecord, bytes, bytes]:
    statistics = join_statistics(pieces, plan.manifest)
    record, text = join_record([piece for piece, _ in pieces], plan.manifest, statistics)
    return record, text, statistics


@given(st.sets(st.sampled_from(LAYERS), min_size=1, max_size=2), st.booleans())
def test_layers_parted_and_joined(written: Plan, layers: set[int], turned: bool) -> None:
    rest = set(LAYERS) - layers
    pieces = [part_of(written, some, set(KINDS)) for some in ((rest, layers) if turned else (layers, rest))]
    _, text, statistics = joined(written, pieces)
    assert text == (written.path / record_path(1)).read_bytes()
    assert statistics == (written.path / statistics_path(1)).read_bytes()


@given(st.sets(st.sampled_from(KINDS), min_size=1, max_size=2))
def test_kinds_parted_and_joined(written: Plan, kinds: set[str]) -> None:
    pieces = [part_of(written, set(LAYERS), some) for some in (kinds, set(KINDS) - kinds)]
    _, text, statistics = joined(written, pieces)
    assert text == (written.path / record_path(1)).read_bytes()
    assert statistics == (written.path / statistics_path(1)).read_bytes()


def test_statistics_of_another_shape_are_refused(written: Plan) -> None:
    record = open_store(written.path)._shards.record(1)
    piece = RecordPiece("there", record, (ArrayKey(0, "cls"),))
    for data in (b"", b"x" * 100, b"\xff" * 8 + b"{}"):
        with pytest.raises(CorruptStoreError, match="of there is not in the format of safetensors"):
            join_statistics([(piece, data)], written.manifest)
    lacking = RecordPiece("there", record, (ArrayKey(1, "cls"),))
    data = (written.path / statistics_path(1)).read_bytes()
    with pytest.raises(CorruptStoreError, match=r"layer_01.cls.count must be 1 of int64; it is missing"):
        join_statistics([(lacking, data)], written.manifest)


@pytest.mark.parametrize(
    ("part", "tensor", "message"),
    [
        ("sse", None, "sse must be 8 of float64; it is missing"),
        ("clipped", np.zeros(8), r"clipped must be 8 of int64; it is float64 of the shape \(8,\)"),
        ("sse", np.zeros(7), "sse must be 8 of float64"),
        ("count", np.array([-1]), "count must be at least 0; it is -1"),
    ],
)
def test_what_int8_cost_is_not_left_out_of_a_copy(
    make_plan: MakePlan, part: str, tensor: np.ndarray | None, message: str
) -> None:
    plan = make_plan(dtype="int8")
    plan.write([1])
    record, _ = read_record(Folder(plan.path), plan.manifest, 1) or pytest.fail("no record")
    tensors = load_file(plan.path / statistics_path(1))
    tensors.pop(f"layer_02.patches.{part}")
    if tensor is not None:
        tensors[f"layer_02.patches.{part}"] = tensor
    piece = RecordPiece("there", record, tuple(arrays_of(plan.manifest)))
    with pytest.raises(CorruptStoreError, match=message):
        join_statistics([(piece, save(tensors))], plan.manifest)
