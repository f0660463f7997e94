"""What the other workers on a store have done, seen from their records while this one computes.

The place of a store and the rows this worker has done in; rows that all have done, and the bad ones among
those of the others, out. A record is read once, and records are looked for every few seconds.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Final

import numpy as np

from activault.store import CorruptStoreError, Manifest, Outcome, Store, StoreError
from activault.store.places import open_storage
from activault.store.presence import shards_named
from activault.store.records import read_record, record_path

from .budget import ErrorBudget
from .capture import Progress

__all__ = ["Others"]

_log: Final = logging.getLogger(__name__)
_INTERVAL: Final = 5.0
"""Seconds between two looks: one listing of a folder or of a prefix each."""


class Others:
    """A `Progress` that tells of all workers' rows, and takes in what others found to be bad.

    Args:
        store: as it was when this worker began.
        place: its path or URL.
        budget: of bad images; those of others count as its own.
        progress: what is told.
    """

    def __init__(
        self, store: Store, place: Path | str, budget: ErrorBudget, progress: Progress | None
    ) -> None:
        self._manifest: Manifest = store.manifest
        self._storage = open_storage(place)
        self._budget = budget
        self._progress = progress
        self._seen = set[int](np.unique(store.finished_rows // self._manifest.shard_rows).tolist())
        self._finished = len(store.finished_rows)
        self._last = time.monotonic()
        self._told = False

    def __call__(self, done: int, total: int) -> None:
        """Told by the engine, with the rows that were done before it began and its own.

        Raises:
            ImageSourceError: all workers together have spent the budget.
        """
        if time.monotonic() >= self._last + _INTERVAL:
            self.look()
            self._last = time.monotonic()
        if self._progress is not None:
            self._progress(max(done, self._finished), total)

    def look(self) -> None:
        """Take in the records that are new; raises as calling does."""
        try:
            names = self._storage.names("shards")
        except StoreError as exc:  # progress and the budget wait; who claims and publishes meets what lasts
            if not self._told:
                _log.warning("what other workers have done cannot be seen now: %s", exc)
            self._told = True
            return
        for shard in sorted(shards_named(names or (), record_path, self._manifest) - self._seen):
            try:
                found = read_record(self._storage, self._manifest, shard)
            except CorruptStoreError:  # the worker that takes the shard then says so
                continue
            if found is not None:
                self._seen.add(shard)
                self._finished += len(self._manifest.shard_range(shard))
                self._budget.learn(
                    (row, Outcome(status=status, reason=reason)) for row, status, reason in found[0].bad
                )
