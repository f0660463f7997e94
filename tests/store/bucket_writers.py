"""Writers of one store in a bucket in memory, each with values of its own; killed at any request.

Every writer computes other values, as machines of different kinds do: whatever one puts in the place of
another's, or takes for another's, shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from memory_objects import Bucket, MemoryObjects, dump

from activault.store import verify_store
from activault.store.creation import write_teacher_files
from activault.store.object_leases import Leases
from activault.store.object_planning import plan_objects
from activault.store.object_writer import ObjectWriter
from activault.store.scratch import Scratch

from .conftest import Plan, make_manifest, write_teacher


class Killed(BaseException):
    """The writer is gone without a word."""


def small(tmp_path: Path, scale: float = 1.0, **changes: object) -> Plan:
    """A store of one shard of three arrays, of values times `scale`."""
    fields = {"num_rows": 6, "layers": (2,), "shard_rows": 8, "chunk_rows": 4} | changes
    plan = Plan(tmp_path / "local.zarr", make_manifest(**fields), frozenset((1,)))
    plan.values = plan.values * np.float32(scale)
    return plan


def opened(plan: Plan, bucket: Bucket, at_put: Callable[[str], object] = lambda path: None) -> ObjectWriter:
    """A writer for whom a lease that does not change is over at once."""
    objects = MemoryObjects(bucket, at_put)
    leases, scratch = Leases(objects, 500.0, clock=count(step=1000).__next__), Scratch()

    def teacher(folder: Path) -> object:
        return write_teacher_files(folder, write_teacher)

    folder = scratch.folder("plan")
    root = plan_objects(objects, leases, plan.manifest, plan.samples, teacher, folder)  # type: ignore[arg-type]
    writer = ObjectWriter(objects, root, plan.samples, leases, scratch)
    writer._uploads = objects
    return writer


@contextmanager
def killed_at(writer: ObjectWriter) -> Iterator[None]:
    """What is left of a writer that dies: no lease is given up."""
    writer._leases.give_up = lambda path: None  # type: ignore[method-assign]
    with pytest.raises(Killed):
        yield
    writer._scratch.close()


def finish(plan: Plan, bucket: Bucket, at_put: Callable[[str], object] = lambda path: None) -> None:
    with opened(plan, bucket, at_put) as writer:
        for shard in writer.unfinished:
            assert writer.claim(shard)
            plan.publish(writer, shard)  # type: ignore[arg-type]
        writer.complete()


def at_step(step: int, what: Callable[[], object]) -> Callable[[str], object]:
    """Do `what` before the put of that number."""
    left = [step]

    def at_put(path: str) -> None:
        left[0] -= 1
        if left[0] == 0:
            what()

    return at_put


def kill() -> None:
    raise Killed


def assert_sound(bucket: Bucket, folder: Path) -> None:
    report = verify_store(dump(bucket, folder), values=True, complete=True)
    assert report.faults == ()
    assert report.notes == ()
    assert not [path for path in bucket if path.rpartition("/")[2].startswith(".")]
