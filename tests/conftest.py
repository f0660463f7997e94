"""Shapes in annotations are checked in tests and nowhere else; the hook has to come before any import."""

from __future__ import annotations

from jaxtyping import install_import_hook

install_import_hook(["activault.extract", "activault.train"], "beartype.beartype")

pytest_plugins = ["server_fixtures"]  # in tests/servers, which pyproject.toml puts on the path
