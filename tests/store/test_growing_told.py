"""What is said of an addition that somebody is at, or nobody, and of what only a copy mends."""

from __future__ import annotations

import os

import pytest

from activault.store import create_store, open_store, verify_store
from activault.store.findings import Fault
from activault.store.growing import APPENDED, GROWING, only_by_copy, way_out
from activault.store.parts import part_samples

from .conftest import MakePlan
from .grown import more_rows, write_part


def test_what_a_living_process_writes_is_not_to_be_removed(make_plan: MakePlan) -> None:
    few, whole = make_plan("few.zarr", num_rows=16), make_plan("whole.zarr", num_rows=40)
    few.write()
    write_part(few.path, whole, range(2, 3))
    free = f"finish that by its own command first, or remove {few.path / GROWING} to drop it"
    part, samples = more_rows(open_store(few.path), whole)
    with create_store(few.path / GROWING, part, part_samples(samples, part), {}) as writer:
        assert way_out(few.path).startswith("another process (`fuser ")
        assert writer.claim(1)
        at_it = way_out(few.path)
        [note] = verify_store(few.path).notes
    assert at_it.startswith(f"process {os.getpid()} on ")
    assert at_it.endswith("is at work on it now; wait until that is done")
    assert "remove" not in at_it
    assert note.text.endswith("1 of 2 shards are there, and nobody reads them yet; " + at_it)
    assert way_out(few.path) == free
    assert verify_store(few.path).notes[0].text.endswith(free)


@pytest.mark.parametrize("remedy", ["extract", "rebuild", "delete"])
def test_what_no_request_mends(make_plan: MakePlan, remedy: str) -> None:
    manifest = make_plan("few.zarr", num_rows=16).manifest
    faults = [Fault("a", "must be there", "it is missing; do this", remedy, 1)]  # type: ignore[arg-type]
    assert only_by_copy(manifest, faults) == faults
    later = manifest.model_copy(update={"details": {APPENDED: "8-15 more"}})
    [fault] = only_by_copy(later, faults)
    assert (fault.remedy, fault.shard) == ("copy", 1)
    assert fault.detail == (
        "it is missing; restore it from a copy of the store: rows came to it later (8-15 more), so that no "
        "request makes it again"
    )
    finish = [Fault("store", "must be complete", "it is not", "finish")]
    assert only_by_copy(later, finish) == finish
