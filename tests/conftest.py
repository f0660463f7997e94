"""Shapes in annotations are checked in tests and nowhere else; the hook has to come before any import.

Ctrl-C reaches this process and what it starts also where a shell has started it in the background, with
SIGINT ignored.
"""

from __future__ import annotations

import signal

from jaxtyping import install_import_hook

install_import_hook(["activault.extract", "activault.train"], "beartype.beartype")

pytest_plugins = ["server_fixtures"]  # in tests/servers, which pyproject.toml puts on the path

signal.signal(signal.SIGINT, signal.default_int_handler)
