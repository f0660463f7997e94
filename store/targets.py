"""Where a store is published to: one contract of writes, for buckets and for the hub.

Files with the hash that each must have in, under names relative to the store; what is there out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from .fetching import FileToFetch

__all__ = ["Listed", "Target"]


@dataclass(frozen=True)
class Listed:
    """What a place says of a file without giving it."""

    size: int
    hash: str | None = None
    """In the place's own way; None where it says none that follows from the bytes alone."""


class Target(Protocol):
    """A place that a store is published to; file names are relative to the store."""

    where: str
    at_once: int
    """Files that are put together."""
    foreign: Sequence[str]
    """Names that the place itself makes, and that do not count as something else being there."""

    def listing(self) -> Mapping[str, Listed]:
        """Every file that is there; empty where the place itself is not."""

    def read_small(self, path: str) -> bytes | None:
        """A small file; None if it is not there."""

    def make(self) -> None:
        """Make the place, if it is not there."""

    def has(self, listed: Listed, file: FileToFetch) -> bool:
        """Whether what is listed is this very file, as far as the place tells."""

    def put(self, files: Sequence[FileToFetch], progress: Callable[[int], None]) -> None:
        """Upload files; each is there whole or not at all. `progress` is told bytes that arrived."""

    def create(self, path: str, data: bytes) -> bool:
        """Put a small file where there is none; False if there is one, which stays."""

    def remove(self, path: str) -> None:
        """Remove a small file, if it is there."""

    def check(self, file: FileToFetch) -> bool:
        """Read a file back and hold it against its hash."""
