"""A store behind a URL: on any static web server, or in a bucket that speaks S3.

`http(s)://host/path/NAME.zarr` or `s3://bucket/prefix/NAME.zarr` in, ranges of files out, through obstore. A
request that fails for a passing reason (dropped connection, time-out, 429, 5xx, a body cut short) is tried
again with back-off and jitter; what then still fails is told apart by what has to be done about it.
"""

from __future__ import annotations

import os
import random
import re
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from .answers import BeyondEndError, ShortBodyError, body_of, ignores_ranges, may_pass, translated
from .aws import s3_options
from .errors import AccessDeniedError, ConfigError, CorruptStoreError, StorageError
from .remote_settings import DEFAULTS, RemoteSettings
from .storage import MAX_JSON_BYTES, OpenFile, another_size, gather, too_large

if TYPE_CHECKING:
    from obstore.store import HTTPStore, S3Store

__all__ = ["DEFAULTS", "Remote", "RemoteSettings"]

Result = TypeVar("Result")
_BLOCK_BYTES: Final = 8 << 20
"""Most bytes of a request that is not for one inner chunk."""
_started_in: int | None = None
"""The process whose obstore threads are running; they do not survive a fork."""


class Remote:
    """Files below a URL; see `Storage`.

    Args:
        url: `http://`, `https://` or `s3://`.
        settings: time-outs and retries; `DEFAULTS` if None.

    Raises:
        ConfigError: the URL has no host or bucket, or has parts that would be lost or shown to others.
    """

    folder: Path | None = None

    def __init__(self, url: str, settings: RemoteSettings | None = None) -> None:
        parts = _checked_url(url)
        self.where = url.rstrip("/")
        self.name = urllib.parse.unquote(parts.path).rstrip("/").rpartition("/")[2] or parts.netloc
        self.settings = settings or DEFAULTS
        self._parts = parts
        self._client: HTTPStore | S3Store | None = None
        self._gives_whole = False
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(self.settings.num_requests)

    def __reduce__(self) -> tuple[Any, ...]:
        return Remote, (self.where, self.settings)

    def __repr__(self) -> str:
        return f"Remote({self.where!r})"

    def size(self, path: str) -> int:
        """Bytes of one file."""
        return self.stamp(path)[0]

    def stamp(self, path: str) -> tuple[int, str]:
        """Bytes of one file, and what is another when it has been written again: its ETag, or the time."""
        import obstore

        meta = self._tried(path, lambda client: obstore.head(client, path))
        return int(meta["size"]), str(meta.get("e_tag") or meta["last_modified"])

    def read(self, path: str, max_bytes: int = MAX_JSON_BYTES) -> bytes:
        """All of one file; a large one by several requests at once."""
        data, size = self.fetch(path, 0, _BLOCK_BYTES)
        if size > max_bytes:
            raise too_large(path, size, max_bytes)
        with self.open(path, size) as file:
            starts = range(len(data), size, _BLOCK_BYTES)
            rest = gather(self, lambda at: file.read(at, min(_BLOCK_BYTES, size - at)), starts)
        return b"".join([data, *rest]) if rest else data

    def read_whole(self, path: str, max_bytes: int) -> bytes:
        """`read`, also from a server that gives files whole alone: enough for tables and single images.

        Raises as `read`.
        """
        if not self._gives_whole:
            try:
                return self.read(path, max_bytes)
            except StorageError:
                if not self._gives_whole:
                    raise
        import obstore

        def ask(client: Any) -> bytes:
            answer = obstore.get(client, path)
            size = int(answer.meta["size"])
            if size > max_bytes:
                raise too_large(path, size, max_bytes)
            return body_of(answer, f"{self.where}/{path}", size)

        return self._tried(path, ask)

    def blocks(self, path: str) -> Iterator[bytes]:
        """One file in blocks of 8 MiB."""
        data, size = self.fetch(path, 0, _BLOCK_BYTES)
        yield data
        with self.open(path, size) as file:
            for start in range(len(data), size, _BLOCK_BYTES):
                yield file.read(start, min(_BLOCK_BYTES, size - start))

    def open(self, path: str, size: int | None = None) -> OpenFile:
        """One file for reading ranges; nothing is asked for yet."""
        return _RemoteFile(self, path, size)

    def names(self, folder: str) -> list[str] | None:
        """Names in a folder of a bucket; None on a web server, and where the right to list is missing."""
        if self._parts.scheme != "s3":
            return None
        import obstore

        prefix = f"{folder}/" if folder else None
        try:
            found: Any = self._tried(
                folder, lambda client: obstore.list_with_delimiter(client, prefix=prefix)
            )
        except AccessDeniedError:
            return None
        paths = [*found["common_prefixes"], *(entry["path"] for entry in found["objects"])]
        return sorted(path.rpartition("/")[2] for path in paths)

    def fetch(self, path: str, start: int, stop: int) -> tuple[bytes, int]:
        """Bytes `start` to `stop` of a file, or to its end if that comes before, and the size of the file.

        Raises:
            FileNotFoundError, StorageError: see `Storage`.
            CorruptStoreError: the file ends at or before `start`.
        """
        import obstore

        def ask(client: Any) -> tuple[bytes, int]:
            answer = obstore.get(client, path, options={"range": (start, stop)})
            size = int(answer.meta["size"])
            return body_of(answer, f"{self.where}/{path}", min(stop, size) - start), size

        try:
            return self._tried(path, ask)
        except BeyondEndError as exc:
            if start == 0:  # no byte of an empty file can be asked for
                return b"", 0
            raise CorruptStoreError(f"{path} must have more than {start} bytes; it ends before") from exc

    def _tried(self, path: str, ask: Callable[[Any], Result]) -> Result:
        """What `ask` returns, asked again after failures that obstore itself does not try again."""
        from obstore.exceptions import BaseError

        client = self._connected()
        deadline = time.monotonic() + self.settings.retry_for_s
        attempt = 0
        while True:
            try:
                with self._slots:
                    return ask(client)
            except (FileNotFoundError, BaseError, ShortBodyError) as exc:
                attempt += 1
                is_last = attempt > self.settings.num_retries or time.monotonic() > deadline
                if is_last or not may_pass(exc):
                    self._gives_whole |= ignores_ranges(exc)
                    raise translated(exc, path, self.where) from exc
            wait = min(self.settings.first_wait_s * 2**attempt, self.settings.longest_wait_s)
            time.sleep(wait * random.uniform(0.5, 1.0))  # noqa: S311  (jitter)

    def _connected(self) -> HTTPStore | S3Store:
        global _started_in
        if _started_in not in (None, os.getpid()):
            # Seen with obstore 0.12: any request in such a child waits for ever.
            raise StorageError(
                f"{self.where} cannot be read in a process that was forked after its parent had read from a "
                "URL; start workers with the method 'spawn' or 'forkserver'"
            )
        _started_in = os.getpid()
        with self._lock:
            if self._client is None:
                self._client = self._connect()
            return self._client

    def _connect(self) -> HTTPStore | S3Store:
        from obstore.store import HTTPStore, S3Store

        settings = self.settings
        retry: Any = {
            "max_retries": settings.num_retries,
            "retry_timeout": timedelta(seconds=settings.retry_for_s),
            "backoff": {
                "init_backoff": timedelta(seconds=settings.first_wait_s),
                "max_backoff": timedelta(seconds=settings.longest_wait_s),
                "base": 2,
            },
        }
        client: Any = {
            "connect_timeout": timedelta(seconds=settings.connect_timeout_s),
            "read_timeout": timedelta(seconds=settings.read_timeout_s),
            # Of a whole request, however large and slow: `read_timeout` is what ends one that stands still.
            "timeout": timedelta(days=1),
        }
        parts = self._parts
        if parts.scheme == "s3":
            config: Any
            config, more = s3_options()
            prefix = parts.path.strip("/") or None
            return S3Store(
                parts.netloc, prefix=prefix, config=config, retry_config=retry, client_options=client | more
            )
        client["allow_http"] = parts.scheme == "http"
        # An escape stays an escape; what needs one gets it.
        url = f"{parts.scheme}://{parts.netloc}{urllib.parse.quote(parts.path, safe='/%~')}"
        return HTTPStore.from_url(url.rstrip("/"), retry_config=retry, client_options=client)


