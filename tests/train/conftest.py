"""One thread, checked shapes, and tiny stores made through the store's own writer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from jaxtyping import install_import_hook

# Shapes in annotations are checked here and nowhere else; before anything imports the room.
install_import_hook("activault.train", "beartype.beartype")

import torch  # noqa: E402


@pytest.fixture(autouse=True)
def _one_thread_and_a_seed() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
