"""A bucket that is written to under conditions: created only where nothing is, replaced only what was seen.

Names relative to the store in; tags out, which tell one state of an object from another. An answer that was
lost is no answer: what is there is read back, and what is there byte by byte counts as written.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from .answers import access_remedy
from .errors import AccessDeniedError, ConfigError, StorageError, UnreachableError
from .remote import Remote, RemoteSettings

__all__ = ["MOST_BYTES", "PROBE", "Entry", "Objects"]

Result = TypeVar("Result")
MOST_BYTES: Final = 5 << 30
"""What S3 takes in one request: only that can have a condition."""
PROBE: Final = ".probe-"
"""Begins the names of objects that conditions are tried on."""
Data = bytes | mmap.mmap
_RIGHTS: Final = "s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket"


@dataclass(frozen=True)
class Entry:
    """An object as it is listed."""

    size: int
    tag: str
    """Another one when the object was written again with other bytes."""


class _RefusedError(Exception):
    """The condition does not hold, or did not when the answer of an earlier try was lost."""


class Objects(Remote):
    """`s3://bucket/prefix`, to be written by many at once; see `Remote`.

    Raises:
        ConfigError: it is no place in a bucket.
    """

    def __init__(self, url: str, settings: RemoteSettings | None = None) -> None:
        super().__init__(url, settings)
        if self._parts.scheme != "s3":
            raise ConfigError(
                f"a store is written to a folder or to s3://bucket/prefix; got {url}: nothing can be written "
                "there; write it here and copy or `activault publish` it"
            )
        if not self._parts.path.strip("/"):
            raise ConfigError(f"a store lies below a prefix of a bucket, s3://bucket/NAME.zarr; got {url}")
        self.strip_quotes = True
        """Whether a condition names the tag without its quotes; `check_conditions` finds out."""

    def entries(self, prefix: str = "") -> dict[str, Entry]:
        """Every object below a folder, or below the whole prefix, by its name."""
        import obstore

        def ask(client: Any) -> dict[str, Entry]:
            pages = obstore.list(client, prefix=prefix or None, chunk_size=1000)
            return {
                each["path"]: Entry(int(each["size"]), str(each.get("e_tag") or each["last_modified"]))
                for page in pages
                for each in page
            }

        return self._allowed(prefix, ask)

    def find(self, path: str) -> Entry | None:
        """One object; None if it is not there."""
        import obstore

        try:
            found = self._allowed(path, lambda client: obstore.head(client, path))
        except FileNotFoundError:
            return None
        return Entry(int(found["size"]), str(found.get("e_tag") or found["last_modified"]))

    def read_tagged(self, path: str) -> tuple[bytes, str] | None:
        """A small object and its tag, of one and the same moment; None if it is not there."""
        import obstore

        def ask(client: Any) -> tuple[bytes, str]:
            answer = obstore.get(client, path)
            return bytes(answer.bytes()), str(answer.meta.get("e_tag"))

        try:
            return self._allowed(path, ask)
        except FileNotFoundError:
            return None

    def create(self, path: str, data: Data) -> str | None:
        """Have `data` there where there is nothing; its tag, or None where something else is and stays."""
        return self._certain(path, data, None)

    def create_file(self, path: str, file: Path) -> str | None:
        """`create` from a file, which is not read into memory.

        Raises:
            ConfigError: it is more than one request can hold.
        """
        with _mapped(file) as data:
            return self.create(path, data)

    def replace(self, path: str, data: Data, tag: str) -> str | None:
        """Put `data` in the place of the object with this tag; None where it is not that one any more."""
        return self._certain(path, data, tag)

    def replace_file(self, path: str, file: Path, tag: str) -> str | None:
        """`replace` from a file."""
        with _mapped(file) as data:
            return self.replace(path, data, tag)

    def remove(self, path: str) -> None:
        """Remove an object, if it is there."""
        import obstore

        # Ceph answers 404 where another removes it at the same moment.
        with contextlib.suppress(FileNotFoundError):
            self._allowed(path, lambda client: obstore.delete(client, path))

    def check_conditions(self) -> None:
        """Try on a small object of its own whether this server heeds conditions.

        Raises:
            StorageError: it does not: two writers would own one shard, and replace one another's files.
        """
        probe = f"{PROBE}{uuid.uuid4().hex}"
        tag = self.create(probe, b"1")
        try:
            if tag is None or self.create(probe, b"2") is not None:
                raise self._careless("it replaced an object that was to be created")
            if self.replace(probe, b"3", '"00000000000000000000000000000000"') is not None:
                raise self._careless("it replaced an object that was not the one meant")
            # Ceph takes tags in If-Match without their quotes only, others as they were given.
            if self.replace(probe, b"4", tag) is None:
                self.strip_quotes = False
                if self.replace(probe, b"5", tag) is None:
                    raise self._careless("it does not replace the very object that was meant")
        finally:
            self.remove(probe)

    def _careless(self, what: str) -> StorageError:
        return StorageError(
            f"writers of a store in a bucket keep apart by conditional requests (If-None-Match, If-Match), "
            f"and the server of {self.where} does not do them ({what}); write the store on a disk and "
            "`activault publish` it"
        )

    def _certain(self, path: str, data: Data, tag: str | None) -> str | None:
        """Put under a condition until it is known whether it was done."""
        deadline, attempt = time.monotonic() + self.settings.retry_for_s, 0
        while True:
            try:
                return self._put(path, data, tag)
            except _RefusedError:
                found = self.find(path)
                return found.tag if found is not None and self._holds(path, found, data) else None
            except UnreachableError:
                attempt += 1
                if attempt > self.settings.num_retries or time.monotonic() > deadline:
                    raise
            wait = min(self.settings.first_wait_s * 2**attempt, self.settings.longest_wait_s)
            time.sleep(wait * random.uniform(0.5, 1.0))  # noqa: S311  (jitter)

    def _put(self, path: str, data: Data, tag: str | None) -> str:
        import obstore
        from obstore.exceptions import AlreadyExistsError, NotSupportedError, PreconditionError

        mode: Any = "create"
        if tag is not None:
            mode = {"e_tag": tag.strip('"') if self.strip_quotes else tag}

        def ask(client: Any) -> str:
            try:
                # In one request: one in parts cannot have a condition.
                done: Any = obstore.put(client, path, data, mode=mode, use_multipart=False)
            except (AlreadyExistsError, PreconditionError) as exc:
                raise _RefusedError from exc
            except (NotSupportedError, NotImplementedError) as exc:
                raise self._careless(f"it answered {str(exc)[:100]}") from exc
            except FileNotFoundError as exc:
                if tag is None or "NoSuchBucket" in str(exc):
                    raise
                raise _RefusedError from exc  # what was to be replaced is gone
            return str(done["e_tag"])

        return self._allowed(path, ask)

    def _holds(self, path: str, found: Entry, data: Data) -> bool:
        """Whether an object is `data`, byte by byte."""
        if found.size != len(data):
            return False
        if found.tag.strip('"') == hashlib.md5(data, usedforsecurity=False).hexdigest():
            return True
        # A tag need not be the MD5, as of buckets that are encrypted with keys of a service.
        start = 0
        try:
            for block in self.blocks(path):
                if data[start : start + len(block)] != block:
                    return False
                start += len(block)
        except FileNotFoundError:  # a lease that was removed by now
            return False
        return start == len(data)

    def _allowed(self, path: str, ask: Callable[[Any], Result]) -> Result:
        try:
            return self._tried(path, ask)
        except AccessDeniedError as exc:
            raise AccessDeniedError(
                f"{self.where}/{path} may not be written, read or listed ({_status(exc)}); "
                f"{access_remedy(self.where, _RIGHTS)}"
            ) from exc


def _status(exc: AccessDeniedError) -> str:
    """The refusal's status, out of its one line."""
    return str(exc).partition("(")[2].partition(")")[0] or "denied"


class _mapped:  # noqa: N801  (a context manager)
    """A file's bytes without reading them into memory."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._map: mmap.mmap | None = None

    def __enter__(self) -> Data:
        size = self._file.stat().st_size
        if size > MOST_BYTES:
            raise ConfigError(
                f"a file of a store in a bucket has at most {MOST_BYTES:,} bytes; {self._file.name} has "
                f"{size:,}; choose fewer rows a shard (--shard-rows)"
            )
        if size == 0:
            return b""
        with self._file.open("rb") as opened:
            self._map = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        return self._map

    def __exit__(self, *exception: object) -> None:
        """The map goes when nobody has it any more: a request may still hold it."""
        self._map = None
