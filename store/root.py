"""`zarr.json` of a store: the manifest, and the plan that binds the files planned beside it.

A folder in, a checked `Root` out; and the other way round.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import Field, ValidationError

from .codecs import array_metadata, group_metadata
from .errors import CorruptStoreError, NotAStoreError, StoreError, StoreMismatchError
from .files import canonical_json, parse_json, pretty_json, xxh3
from .manifest import FORMAT_VERSION, Manifest
from .models import Model
from .records import ArrayKey, Named, array_folder
from .remedies import AGAIN, COPY
from .storage import Storage

__all__ = [
    "GROWING",
    "JOINING",
    "PLANNING",
    "ROOT",
    "Root",
    "TeacherFile",
    "check_array",
    "is_teacher_name",
    "make_root",
    "read_root",
    "refuse_grown",
]

ROOT: Final = "zarr.json"
_MAX_NAME_BYTES: Final = 200
"""Of the teacher's files; file systems take 255, and a temporary name is longer."""
PLANNING: Final = ".planning"
"""Marks a folder that was being planned; see `create_store`."""
GROWING: Final = ".growing"
"""Folder in a finished store with rows, layers or kinds that are being added to it; see `growing.py`."""
JOINING: Final = ".joining"
"""The same folder while its files are renamed into the store."""


class TeacherFile(Model):
    """One of the teacher's files."""

    bytes: int = Field(ge=0)
    sha256: str


class _Plan(Model):
    samples: str
    teacher: dict[str, TeacherFile]
    checksum: str


@dataclass(frozen=True)
class Root:
    """What a store's own `zarr.json` says."""

    manifest: Manifest
    samples: str
    """Content hash of the planned samples."""
    teacher: Mapping[str, TeacherFile]
    """The teacher's files by path relative to the store: `teacher/config.json`."""

    def _body(self) -> dict[str, Any]:
        return {
            "manifest": self.manifest.model_dump(mode="json"),
            "samples": self.samples,
            "teacher": {path: file.model_dump() for path, file in self.teacher.items()},
        }

    @property
    def checksum(self) -> str:
        """xxh3 of all that it says."""
        return xxh3(canonical_json(self._body()))

    def to_bytes(self) -> bytes:
        """The file's bytes."""
        body = self._body()
        manifest = body.pop("manifest")
        attributes = {"activault": manifest, "activault_plan": body | {"checksum": self.checksum}}
        return pretty_json(group_metadata(attributes))

    def digest(self, records: Iterable[Named]) -> str:
        """Name of the content: over the manifest, the samples, the teacher and the records' checksums."""
        value = {
            "manifest": self.manifest.sha256(),
            "samples": self.samples,
            "teacher": {path: file.sha256 for path, file in self.teacher.items()},
            "records": sorted([record.shard, record.checksum] for record in records),
        }
        return hashlib.sha256(canonical_json(value)).hexdigest()


def is_teacher_name(name: str) -> bool:
    """Whether a file below `teacher/` may be called so: no way out of the folder, no leftover."""
    lasts = name and name[0] != "." and not name.endswith((".tmp", ".partial"))
    plain = name.isprintable() and not {"/", "\\"} & set(name)  # a lone surrogate is not printable either
    return bool(lasts and plain) and len(name.encode()) <= _MAX_NAME_BYTES


def make_root(manifest: Manifest, samples: str, teacher: Mapping[str, TeacherFile]) -> Root:
    """A root of these parts."""
    return Root(manifest, samples, dict(sorted(teacher.items())))


def read_root(storage: Storage) -> Root:
    """The root of the store that lies there.

    Raises:
        NotAStoreError: there is nothing, or something that is no activation store of format 1.
        CorruptStoreError: it is a store whose `zarr.json` was altered.
        StorageError: the place cannot be read.
    """
    try:
        text = storage.read(ROOT)
    except FileNotFoundError as exc:
        raise _not_a_store(storage) from exc
    value = parse_json(text, f"{storage.name}/{ROOT}")
    attributes = value.get("attributes") if isinstance(value, dict) else None
    if not isinstance(attributes, dict) or not isinstance(attributes.get("activault"), dict):
        raise NotAStoreError(
            f"{storage.where} is a Zarr hierarchy without activations (attributes.activault is missing)"
        )
    found = attributes["activault"].get("format")
    if found != FORMAT_VERSION:
        raise NotAStoreError(
            f"{storage.where} is of format {str(found)[:40]}; this activault reads format {FORMAT_VERSION}; "
            "use the activault that wrote it"
        )
    return _checked(attributes)


