"""Shapes in annotations are checked in tests and nowhere else; the hook has to come before any import.

Ctrl-C reaches this process and what it starts also where a shell has started it in the background, with
SIGINT ignored. Where several processes share the tests, files begin in an order that leaves none waiting.
"""

from __future__ import annotations

import gc
import signal

import pytest
import xdist
from jaxtyping import install_import_hook

install_import_hook(["activault.extract", "activault.train"], "beartype.beartype")

pytest_plugins = ["server_fixtures"]  # in tests/servers, which pyproject.toml puts on the path

signal.signal(signal.SIGINT, signal.default_int_handler)

FIRST = ("test_demo_figures.py", "test_demo.py")
"""Files of minutes, of which each keeps one process busy while the others share the rest."""


def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    """The longest files begin; what needs Ceph ends, since its servers then run for the shortest time."""
    if not xdist.is_xdist_worker(session):
        return
    ceph = {item.path for item in items if item.get_closest_marker("s3")}

    def place(item: pytest.Item) -> tuple[int, bool]:
        name = item.path.name
        return FIRST.index(name) if name in FIRST else len(FIRST), item.path in ceph

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """What is imported and collected by now stays to the end: no full collection looks at it again."""
    gc.freeze()
