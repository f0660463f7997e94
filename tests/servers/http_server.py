"""A real static web server on loopback that misbehaves when it is told to.

    with StaticServer(folder) as server:
        server.fault(Status(503, retry_after=1), times=2)      # the next two requests
        server.fault(Cut(after=100), match="/c/")              # every request for a shard file
        open_store(f"{server.url}/a.zarr")
        server.requests                                        # what was asked, in order

It serves GET and HEAD with one byte range, keeps connections open, and never lists a folder. An S3 client
with path-style requests may use it as its endpoint: the folder's folders are then buckets.
"""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading
import urllib.parse
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self


@dataclass(frozen=True)
class Status:
    """Answer with this status instead of the file; `retry_after` in seconds."""

    code: int
    retry_after: int | None = None


@dataclass(frozen=True)
class Cut:
    """Reset the connection after so many bytes of the body; negative: before any answer."""

    after: int


@dataclass(frozen=True)
class Short:
    """A well-formed answer whose body is so many bytes shorter than what was asked for."""

    missing: int = 1


@dataclass(frozen=True)
class Stall:
    """Wait before the answer; with `after`, in the middle of the body."""

    seconds: float
    after: int | None = None


@dataclass(frozen=True)
class Whole:
    """Pay no heed to Range: status 200 and the whole file."""


@dataclass(frozen=True)
class Body:
    """Answer 200 with these bytes, whatever was asked for: a proxy's log-in page."""

    data: bytes


@dataclass(frozen=True)
class Headers:
    """The file with other headers, None for one that is left out, and maybe another status."""

    changed: tuple[tuple[str, str | None], ...]
    status: int | None = None


Fault = Status | Cut | Short | Stall | Whole | Body | Headers


@dataclass
class _Rule:
    fault: Fault
    match: str
    left: int | None


@dataclass(frozen=True)
class Request:
    """One request as it was answered."""

    method: str
    path: str
    """Decoded, without the leading slash."""
    range: tuple[int, int] | None
    """First byte and the byte after the last that were asked for."""
    status: int
    sent: int
    """Bytes of body that were sent."""


class StaticServer:
    """Serves one folder; a context manager."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.requests: list[Request] = []
        self.most_at_once = 0
        """Most requests that were being answered at one time."""
        self._at_once = 0
        self._rules: list[_Rule] = []
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.owner = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        """The folder's URL, without a slash at its end."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def fault(self, fault: Fault, times: int | None = None, match: str = "") -> None:
        """Misbehave at the next `times` requests whose path contains `match`; for ever if None.

        Of several rules the first that fits is taken.
        """
        with self._lock:
            self._rules.append(_Rule(fault, match, times))

    def heal(self) -> None:
        """Forget all faults."""
        with self._lock:
            self._rules.clear()

    def forget(self) -> None:
        """Forget the requests so far."""
        with self._lock:
            self.requests.clear()
            self.most_at_once = 0

    def close(self) -> None:
        """Stop serving and refuse connections."""
        self._stopped.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        with self._lock:
            for connection in self._connections:  # clients keep them for their next request
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _take(self, path: str) -> Fault | None:
        with self._lock:
            for rule in self._rules:
                if rule.match in path and rule.left != 0:
                    if rule.left is not None:
                        rule.left -= 1
                    return rule.fault
        return None

    @contextlib.contextmanager
    def _busy(self) -> Any:
        with self._lock:
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            yield
        finally:
            with self._lock:
                self._at_once -= 1

    def _note(self, request: Request) -> None:
        with self._lock:
            self.requests.append(request)


class _Server(ThreadingHTTPServer):
    owner: StaticServer
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients hang up, and so do we: nothing to report."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def setup(self) -> None:
        super().setup()
        with self.server.owner._lock:
            self.server.owner._connections.add(self.connection)

    def finish(self) -> None:
        with self.server.owner._lock:
            self.server.owner._connections.discard(self.connection)
        super().finish()

    def log_message(self, *args: Any) -> None:
        """Requests are kept in `requests` instead."""

    def do_GET(self) -> None:
        with self.server.owner._busy():
            self._answer()

    def do_HEAD(self) -> None:
        self.do_GET()

    def _answer(self) -> None:
        owner = self.server.owner
        path = urllib.parse.unquote(self.path.partition("?")[0]).lstrip("/")
        fault = owner._take(path)
        if isinstance(fault, Stall) and fault.after is None:
            owner._stopped.wait(fault.seconds)
        if isinstance(fault, Cut) and fault.after < 0:
            self._reset()
            return
        if isinstance(fault, Status):
            headers = {} if fault.retry_after is None else {"Retry-After": str(fault.retry_after)}
            self._send(path, None, fault.code, headers, b"told to\n")
            return
        if isinstance(fault, Body):
            self._send(path, None, 200, {}, fault.data)
            return
        file = (owner.folder / path).resolve()
        if not file.is_relative_to(owner.folder.resolve()) or not file.is_file():
            self._send(path, None, 404, {}, b"no such file\n")
            return
        self._serve(path, file, fault)

    def _serve(self, path: str, file: Path, fault: Fault | None) -> None:
        size = file.stat().st_size
        wanted = None if isinstance(fault, Whole) else self._range(size)
        if wanted is not None and wanted[0] >= wanted[1]:
            self._send(path, wanted, 416, {"Content-Range": f"bytes */{size}"}, b"")
            return
        first, stop = wanted or (0, size)
        with file.open("rb") as stream:
            stream.seek(first)
            body = stream.read(stop - first)
        headers = {
            "Accept-Ranges": "bytes",
            "Last-Modified": self.date_time_string(file.stat().st_mtime),
            "ETag": f'"{file.stat().st_mtime_ns:x}-{size:x}"',
        }
        if wanted is not None:
            headers["Content-Range"] = f"bytes {first}-{stop - 1}/{size}"
        if isinstance(fault, Short):
            body = body[: len(body) - fault.missing]
        self._send(path, wanted, 200 if wanted is None else 206, headers, body, fault)

    def _range(self, size: int) -> tuple[int, int] | None:
        found = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if found is None or found[0] == "bytes=-":
            return None
        if not found[1]:
            return max(0, size - int(found[2])), size
        return int(found[1]), min(size, int(found[2]) + 1 if found[2] else size)

    def _send(
        self,
        path: str,
        wanted: tuple[int, int] | None,
        status: int,
        headers: dict[str, str],
        body: bytes,
        fault: Fault | None = None,
    ) -> None:
        sent = body if self.command == "GET" else b""
        if isinstance(fault, Cut):
            sent = sent[: fault.after]
        self.server.owner._note(Request(self.command, path, wanted, status, len(sent)))
        self.send_response((isinstance(fault, Headers) and fault.status) or status)
        changed = fault.changed if isinstance(fault, Headers) else ()
        for name, value in {"Content-Length": str(len(body)), **headers, **dict(changed)}.items():
            if value is not None:
                self.send_header(name, value)
        self.end_headers()
        if isinstance(fault, Stall) and fault.after is not None:
            self.wfile.write(sent[: fault.after])
            self.server.owner._stopped.wait(fault.seconds)
            sent = sent[fault.after :]
        self.wfile.write(sent)
        if isinstance(fault, Cut):
            self._reset()

    def _reset(self) -> None:
        """Close with RST, as a machine does that was switched off and on again."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
