"""What a store that is being grown has beside it: names, what they mean, and what to say of them.

A finished store grows by rows after its last one, or by layers or token kinds of the same rows. What is new
is written as a store of its own in the hidden folder `.growing`: the part that the grown store has and the
old one has not. When all of it is there, and all metadata of the grown store beside it, the folder is renamed
to `.joining`: from then on the store is the grown one, whoever carries out the renames that are left.

    .growing/zarr.json, layer_*, shards ...   the new part, a partial copy of the grown store, under way
    .growing/joined/                          the grown store's metadata, while they are gathered
    .joining/                                 the same folder, when nothing but renames is left to do
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from .errors import StoreError
from .findings import Fault
from .locks import LOCK, nobody_at_work
from .manifest import Manifest
from .mark_files import owner_of
from .marks import owned_shards
from .presence import shards_named
from .records import record_path
from .remedies import COPY
from .root import GROWING, JOINING, ROOT, Root, read_root
from .storage import Folder, Storage

__all__ = [
    "APPENDED",
    "GROWING",
    "JOINED",
    "JOINING",
    "growing_root",
    "note_of_growth",
    "only_by_copy",
    "refuse_link",
    "way_out",
]

APPENDED: Final = "appended"
"""Among a manifest's `details`: which rows came later, and from where."""
JOINED: Final = "joined"
"""Folder within `.growing`: what the grown store has in its own folder, but for arrays."""
_UNKNOWN: Final = "another process"
_BY_REQUEST: Final = ("extract", "rebuild", "delete")
"""What `extract --repair` carries out."""
_GO_ON: Final = "run the same `activault extract ... --append` or `--extend` again, which finishes it"


def growing_root(store: Path) -> Root | None:
    """The root of what is being written; None where nothing is planned.

    Raises:
        CorruptStoreError: its `zarr.json` was altered.
        StoreError: a link is in its place.
    """
    folder = store / GROWING
    refuse_link(folder)
    return read_root(Folder(folder)) if (folder / ROOT).exists() else None


def refuse_link(folder: Path) -> None:
    """Refuse to work in a folder that is a link: its files are renamed and removed, and these are another's.

    Raises:
        StoreError: it is one.
    """
    if folder.is_symlink():
        raise StoreError(
            f"{folder} is a link, and what a store gets lies in the store; remove the link, then add it again"
        )


def way_out(store: Path) -> str:
    """What to do about an addition that is in the way: wait for who is at it, or finish it, or drop it."""
    folder = store / GROWING
    if nobody_at_work(folder):
        return f"finish that by its own command first, or remove {folder} to drop it"
    named = {owner_of(folder, shard) for shard in owned_shards(folder)} - {_UNKNOWN}
    who = min(named, default=f"{_UNKNOWN} (`fuser {folder / LOCK}` tells which)")
    return f"{who} is at work on it now; wait until that is done"


def only_by_copy(manifest: Manifest, faults: Iterable[Fault]) -> list[Fault]:
    """The faults of a store; those that a request would mend need a copy where rows came to it later.

    No single request has the rows of such a store in their order, so that `extract --repair` refuses it.
    """
    later = dict(manifest.details).get(APPENDED)
    if later is None:
        return list(faults)
    return [
        dataclasses.replace(
            fault,
            remedy="copy",
            detail=f"{fault.detail.partition('; ')[0]}; {COPY}: rows came to it later ({later}), so that no "
            "request makes it again",
        )
        if fault.remedy in _BY_REQUEST
        else fault
        for fault in faults
    ]


def note_of_growth(storage: Storage) -> tuple[str, str] | None:
    """Name and a line for people about what is under way in a store; None where nothing is.

    Raises:
        CorruptStoreError: the growing part was altered.
    """
    if storage.folder is None:
        return None
    if (storage.folder / JOINING).exists():
        return JOINING, "new data are being joined to the store, or that was cut short; " + _GO_ON
    root = growing_root(storage.folder)
    if root is None:
        return None
    names = Folder(storage.folder / GROWING).names("shards") or []
    done, total = len(shards_named(names, record_path, root.manifest)), len(root.manifest.held_shards)
    what = f"layers {', '.join(map(str, root.manifest.layers))} ({', '.join(root.manifest.kinds)})"
    rows = f"rows up to {root.manifest.num_rows - 1}"
    return GROWING, (
        f"{rows}, {what} are being added: {done} of {total} shards are there, and nobody reads them yet; "
        + way_out(storage.folder)
    )
