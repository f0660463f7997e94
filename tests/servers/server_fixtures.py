"""Fixtures of the servers, for every test folder (a plugin that `tests/conftest.py` names).

`serve(folder)` -> `http_server.StaticServer`; `s3` -> `s3_server.S3`, with the AWS_* variables set.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from http_server import StaticServer
from s3_server import S3, start_s3


@pytest.fixture
def serve() -> Iterator[Callable[[Path], StaticServer]]:
    """Serves folders over HTTP until the test ends."""
    with contextlib.ExitStack() as stack:
        yield lambda folder: stack.enter_context(StaticServer(folder))


@pytest.fixture(scope="session")
def _s3_server() -> Iterator[S3]:
    with start_s3() as server:
        yield server


@pytest.fixture
def s3(_s3_server: S3, monkeypatch: pytest.MonkeyPatch) -> S3:
    """The S3 server, with this process's credentials and endpoint set to it (mark such tests `s3`)."""
    for name, value in _s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return _s3_server
