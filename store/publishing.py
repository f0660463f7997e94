"""`publish`: a complete store onto S3 or the Hugging Face hub, so that others read or pull it by its URL.

A store in a folder in; its files under a URL out, `zarr.json` last, so that nobody takes a half-published
store for one.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .completion import SAMPLES
from .copying import Progress
from .errors import ConfigError, CorruptStoreError, StorageError
from .fetching import FileToFetch
from .index import INDEX
from .occupied import refuse_others, under_way
from .publish_files import LAST, published_files
from .root import PLANNING, ROOT
from .targets import Target

__all__ = ["Publication", "plan_publish", "publish"]


@dataclass(frozen=True)
class Publication:
    """A publication that is planned."""

    files: Sequence[FileToFetch]
    there: Sequence[FileToFetch]
    """Those of them that are there already."""
    target: Target
    root: bytes
    """The store's own `zarr.json`."""
    marker: bytes
    """What marks the place until that is there: the digest, since two stores may have one `zarr.json`."""

    @property
    def num_files(self) -> int:
        """All files."""
        return len(self.files)

    @property
    def num_bytes(self) -> int:
        """Their bytes."""
        return sum(file.bytes for file in self.files)

    @property
    def bytes_there(self) -> int:
        """Bytes of those that are there already."""
        return sum(file.bytes for file in self.there)

    def run(self, *, deep: bool = False, progress: Progress | None = None) -> None:
        """Upload what is missing and look at what arrived; see `publish`."""
        target, count = self.target, _Count(self, progress)
        there = {file.path for file in self.there}
        missing = [file for file in self.files if file.path not in there]
        target.make()
        if missing:
            self._mark(has_root=ROOT in there)
        early = [file for file in missing if file.path not in LAST]
        for start in range(0, len(early), target.at_once):
            batch = early[start : start + target.at_once]
            _refuse_damaged(batch)
            target.put(batch, count)
        target.put([file for file in missing if file.path in LAST and file.path != ROOT], count)
        if ROOT not in there:
            if not target.create(ROOT, self.root) and target.read_small(ROOT) != self.root:
                raise under_way(target)
            count(len(self.root))
        self._check(deep=deep)
        target.remove(PLANNING)

    def _mark(self, *, has_root: bool) -> None:
        """Take the place; whoever finished there since it was looked at keeps it."""
        if not self.target.create(PLANNING, self.marker):
            if self.target.read_small(PLANNING) != self.marker:
                raise under_way(self.target)
        elif not has_root and self.target.read_small(ROOT) is not None:
            self.target.remove(PLANNING)
            raise under_way(self.target)

    def _check(self, *, deep: bool) -> None:
        """Look at what arrived: names and sizes of all files; with `deep`, every byte."""
        listing = self.target.listing()
        for file in self.files:
            found = listing.get(file.path)
            if found is None or found.size != file.bytes:
                size = "no such file" if found is None else f"{found.size} bytes"
                raise StorageError(
                    f"{file.path} must have {file.bytes} bytes in {self.target.where}; there is {size}; "
                    "publish again"
                )
            if (deep or file.path in LAST) and not self.target.check(file):
                raise StorageError(
                    f"{file.path} in {self.target.where} is not what was uploaded (its hash disagrees); "
                    "remove it there and publish again"
                )


class _Count:
    """Bytes that are there, told from any thread."""

    def __init__(self, plan: Publication, progress: Progress | None) -> None:
        self._done = plan.bytes_there
        self._all = plan.num_bytes
        self._progress = progress
        self._lock = threading.Lock()
        self(0)

    def __call__(self, size: int) -> None:
        with self._lock:
            self._done += size
            if self._progress is not None:
                self._progress(self._done, self._all)


def publish(
    store: Path | str,
    destination: str | Target,
    *,
    license: str | None = None,
    deep: bool = False,
    progress: Progress | None = None,
) -> None:
    """Put a complete store where others can read it; run it again and it goes on where it stopped.

    Args:
        store: a complete store on this machine.
        destination: `s3://bucket/prefix`, `hf://datasets/OWNER/NAME[/path]` or
            `hf://buckets/OWNER/NAME[/path]`.
        license: names the licence on a data set's page in place of the store's own.
        deep: read everything back and hold it against its hash.
        progress: told `(bytes done, bytes in all)`.

    Raises:
        ConfigError: the destination is none of these.
        MissingExtraError: the hub is meant and `huggingface_hub` is not installed.
        IncompleteStoreError: the store is not finished.
        StoreMismatchError: another store is there, if only by its digest; the first difference is named.
        NotAStoreError: something else is there.
        CorruptStoreError: a file of the store is not what was written; it is not uploaded.
        StorageError: the place cannot be written, or does not answer.
    """
    plan_publish(store, destination, license=license).run(deep=deep, progress=progress)


def plan_publish(store: Path | str, destination: str | Target, *, license: str | None = None) -> Publication:
    """What `publish` would upload; raises as it does of the store and of what is there."""
    path = Path(store)
    found = published_files(path)
    target = _open_target(destination, path, license) if isinstance(destination, str) else destination
    listing = target.listing()
    is_same = refuse_others(target, listing, found)
    # Another program's tables of the same store: of their size alone a place could not tell them from ours.
    known = set(listing) if is_same else set(listing) - {INDEX, SAMPLES}
    there = [file for file in found.files if file.path in known and target.has(listing[file.path], file)]
    return Publication(found.files, there, target, found.root.to_bytes(), found.marker)


def _open_target(destination: str, path: Path, license: str | None) -> Target:
    # Imported here because neither is needed for anything else.
    scheme, _, rest = destination.partition("://")
    if scheme == "s3":
        from .bucket import Bucket

        if license is not None:
            raise ConfigError(
                "a licence is named on the page of a data set, and a bucket has none; leave it out"
            )
        return Bucket(destination)
    if scheme == "hf":
        from .hub import open_hub

        return open_hub(rest, path, license)
    raise ConfigError(
        "a store is published to s3://bucket/prefix, hf://datasets/OWNER/NAME or hf://buckets/OWNER/NAME; "
        f"got {destination}; into a folder, `activault pull` copies"
    )


def _refuse_damaged(files: Sequence[FileToFetch]) -> None:
    for file in files:
        if not file.is_sound():
            raise CorruptStoreError(
                f"{file.path} of {file.storage.where} is not what was written; it is not published: "
                f"`activault verify {file.storage.where} --deep` lists what is wrong"
            )
