"""A sweep's folder: one sweep at work there, and runs that are what the file says.

    OUT/lock     held by the sweep and its runs, so that those of a killed sweep keep it until they have ended

A run's folder from another recipe or another store is refused before anything runs: its figures would stand
in the table under a name that is no longer theirs.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from activault.store import ActivaultError, RunError, open_store, split_rows
from activault.store.differences import first_differing

from .sweep_plan import PlannedRun

__all__ = ["StoreFacts", "alone_with_sweep", "check_runs_there"]


class StoreFacts:
    """What a sweep asks its stores, each opened once; a store that cannot be opened is left to its runs."""

    def __init__(self) -> None:
        self._digests: dict[str, str | None] = {}
        self._counts: dict[str, dict[str, int]] = {}

    def digest(self, path: str) -> str | None:
        """Digest of the store's content; None where it cannot be opened."""
        self._look(path)
        return self._digests[path]

    def counts(self, path: str) -> dict[str, int]:
        """Good rows by split; none where it cannot be opened."""
        self._look(path)
        return self._counts[path]

    def _look(self, path: str) -> None:
        if path in self._digests:
            return
        try:
            store = open_store(path)
            rows = split_rows(store.samples, store.valid_rows)
            self._digests[path] = store.digest if store.complete else None
            self._counts[path] = {split: len(found) for split, found in rows.items()}
        except (ActivaultError, OSError):
            self._digests[path], self._counts[path] = None, {}


@contextmanager
def alone_with_sweep(out: Path) -> Iterator[int | None]:
    """Hold the folder; gives the lock's file descriptor, for the runs to keep open, or None without locks.

    Raises:
        RunError: another sweep, or runs of one that was killed, are at work there.
    """
    out.mkdir(parents=True, exist_ok=True)
    with (out / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise RunError(
                f"one sweep is at work in a folder, and another one, or the runs of one that was killed and "
                f"are saving where they are, hold {out}; wait for them or choose another --out"
            ) from exc
        except OSError as exc:
            from activault.train.run_folder import WITHOUT_LOCKS

            if exc.errno not in WITHOUT_LOCKS:
                raise RunError(f"{out} cannot be locked: {exc}; choose another --out") from exc
            yield None
            return
        yield file.fileno()


def check_runs_there(out: Path, runs: Sequence[PlannedRun], stores: StoreFacts) -> None:
    """Hold every run that was begun against the sweep's file and its store.

    Raises:
        RunError: some differ; names the first, the key and both values.
    """
    differing = [
        (run.name, found)
        for run in runs
        if run.baseline is None and (found := _difference(out / "runs" / run.name, run, stores))
    ]
    if not differing:
        return
    (name, (key, there, wanted)), more = differing[0], len(differing) - 1
    others = f" ({more} more run{'s' * (more != 1)} differ{'s' * (more == 1)})" if more else ""
    raise RunError(
        f"a run goes on with what it was started with; {out / 'runs' / name} has {key} = {there!r} and the "
        f"sweep's file now says {wanted!r}{others}: give changed cells new names, or choose another --out, "
        "or delete the folders of runs that are to be made anew"
    )


def _difference(folder: Path, run: PlannedRun, stores: StoreFacts) -> tuple[str, Any, Any] | None:
    """(key, value there, value wanted) of the first difference; None without a run or where there is none."""
    from activault.train import TrainRecipe

    try:
        record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        there = TrainRecipe.model_validate(record["recipe"]).identity()
    except (OSError, ValueError, KeyError, TypeError, ValidationError):
        return None  # no run, or one that `train` has more to say of
    if found := first_differing(there, run.recipe.identity()):
        return found
    digest = stores.digest(run.recipe.store)
    if digest is not None and record.get("store_digest") != digest:
        return "store_digest", record.get("store_digest"), digest
    return None
