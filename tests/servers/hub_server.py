"""A stand-in for the Hugging Face hub's HTTP interface: data sets, with commits, git files and LFS.

    with HubServer() as hub:
        api = HfApi(endpoint=hub.url, token=hub.token)
        hub.files["me/data"]            # name -> bytes

It knows what huggingface_hub asks when it publishes without Xet: repos/create, tree, preupload, the LFS batch
with its basic upload, commit, resolve. It stands in for the protocol, not for the hub's limits.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

MOST_GIT_BYTES = 2000
"""Larger files go through LFS, as do these:"""
LFS_ENDINGS = (".safetensors", ".parquet")


class HubServer:
    """One hub with one user; a context manager."""

    token = "hf_test"

    def __init__(self) -> None:
        self.files: dict[str, dict[str, bytes]] = {}
        self.commits: dict[str, list[str]] = {}
        """Messages of each repository's commits."""
        self.large: dict[str, bytes] = {}
        """LFS objects by sha256."""
        self.requests: list[tuple[str, str]] = []
        self.failures: list[tuple[str, int]] = []
        """(part of a path, status) that the next such request is answered with."""
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.owner = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        """Its endpoint."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def head(self, repo: str) -> str:
        """The last commit's name."""
        return hashlib.sha1(f"{repo} {len(self.commits[repo])}".encode()).hexdigest()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    owner: HubServer
    block_on_close = False


