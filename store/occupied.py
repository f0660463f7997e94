"""Whether a place may be published to: it is empty, or what is there is of the very same store.

What a place lists and the store to be published in; a refusal that says what is there, or nothing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from .differences import first_difference, spoken
from .errors import CorruptStoreError, NotAStoreError, StoreMismatchError
from .index import INDEX, read_index
from .publish_files import Published
from .root import PLANNING, ROOT, Root, read_root
from .storage import Folder, too_large
from .targets import Listed, Target

__all__ = ["refuse_others", "under_way"]

_REMEDY: Final = "choose another destination"


def refuse_others(target: Target, listing: Mapping[str, Listed], store: Published) -> bool:
    """Refuse a place that holds another store, or anything that is no part of this one.

    Two stores of one plan differ in nothing that is looked at when a store is opened, but in their digest:
    the index of a store that is there has it, and the marker of one that is on its way.

    Returns:
        Whether the index that is there, if any, is this store's byte by byte.

    Raises:
        StoreMismatchError: another store is there, or is being published there.
        NotAStoreError: something else is there.
    """
    marker = target.read_small(PLANNING) if PLANNING in listing else None
    is_same = True
    if ROOT in listing:
        found = target.read_small(ROOT)
        if found != store.root.to_bytes():
            raise _another_store(target, found, store.root)
        if INDEX not in listing and marker != store.marker:
            raise StoreMismatchError(
                f"{target.where} holds a store of the same plan without its {INDEX}, so that nobody can tell "
                f"whether it is this one; {_REMEDY}, or empty it"
            )
        is_same = INDEX not in listing or _is_index(target, listing[INDEX], store)
    if marker is not None and marker != store.marker:
        raise under_way(target)
    others = sorted(set(listing) - set(target.foreign))
    if ROOT not in listing and marker is None and others:
        raise NotAStoreError(
            f"{target.where} holds something else ({others[0]}, {len(others)} files); {_REMEDY}, or empty it"
        )
    return is_same


def under_way(target: Target) -> StoreMismatchError:
    """What to say of a place that somebody else publishes to."""
    return StoreMismatchError(
        f"another store is being published to {target.where}, or was and is not finished; {_REMEDY}, or "
        "empty it"
    )


def _is_index(target: Target, listed: Listed, store: Published) -> bool:
    """Whether the index there is the store's byte by byte; one of another digest is refused."""
    if listed.size == store.index.bytes and target.check(store.index):
        return True
    digest = _digest_there(target, listed, store.root)
    if digest != store.digest:
        raise StoreMismatchError(
            f"{target.where} holds another store of the same plan: its digest is {digest} there and "
            f"{store.digest} here; {_REMEDY}"
        )
    return False


def _digest_there(target: Target, listed: Listed, root: Root) -> str:
    """Digest of the store whose `zarr.json` is the same."""
    try:
        if listed.size > (most := root.manifest.max_table_bytes):
            raise too_large(INDEX, listed.size, most)
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / INDEX).write_bytes(target.read_small(INDEX) or b"")
            index = read_index(Folder(Path(folder)), root)
    except CorruptStoreError as exc:
        raise StoreMismatchError(
            f"{target.where} holds a store of the same plan whose {INDEX} is damaged, so that nobody can "
            f"tell whether it is this one; {_REMEDY}, or empty it"
        ) from exc
    assert index is not None
    return index.summary.digest


def _another_store(target: Target, found: bytes | None, root: Root) -> StoreMismatchError:
    """What to say of a place whose `zarr.json` is not this store's byte by byte."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / ROOT).write_bytes(found or b"")
            there = read_root(Folder(Path(folder)))
    except NotAStoreError:
        return StoreMismatchError(f"{target.where} holds something with a {ROOT} of its own; {_REMEDY}")
    except CorruptStoreError:
        there = root
    if there == root:  # what it says is the same, or cannot be believed
        return StoreMismatchError(
            f"{target.where} holds a damaged {ROOT} (its bytes are not what was written), so that nobody can "
            f"tell whether it is of this store; {_REMEDY}, or empty it"
        )
    difference = first_difference(there.manifest, root.manifest)
    if difference is not None:
        field, one, other = difference
        what = f"another store: {field} is {spoken(one)} there and {spoken(other)} here"
    elif there.samples != root.samples:
        what = "a store of other images"
    else:
        what = "a store with other files of the teacher"
    return StoreMismatchError(f"{target.where} holds {what}; {_REMEDY}")
