"""Whether a place may be published to: it is empty, or what is there is of the very same store.

What a place lists and the store to be published in; a refusal that says what is there, or nothing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from .differences import first_difference, spoken
from .errors import CorruptStoreError, NotAStoreError, StoreMismatchError
from .files import parse_json
from .index import INDEX, read_index
from .manifest import Manifest
from .publish_files import Published
from .root import PLANNING, ROOT, Root
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
            f"{target.where} holds a store of the same plan whose {INDEX} cannot be read ({exc}), so that "
            f"nobody can tell whether it is this one; {_REMEDY}, or empty it"
        ) from exc
    assert index is not None
    return index.summary.digest


def _another_store(target: Target, found: bytes | None, root: Root) -> StoreMismatchError:
    try:
        value = parse_json(found or b"", ROOT)
        difference = first_difference(
            Manifest.model_validate(value["attributes"]["activault"]), root.manifest
        )
    except (CorruptStoreError, ValidationError, KeyError, TypeError):
        return StoreMismatchError(f"{target.where} holds something with a {ROOT} of its own; {_REMEDY}")
    if difference is None:
        return StoreMismatchError(f"{target.where} holds a store of other images; {_REMEDY}")
    field, there, here = difference
    return StoreMismatchError(
        f"{target.where} holds another store: {field} is {spoken(there)} there and {spoken(here)} here; "
        f"{_REMEDY}"
    )
