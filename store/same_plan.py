"""Whether the store that is there was planned from the same request: its manifest, and its images.

A place with its root, a manifest and a sample table in; nothing, or a refusal that names the first
difference, out.
"""

from __future__ import annotations

from typing import Any

from .arrow import pa, pc
from .differences import first_difference, spoken
from .errors import StoreMismatchError
from .manifest import Manifest
from .presence import nothing_finished
from .root import Root
from .sample_tables import read_samples
from .samples import content_hash
from .storage import Storage

__all__ = ["refuse_other_plan"]


def refuse_other_plan(
    storage: Storage, root: Root, manifest: Manifest, samples: pa.Table, remedy: str
) -> None:
    """Refuse a store of another plan.

    Raises:
        StoreMismatchError: it is of one; the first difference is named.
    """
    difference = first_difference(root.manifest, manifest)
    same_samples = root.samples == content_hash(samples)
    if difference is not None or not same_samples:
        remedy += nothing_finished(storage, root.manifest)
    if difference is not None:
        field, there, asked = difference
        raise StoreMismatchError(
            f"{storage.where} was planned differently: {field} is {spoken(there)} there and {spoken(asked)} "
            f"here; {remedy}"
        )
    if same_samples:
        return
    planned, _ = read_samples(storage, manifest)
    for name in ("key", "label", "source"):
        row = _first_other(planned[name], samples[name])
        if row is not None:
            old, new = planned[name][row].as_py(), samples[name][row].as_py()
            raise StoreMismatchError(
                f"{storage.where} was planned from other images: the {name} of row {row} is {old!r} there "
                f"and {new!r} here; {remedy}"
            )
    raise StoreMismatchError(f"{storage.where} was planned from other images; {remedy}")


def _first_other(ours: Any, theirs: Any) -> int | None:
    """The first row in which two columns of strings differ, where null equals null alone."""
    alike = pc.or_(pc.and_(pc.is_null(ours), pc.is_null(theirs)), pc.fill_null(pc.equal(ours, theirs), False))
    row = pc.index(alike, False).as_py()
    return None if row < 0 else int(row)
