"""A real S3 server on loopback: Ceph's gateway over one monitor and one object store in memory.

    with start_s3() as s3:
        s3.put_folder(s3.make_bucket("data"), "a.zarr", folder)      # then s3://data/a.zarr

The daemons come from Debian's packages, are children of this process and die with it. Nothing is written
outside a temporary folder. Cold with the packages there: about 2 s; with installing them about 30 s.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import hmac
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from debian_packages import need

PACKAGES = ("radosgw", "ceph-mon", "ceph-osd")
PROGRAMS = ("radosgw", "radosgw-admin", "ceph", "ceph-mon", "ceph-osd", "monmaptool", "setpriv")
KEY, SECRET, REGION = "testkey", "testsecret", "us-east-1"

CONFIG = """
[global]
fsid = {fsid}
mon host = [v1:127.0.0.1:{monitor_port}/0]
public addr = 127.0.0.1
cluster addr = 127.0.0.1
auth cluster required = none
auth service required = none
auth client required = none
osd objectstore = memstore
memstore device bytes = 4294967296
osd crush initial weight = 1
osd crush chooseleaf type = 0
osd pool default size = 1
osd pool default pg num = 4
osd pool default pg autoscale mode = off
mon allow pool size one = true
mon data avail crit = 0
mon data avail warn = 0
paxos propose interval = 0.05
mon data = {folder}/mon
osd data = {folder}/osd
rgw data = {folder}/rgw
keyring = {folder}/keyring
run dir = {folder}
admin socket = {folder}/$name.asok
pid file = {folder}/$name.pid
log file = {folder}/log/$name.log
crash dir = {folder}/log
rgw frontends = beast endpoint=127.0.0.1:{port} tcp_nodelay=1
"""


@dataclass(frozen=True)
class S3:
    """A running server."""

    endpoint: str

    @property
    def environment(self) -> dict[str, str]:
        """The usual variables, for this process or a child."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": REGION,
        }

    def make_bucket(self, name: str | None = None, public: bool = False) -> str:
        """A new bucket; a public one lets anybody get its objects, and nobody list them."""
        bucket = name or f"b-{uuid.uuid4().hex[:12]}"
        self.put(bucket, b"")
        if public:
            allow = {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject"}
            policy = {
                "Version": "2012-10-17",
                "Statement": [allow | {"Resource": f"arn:aws:s3:::{bucket}/*"}],
            }
            self.put(bucket, json.dumps(policy).encode(), "policy=")
        return bucket

    def put_folder(self, bucket: str, prefix: str, folder: Path) -> None:
        """Every file of a folder, as objects below the prefix."""
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                name = file.relative_to(folder).as_posix()
                self.put(f"{bucket}/{prefix}/{name}" if prefix else f"{bucket}/{name}", file.read_bytes())

    def put(self, path: str, data: bytes, query: str = "") -> None:
        """One signed PUT of `bucket` or `bucket/key`."""
        self._send("PUT", path, data, query)

    def delete(self, path: str) -> None:
        """One signed DELETE of `bucket/key`."""
        self._send("DELETE", path, b"", "")

    def _send(self, method: str, path: str, data: bytes, query: str) -> None:
        """AWS's signature, version 4 (docs.aws.amazon.com, "Create a signed AWS API request")."""
        host = self.endpoint.partition("//")[2]
        now = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
        digest = hashlib.sha256(data).hexdigest()
        headers = {"host": host, "x-amz-content-sha256": digest, "x-amz-date": now}
        names = ";".join(headers)
        canonical = "".join(f"{name}:{value}\n" for name, value in headers.items())
        quoted = "/" + urllib.parse.quote(path)
        request = f"{method}\n{quoted}\n{query}\n{canonical}\n{names}\n{digest}"
        scope = f"{now[:8]}/{REGION}/s3/aws4_request"
        to_sign = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
        key = f"AWS4{SECRET}".encode()
        for part in scope.split("/"):
            key = hmac.digest(key, part.encode(), "sha256")
        signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
        headers["Authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={KEY}/{scope}, SignedHeaders={names}, Signature={signature}"
        )
        headers["Content-Type"] = "application/octet-stream"  # or moto takes urllib's for a form
        url = f"{self.endpoint}{quoted}" + (f"?{query}" if query else "")
        with urllib.request.urlopen(
            urllib.request.Request(url, data or None, headers, method=method), timeout=30
        ):
            pass


@contextlib.contextmanager
def start_s3() -> Iterator[S3]:
    """The server; installs it where it is absent, else the test is skipped, or fails in CI."""
    need(_missing, PACKAGES)
    with contextlib.ExitStack() as stack:
        # Short, because the daemons' sockets lie in it.
        made = tempfile.TemporaryDirectory(prefix="s3-", dir="/tmp", ignore_cleanup_errors=True)
        folder = Path(stack.enter_context(made))
        for name in ("mon", "osd", "rgw", "log"):
            (folder / name).mkdir()
        port, monitor_port = _free_ports(2)
        fsid = str(uuid.uuid4())
        config = CONFIG.format(folder=folder, port=port, monitor_port=monitor_port, fsid=fsid)
        (folder / "ceph.conf").write_text(config)
        environment = {**os.environ, "CEPH_CONF": str(folder / "ceph.conf"), "LC_ALL": "C"}

        def attempt(*command: str) -> subprocess.CompletedProcess[str]:
            try:
                return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
            except subprocess.TimeoutExpired as error:  # a client waits for a monitor that has ended
                pytest.fail(f"{error}\n{_log_ends(folder / 'log')}")

        def run(*command: str) -> None:
            done = attempt(*command)
            assert done.returncode == 0, f"{command}: {done.stderr[-1000:]}"

        def daemon(*command: str) -> subprocess.Popen[bytes]:
            # The daemon dies with this process, also if that is killed.
            with (folder / "log" / f"{command[0]}.out").open("wb") as log:
                process = subprocess.Popen(
                    ["setpriv", "--pdeathsig", "KILL", *command], env=environment, stdout=log, stderr=log
                )
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        monitors = str(folder / "monmap")
        run(
            "monmaptool",
            "--create",
            "--fsid",
            fsid,
            "--addv",
            "a",
            f"[v1:127.0.0.1:{monitor_port}]",
            monitors,
        )
        run("ceph-mon", "--mkfs", "-i", "a", "--monmap", monitors)
        daemon("ceph-mon", "-f", "-i", "a")
        identity = str(uuid.uuid4())
        run("ceph", "osd", "new", identity)
        run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", identity)
        osd = daemon("ceph-osd", "-f", "-i", "0")

        def osd_is_up() -> bool:
            nonlocal osd
            if osd.poll() is not None:  # it gives up until the monitor knows it
                osd = daemon("ceph-osd", "-f", "-i", "0")
            return " 1 up" in attempt("ceph", "osd", "stat").stdout

        _wait_for(osd_is_up)
        account = ("--uid=test", "--display-name=test", f"--access-key={KEY}", f"--secret-key={SECRET}")
        run("radosgw-admin", "user", "create", *account)
        daemon("radosgw", "-f", "-n", "client.rgw")
        _wait_for(lambda: _answers(port))
        yield S3(f"http://127.0.0.1:{port}")


def _missing() -> str:
    return ", ".join(name for name in PROGRAMS if shutil.which(name) is None)


def _log_ends(folder: Path) -> str:
    """The last lines of every daemon's log, where the reason for its end stands."""
    logs = (file for file in sorted(folder.iterdir()) if file.is_file())
    return "\n".join(f"{file.name}: {file.read_text(errors='replace')[-1000:]}" for file in logs)


def _free_ports(number: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)]
        return [each.getsockname()[1] for each in held]


def _wait_for(ready: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < end, "the S3 server did not start"
        time.sleep(0.1)


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
