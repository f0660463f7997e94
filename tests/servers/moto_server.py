"""A quick stand-in for S3 on loopback, for any user: moto's server, in a process of its own.

    with start_moto() as s3:
        s3.put_folder(s3.make_bucket("data"), "a.zarr", folder)      # then s3://data/a.zarr

It signs nothing off: credentials and rights are not looked at, so what is refused is tested on `s3_server`'s.
Listing, ranges, conditional PUT and uploads in parts are there. About 1 s to start and 6 ms a request.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

from s3_server import S3

_PROGRAM = """
import logging, sys
logging.getLogger("werkzeug").setLevel(logging.ERROR)
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()  # until whoever started it is gone
"""


@contextlib.contextmanager
def start_moto() -> Iterator[S3]:
    """The server; it ends with this process, also if that is killed."""
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        assert port.isdigit(), "moto's server did not start"
        yield S3(f"http://127.0.0.1:{port}")
        process.kill()