def refuse_grown(storage: Storage, manifest: Manifest) -> None:
    """Tell a store to which something was added since it was opened from one that is damaged.

    Raises:
        StoreMismatchError: its manifest is another one now, or is just being replaced.
    """
    try:
        now = read_root(storage).manifest
    except NotAStoreError:
        is_joining = JOINING in (storage.names("") or ())
    except StoreError:
        return
    else:
        is_joining = now != manifest
    if is_joining:
        raise StoreMismatchError(
            f"{storage.where} is another store than the one that was opened: rows, layers or tokens were "
            "added to it since; open it again"
        )


def check_array(storage: Storage, manifest: Manifest, array: ArrayKey) -> None:
    """Hold an array's own `zarr.json` against the manifest, which alone is read by.

    Raises:
        CorruptStoreError: it is missing, or says something else.
    """
    name = f"{array_folder(array.layer, array.kind)}/{ROOT}"
    try:
        found = parse_json(storage.read(name), name)
    except FileNotFoundError as exc:
        raise CorruptStoreError(f"{name} is missing; {COPY}") from exc
    expected = array_metadata(manifest, array.kind)
    for field in sorted(expected.keys() | (found.keys() if isinstance(found, dict) else set())):
        value = found.get(field) if isinstance(found, dict) else None
        if value != expected.get(field):
            raise CorruptStoreError(
                f"{name}: {field} must be {expected.get(field)!r} by the manifest; got {str(value)[:200]}; "
                f"{COPY}"
            )


def _not_a_store(storage: Storage) -> NotAStoreError:
    where = storage.where
    names = storage.names("") or ()
    if PLANNING in names:
        return NotAStoreError(
            f"{where} is being planned, or its planning was interrupted; if nobody is at it, {AGAIN}"
        )
    if JOINING in names:
        return NotAStoreError(
            f"{where} is being joined with what was added to it, which takes moments, or that was cut short; "
            "if nobody is at it, run the same `activault extract ... --append` or `--extend` again, which "
            "finishes it"
        )
    if storage.folder is not None and not storage.folder.exists():
        return NotAStoreError(
            f"{where} does not exist; `activault extract IMAGES {storage.name}` makes a store"
        )
    if storage.folder is None:
        return NotAStoreError(
            f"{where} is not an activation store, or its planning is not finished (there is no "
            f"{where}/{ROOT}); check the URL"
        )
    return NotAStoreError(f"{where} is not an activation store (no {ROOT} in it); choose another place")


def _checked(attributes: dict[str, Any]) -> Root:
    try:
        manifest = Manifest.model_validate(attributes["activault"])
        plan = _Plan.model_validate(attributes.get("activault_plan"))
    except ValidationError as exc:
        first = exc.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "manifest"
        raise CorruptStoreError(f"{ROOT}: {where}: {first['msg']}; {COPY}") from exc
    for name in plan.teacher:
        folder, _, file = name.partition("/")
        if folder != "teacher" or not is_teacher_name(file):
            raise CorruptStoreError(
                f"{ROOT}: teacher files are teacher/NAME; got {name!r}; do not use this store"
            )
    body = {"manifest": attributes["activault"], "samples": plan.samples}
    body["teacher"] = attributes["activault_plan"]["teacher"]
    # What pydantic would take for the same value, "1" or true for 1 say, is not what a writer wrote.
    root = make_root(manifest, plan.samples, plan.teacher)
    if xxh3(canonical_json(body)) != plan.checksum or root.checksum != plan.checksum:
        raise CorruptStoreError(f"{ROOT} is not what was written (its checksum disagrees); {COPY}")
    return root
