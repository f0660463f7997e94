"""What messages say that is to be done about a store, each remedy once.

A store comes from `extract`, `import`, `pull` or `merge`, and whichever it was goes on where it stopped and
writes again what is missing.
"""

from __future__ import annotations

from typing import Final

__all__ = ["AGAIN", "COPY", "delete_and_again"]

AGAIN: Final = "run again what made the store (extract, import, pull or merge)"
COPY: Final = "restore it from a copy of the store"


def delete_and_again(path: str) -> str:
    """About a file that is made from what else is there: `delete index.parquet and run again ...`."""
    return f"delete {path} and {AGAIN}"
