"""A bucket that a store is published to, through obstore; see `targets.Target`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from .errors import AccessDeniedError
from .fetching import FileToFetch
from .remote import Remote
from .storage import gather
from .targets import Listed

__all__ = ["Bucket"]

Result = TypeVar("Result")
_PART_BYTES: Final = 16 << 20
"""Larger files go up in parts of this size; S3 takes 10,000 of them."""
_PARTS_AT_ONCE: Final = 4
_MOST_PARTS: Final = 10_000


class Bucket(Remote):
    """`s3://bucket/prefix`, to be written."""

    at_once = 64
    foreign: Sequence[str] = ()

    def make(self) -> None:
        """Buckets are made by their owners."""

    def listing(self) -> Mapping[str, Listed]:
        """Every object below the prefix, with its ETag where that is an MD5."""
        import obstore

        def ask(client: Any) -> dict[str, Listed]:
            pages = obstore.list(client, chunk_size=1000)
            return {entry["path"]: _listed(entry) for page in pages for entry in page}

        return self._tried("", ask)

    def read_small(self, path: str) -> bytes | None:
        """A small file; None if it is not there."""
        try:
            return self.read(path)
        except FileNotFoundError:
            return None

    def has(self, listed: Listed, file: FileToFetch) -> bool:
        """By size, and by MD5 where the ETag is one; objects are whole or not there."""
        if listed.size != file.bytes:
            return False
        if listed.hash is None:
            return True
        state = hashlib.md5(usedforsecurity=False)
        for block in file.storage.blocks(file.path):
            state.update(block)
        return state.hexdigest() == listed.hash

    def put(self, files: Sequence[FileToFetch], progress: Callable[[int], None]) -> None:
        """Upload files, several at once, large ones in parts."""

        def one(file: FileToFetch) -> None:
            self._put(file)
            progress(file.bytes)

        gather(self, one, files)

    def _put(self, file: FileToFetch) -> None:
        import obstore

        assert file.storage.folder is not None, "a store is published from a folder"
        source: Path = file.storage.folder / file.path
        part = max(_PART_BYTES, -(-file.bytes // _MOST_PARTS))

        def ask(client: Any) -> None:
            obstore.put(client, file.path, source, chunk_size=part, max_concurrency=_PARTS_AT_ONCE)

        self._written(file.path, ask)

    def create(self, path: str, data: bytes) -> bool:
        """Put a small file where there is none."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        def ask(client: Any) -> bool:
            try:
                obstore.put(client, path, data, mode="create")
            except AlreadyExistsError:
                return False
            return True

        # If the answer to a put that did it got lost, the next try finds the file: whoever asks compares it.
        return self._written(path, ask)

    def remove(self, path: str) -> None:
        """Remove a small file."""
        import obstore

        self._written(path, lambda client: obstore.delete(client, path))

    def _written(self, path: str, ask: Callable[[Any], Result]) -> Result:
        try:
            return self._tried(path, ask)
        except AccessDeniedError as exc:
            raise AccessDeniedError(
                f"{self.where} may not be written ({path}); check the credentials, and that they allow "
                "s3:PutObject, s3:DeleteObject and s3:ListBucket there"
            ) from exc

    def check(self, file: FileToFetch) -> bool:
        """Read a file back and hold it against its hash."""
        return file.is_sound(self)


def _listed(entry: Any) -> Listed:
    tag = (entry.get("e_tag") or "").strip('"')
    is_md5 = len(tag) == 32 and all(letter in "0123456789abcdef" for letter in tag)
    return Listed(int(entry["size"]), tag if is_md5 else None)
