"""Fixtures of the servers, for every test folder (a plugin that `tests/conftest.py` names).

`serve(folder)` -> `http_server.StaticServer`; `s3` and `ceph` -> `s3_server.S3`, with the AWS_* variables
set. A test with `s3` runs twice: on moto's server and, marked `s3`, on Ceph's gateway. One with `ceph`, to be
marked `s3` itself, is of what moto does not do: credentials and rights.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from http_server import StaticServer
from moto_server import start_moto
from s3_server import S3, start_s3


@pytest.fixture
def serve() -> Iterator[Callable[[Path], StaticServer]]:
    """Serves folders over HTTP until the test ends."""
    with contextlib.ExitStack() as stack:
        yield lambda folder: stack.enter_context(StaticServer(folder))


@pytest.fixture(scope="session")
def _ceph_server() -> Iterator[S3]:
    with start_s3() as server:
        yield server


@pytest.fixture(scope="session")
def _moto_server() -> Iterator[S3]:
    with start_moto() as server:
        yield server


@pytest.fixture(params=["moto", pytest.param("ceph", marks=pytest.mark.s3)])
def s3(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> S3:
    """Each S3 server in turn, with this process's credentials and endpoint set to it."""
    server: S3 = request.getfixturevalue(f"_{request.param}_server")
    return _set(server, monkeypatch)


@pytest.fixture
def ceph(_ceph_server: S3, monkeypatch: pytest.MonkeyPatch) -> S3:
    """The one that looks at credentials, likewise (mark such tests `s3`)."""
    return _set(_ceph_server, monkeypatch)


def _set(server: S3, monkeypatch: pytest.MonkeyPatch) -> S3:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return server
