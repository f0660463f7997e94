"""The addition of rows: which images, as which rows, and what is in the shard at the seam.

An opened store, a source and what was asked for in; a finished new part out.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from activault.store import ConfigError, ImageSourceError, Outcome, Store
from activault.store.growing import GROWING, growing_root, way_out
from activault.store.growing_plan import appended_manifest, appended_samples, new_part
from activault.store.growing_writer import old_outcomes
from activault.store.parts import part_samples
from activault.store.sources import CopySource, open_source

from .budget import FEWEST, ErrorBudget, parse_budget
from .capture import Decode, Decoded, Progress, StallTimes
from .growth_begun import content_of, refuse_other_source
from .growth_part import another_growth, compute_part, create_part, planned_part
from .growth_request import Asked, settled, teacher_of, versions
from .growth_rows import appended_details, joint_source, new_rows, places_of, refuse_missing
from .listing import ImageSource
from .machine import choose_device
from .order import Rows
from .run import counted, row_decoder

__all__ = ["AddedRows"]


class AddedRows:
    """The addition of rows."""

    def __init__(self, there: Store, source: ImageSource, asked: Asked) -> None:
        self.there, self.source = there, source
        self.options = settled(there, asked)
        if there.manifest.shards is not None:
            raise ConfigError(
                f"rows are added to stores that have all of theirs; {there.path} is a partial copy; add them "
                "to the whole store, and pull again"
            )
        self.num_new = self.num_known = self.known_elsewhere = self.num_later = self.num_computed = 0

    def plan(self, path: Path) -> bool:
        """Plan the new rows, or find them planned; False where there are none."""
        new = new_rows(self.there.samples, self.source, self.options)
        self.num_known = new.num_known
        if self.there.manifest.source.name != self.source.info.name:  # else it had all of them before
            self.known_elsewhere = new.known_elsewhere
        if growing_root(path) is None and len(new.places):
            self._plan(path, new.places)
        part = planned_part(path, self.there)
        if part is None:
            return False
        if part.manifest.num_rows == self.there.num_rows:
            raise another_growth(path, part.manifest)
        self.num_new = part.manifest.num_rows - self.there.num_rows
        self.num_later = max(0, len(new.places) - self.num_new)
        return True

    def _plan(self, path: Path, places: Rows) -> None:
        there, source = self.there, self.source
        num_rows = there.num_rows + len(places)
        keys, labels = (
            [column[place] for place in places.tolist()] for column in (source.keys, source.labels)
        )
        samples = appended_samples(there.samples, keys, labels, source.info.name)
        grown = appended_manifest(
            there.manifest,
            num_rows,
            joint_source(there.manifest, there.samples, source),
            appended_details(there.manifest, num_rows, source.info.name, self.options)
            | versions(there.manifest),
        )
        part = new_part(there.manifest, grown)
        create_part(path, there.manifest, part, part_samples(samples, part))

    def compute(self, path: Path, progress: Progress | None) -> StallTimes:
        """Compute the new rows' shards."""
        part = open_source(path / GROWING)
        places = places_of(part.samples, self.source)
        new = np.arange(self.there.num_rows, part.manifest.num_rows)
        refuse_other_source(path, self.there, part, self.source, places)
        rule = f"{len(new)} rows are being added to {path}; {way_out(path)}"
        refuse_missing(part.samples, places, new, self.source, rule)
        backbone = teacher_of(self.there, self.options).to(choose_device(self.options.device))
        budget = self._budget(part)
        base = counted(row_decoder(self.source, places, backbone, self.options), budget)
        decode = _OldRows(self.there, self.source, places, base)
        stalls, self.num_computed = compute_part(
            path, self.there, part, backbone, decode, self.options, progress
        )
        budget = self._budget(open_source(path / GROWING))  # others may have spent it together
        if not budget.is_endless:
            _refuse_all_bad(open_source(path / GROWING), self.there.num_rows)
        return stalls

    def _budget(self, part: CopySource) -> ErrorBudget:
        before = len(_new_bad(part, self.there.num_rows))
        keys, allowed = part.samples["key"], parse_budget(self.options.max_bad, self.num_new)
        budget = ErrorBudget(allowed, lambda row: str(keys[row].as_py()), before, self.source.faults)
        budget.check()
        return budget


class _OldRows:
    """Decodes new rows; of old ones in the shard at the seam it tells what became of them.

    Of those the bytes are read where the source has them, so that the shard's record can say which images it
    is of.
    """

    def __init__(self, there: Store, source: ImageSource, places: Rows, decode: Decode) -> None:
        self._num_old, self._source, self._places, self._decode = there.num_rows, source, places, decode
        seam = there.num_rows // there.manifest.shard_rows * there.manifest.shard_rows
        self._first, self._outcomes = seam, list[Outcome]()
        if seam < there.num_rows:
            record = open_source(there.storage).record(there.manifest.num_shards - 1)
            self._outcomes = old_outcomes(record)

    def __call__(self, row: int) -> Decoded:
        if row >= self._num_old:
            return self._decode(row)
        was, content = self._outcomes[row - self._first], None
        if self._places[row] >= 0:
            content = content_of(self._source, int(self._places[row]))
        outcome = Outcome(
            status=was.status, reason=was.reason, width=was.width, height=was.height, content=content
        )
        return Decoded(outcome=outcome, pixels=None)


def _new_bad(part: CopySource, first: int) -> list[int]:
    """New rows of finished shards whose image was bad."""
    records: Sequence[Any] = [part.record(shard) for shard in part.finished]
    return [row for record in records for row, *_ in record.bad if row >= first]


def _refuse_all_bad(part: CopySource, first: int) -> None:
    """Refuse a source of which nothing is an image; a few bad images that came alone are bad rows."""
    bad = _new_bad(part, first)
    if len(bad) == part.manifest.num_rows - first and len(bad) > FEWEST:
        raise ImageSourceError(
            f"none of the {len(bad)} new images could be decoded; nothing was added; remove {part.where}, "
            "and look at the images, or keep them as bad rows with --max-bad 100%"
        )