def _checked_url(url: str) -> urllib.parse.SplitResult:
    parts = urllib.parse.urlsplit(url)
    if parts.username is not None or parts.password is not None:
        raise ConfigError(
            f"a store's URL holds no user name or password, as it is shown and logged; got one for "
            f"{parts.hostname}; leave it out"
        )
    if "?" in url or "#" in url:
        raise ConfigError(
            "a store's URL has no query and no fragment, as its files lie below it; got one behind "
            f"{re.split('[?#]', url)[0]}; leave it out"
        )
    if not parts.netloc:
        raise ConfigError(f"a store's URL names a host or a bucket after //; got {url}")
    return parts._replace(scheme=parts.scheme.lower())


class _RemoteFile:
    """A file behind a URL."""

    def __init__(self, remote: Remote, path: str, size: int | None) -> None:
        self._remote = remote
        self._path = path
        self._size = size

    @property
    def size(self) -> int:
        """Bytes in the file; asked for only where it is not known."""
        if self._size is None:
            self._size = self._remote.size(self._path)
        return self._size

    def read(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset` on."""
        if length == 0:
            return b""
        data, size = self._remote.fetch(self._path, offset, offset + length)
        if self._size is not None and size != self._size:
            raise another_size(self._path, self._size, size)
        if len(data) < length:
            raise CorruptStoreError(f"{self._path} ended {length - len(data)} bytes early")
        return data

    def fill(self, block: memoryview, offset: int) -> None:
        """All of `block` from `offset` on."""
        block[:] = self.read(offset, len(block))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is held open."""