def is_large(path: str, size: int) -> bool:
    return size > MOST_GIT_BYTES or path.endswith(LFS_ENDINGS)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, *args: Any) -> None:
        """Requests are kept in `requests` instead."""

    def _all(self) -> None:
        hub = self.server.owner
        path = urllib.parse.unquote(self.path.partition("?")[0])
        body = self._body()
        hub.requests.append((self.command, path))
        for place, (part, status) in enumerate(hub.failures):
            if part in path:
                del hub.failures[place]
                self._send(status, {"error": "told to"})
                return
        if self.headers.get("Authorization") != f"Bearer {hub.token}" and not path.startswith("/lfs/"):
            self._send(401, {"error": "Invalid credentials"})
            return
        for method, pattern, answer in ROUTES:
            found = re.fullmatch(pattern, path)
            if found and self.command in method:
                answer(self, hub, body, *found.groups())
                return
        self._send(404, {"error": f"no such route: {self.command} {path}"})

    do_GET = do_HEAD = do_POST = do_PUT = _all  # noqa: N815

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _send(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _missing(self, what: str) -> None:
        self._send(404, {"error": what}, {"X-Error-Code": what, "X-Error-Message": what})

    def create(self, hub: HubServer, body: bytes) -> None:
        asked = json.loads(body)
        assert asked["type"] == "dataset"
        repo = f"{asked.get('organization') or 'me'}/{asked['name']}"
        url = {"url": f"{hub.url}/datasets/{repo}", "name": repo, "id": "1"}
        if repo in hub.files:
            self._send(409, {"error": "You already created this dataset repo", **url})
            return
        hub.files[repo] = {".gitattributes": b"*.safetensors filter=lfs\n"}
        hub.commits[repo] = ["initial commit"]
        self._send(200, url)

    def info(self, hub: HubServer, body: bytes, repo: str) -> None:
        if repo not in hub.files:
            self._missing("RepoNotFound")
            return
        self._send(200, {"id": repo, "sha": hub.head(repo), "private": False, "tags": [], "downloads": 0})

    def tree(self, hub: HubServer, body: bytes, repo: str, prefix: str | None) -> None:
        if repo not in hub.files:
            self._missing("RepoNotFound")
            return
        below = f"{prefix.strip('/')}/" if prefix else ""
        found = {path: data for path, data in hub.files[repo].items() if path.startswith(below)}
        if not found:
            self._missing("EntryNotFound")
            return
        self._send(200, [_entry(path, data) for path, data in sorted(found.items())])

    def preupload(self, hub: HubServer, body: bytes, repo: str) -> None:
        files = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if is_large(file["path"], file["size"]) else "regular",
                "shouldIgnore": False,
            }
            for file in json.loads(body)["files"]
        ]
        self._send(200, {"files": files})

    def batch(self, hub: HubServer, body: bytes, repo: str) -> None:
        objects = []
        for item in json.loads(body)["objects"]:
            if item["oid"] not in hub.large:
                item["actions"] = {"upload": {"href": f"{hub.url}/lfs/{item['oid']}"}}
            objects.append(item)
        self._send(200, {"transfer": "basic", "objects": objects}, {"Content-Type": "application/json"})

    def upload(self, hub: HubServer, body: bytes, oid: str) -> None:
        assert hashlib.sha256(body).hexdigest() == oid
        hub.large[oid] = body
        self._send(200, {})

    def commit(self, hub: HubServer, body: bytes, repo: str) -> None:
        header, *operations = (json.loads(line) for line in body.splitlines())
        parent = header["value"].get("parentCommit")
        if parent not in (None, hub.head(repo)):
            self._send(412, {"error": "A commit has happened since. Please refresh and try again."})
            return
        files = hub.files[repo]
        for operation in operations:
            value = operation["value"]
            if operation["key"] == "file":
                assert not is_large(value["path"], len(base64.b64decode(value["content"])))
                files[value["path"]] = base64.b64decode(value["content"])
            elif operation["key"] == "lfsFile":
                files[value["path"]] = hub.large[value["oid"]]
            else:
                assert operation["key"] == "deletedFile"
                del files[value["path"]]
        hub.commits[repo].append(header["value"]["summary"])
        url = f"{hub.url}/datasets/{repo}/commit/{hub.head(repo)}"
        self._send(200, {"success": True, "commitOid": hub.head(repo), "commitUrl": url})

    def validate(self, hub: HubServer, body: bytes) -> None:
        front = json.loads(body)["content"].split("---\n")[1]
        assert re.match(r"license: \S+\n", front), front
        self._send(200, {"errors": [], "warnings": []})

    def resolve(self, hub: HubServer, body: bytes, repo: str, path: str) -> None:
        data = hub.files.get(repo, {}).get(path)
        if data is None:
            self._missing("EntryNotFound" if repo in hub.files else "RepoNotFound")
            return
        headers = {"ETag": f'"{_oid(data)}"', "X-Repo-Commit": hub.head(repo), "Accept-Ranges": "bytes"}
        span = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if span is None:
            self._send(200, data, headers)
            return
        first, stop = int(span[1]), min(int(span[2]) + 1, len(data))
        headers["Content-Range"] = f"bytes {first}-{stop - 1}/{len(data)}"
        self._send(206, data[first:stop], headers)


def _oid(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _entry(path: str, data: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": path, "size": len(data), "oid": _oid(data)}
    if is_large(path, len(data)):
        entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
    return entry


_REPO = r"([^/]+/[^/]+)"
ROUTES = (
    ("POST", "/api/repos/create", _Handler.create),
    ("POST", "/api/validate-yaml", _Handler.validate),
    ("GET", f"/api/datasets/{_REPO}", _Handler.info),
    ("GET", f"/api/datasets/{_REPO}/revision/main", _Handler.info),
    ("GET", rf"/api/datasets/{_REPO}/tree/main(/.*)?", _Handler.tree),
    ("POST", f"/api/datasets/{_REPO}/preupload/main", _Handler.preupload),
    ("POST", f"/datasets/{_REPO}[.]git/info/lfs/objects/batch", _Handler.batch),
    ("PUT", "/lfs/(.*)", _Handler.upload),
    ("POST", f"/api/datasets/{_REPO}/commit/main", _Handler.commit),
    ("GET HEAD", f"/datasets/{_REPO}/resolve/(?:main|[0-9a-f]{{40}})/(.*)", _Handler.resolve),
)
