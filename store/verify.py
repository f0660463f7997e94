"""Verification: every fault of a store, not the first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Fault", "VerifyReport", "verify_store"]


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong."""

    where: str
    """File relative to the store, or `store`."""
    rule: str
    """What holds in a sound store."""
    detail: str
    """What was found instead."""


@dataclass(frozen=True)
class VerifyReport:
    """What a verification found."""

    faults: tuple[Fault, ...]
    finished_shards: int
    num_shards: int

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.faults


def verify_store(
    path: Path | str,
    deep: bool = False,
    complete: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> VerifyReport:
    """To be replaced."""
    raise NotImplementedError
