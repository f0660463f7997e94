"""Verification of what is planned: every `zarr.json`, the teacher's files, and names that no store has.

A place and its root in; findings out.
"""

from __future__ import annotations

import re
from typing import Final

from .card import CARD
from .completion import SAMPLES
from .errors import StoreError
from .findings import READABLE, Findings, Remedy
from .index import INDEX
from .layout import layer_name
from .manifest import Manifest
from .metadata import planned_metadata
from .records import SHARD_DIGITS, array_folder, arrays_of, record_path, statistics_path
from .remedies import COPY
from .root import ROOT, Root
from .storage import Storage, gather

__all__ = ["check_metadata", "check_strangers", "check_teacher"]

_REBUILD: Final = (
    "`activault extract ... --repair`, and of an imported store the same `activault import`, makes it again "
    f"from the manifest; or {COPY}"
)
_SHARD_FILE: Final = re.compile(r"(\d+)\.(json|stats\.safetensors)")


def check_metadata(storage: Storage, root: Root, findings: Findings) -> None:
    """Every `zarr.json`, byte by byte."""

    def differs(planned: tuple[str, bytes]) -> str | StoreError | None:
        path, expected = planned
        try:
            return None if storage.read(path) == expected else "it differs"
        except FileNotFoundError:
            return "it is missing"
        except StoreError as exc:
            return exc

    planned = planned_metadata(root.manifest)
    asked = [(ROOT, root.to_bytes()), *planned.items()]
    for (path, _), found in zip(asked, gather(storage, differs, asked), strict=True):
        remedy: Remedy = "rebuild" if path in planned else "copy"
        if isinstance(found, StoreError):
            findings.unreadable(path, found, remedy)
        elif found is not None:
            rule = "must be there and what the manifest implies"
            findings.fault(path, rule, f"{found}; {_REBUILD if path in planned else COPY}", remedy)
    names = storage.names("") if storage.folder is not None else None
    if names is not None and "shards" not in names:  # object stores have no folders that are empty
        findings.fault(
            "shards", "must be there from planning on", "it is missing, and with it every record", "rebuild"
        )


def check_teacher(storage: Storage, root: Root, findings: Findings) -> None:
    """Presence and size of the teacher's files."""
    for path, file in root.teacher.items():
        rule = f"must have {file.bytes} bytes"
        try:
            size = storage.size(path)
        except FileNotFoundError:
            findings.fault(path, rule, f"it is missing; {COPY}", "copy")
            continue
        except StoreError as exc:
            findings.unreadable(path, exc, "copy")
            continue
        if size != file.bytes:
            findings.fault(path, rule, f"it has {size}; {COPY}", "copy")


def check_strangers(storage: Storage, root: Root, findings: Findings) -> None:
    """Names that a store does not have: notes, since nothing reads them; a record of no shard is a fault."""
    manifest = root.manifest
    layers = {layer_name(layer) for layer in manifest.layers}
    known = {ROOT, SAMPLES, INDEX, CARD, "shards", "teacher"} | layers
    _note_others(storage, "", known, findings)
    _note_others(storage, "teacher", {path.partition("/")[2] for path in root.teacher}, findings)
    for layer in layers:
        _note_others(storage, layer, {ROOT, *manifest.kinds}, findings)
    for array in arrays_of(manifest):
        folder = array_folder(array.layer, array.kind)
        _note_others(storage, folder, {ROOT, "c"}, findings)
        for name in _listed(storage, f"{folder}/c", findings):
            number = int(name) if re.fullmatch(rf"\d{{1,{SHARD_DIGITS}}}", name) else -1
            if not manifest.holds(number) or str(number) != name:
                findings.note(f"{folder}/c/{name}", "is of no shard of this store; nothing reads it")
    _check_shard_names(storage, manifest, findings)


def _listed(storage: Storage, folder: str, findings: Findings) -> list[str]:
    """Names in a folder without leftovers; none where nothing can be listed."""
    try:
        names = storage.names(folder)
    except StoreError as exc:
        findings.fault(folder or "store", READABLE, f"it cannot be listed: {exc}", "reach")
        return []
    leftovers = (".tmp", ".partial")
    return [name for name in names or () if not name.startswith(".") and not name.endswith(leftovers)]


def _note_others(storage: Storage, folder: str, known: set[str], findings: Findings) -> None:
    for name in _listed(storage, folder, findings):
        if name not in known:
            findings.note(f"{folder}/{name}" if folder else name, "is no part of a store; nothing reads it")


def _check_shard_names(storage: Storage, manifest: Manifest, findings: Findings) -> None:
    for name in _listed(storage, "shards", findings):
        match, path = _SHARD_FILE.fullmatch(name), f"shards/{name}"
        number = int(match[1]) if match is not None and len(match[1]) <= SHARD_DIGITS else -1
        if manifest.holds(number) and path in (record_path(number), statistics_path(number)):
            continue
        if name.endswith(".json"):
            findings.fault(
                path,
                "must be of a shard of this store",
                "there is no such shard; delete the file",
                "delete",
            )
        else:
            findings.note(path, "is no part of a store; nothing reads it")
