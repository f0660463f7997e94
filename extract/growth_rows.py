"""Which rows come to a store, and where the images of those that it has are found again.

A source and a store's sample table in; places in the source by row out, -1 where there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from activault.store import Manifest, StoreMismatchError
from activault.store.growing import APPENDED
from activault.store.manifest import Detail
from activault.store.provenance import SourceInfo

from .listing import ImageSource, fingerprint_of
from .options import ExtractOptions
from .order import Rows, chosen_rows, selection_details

__all__ = ["NewRows", "appended_details", "joint_source", "new_rows", "places_of", "refuse_missing"]

_MOST_TOLD: Final = 900
_SEVERAL: Final = "several"


@dataclass(frozen=True)
class NewRows:
    """Images that a store has not."""

    places: Rows
    """In the source, in the order that the rows get."""
    num_known: int
    """Images that were left out, because the store has their keys."""
    known_elsewhere: int
    """Those of them that the store has from a source of another name."""


def places_of(samples: pa.Table, source: ImageSource) -> Rows:
    """(rows,) place of each row's key in the source; -1 where it is not there."""
    found = pc.index_in(samples["key"], value_set=pa.array(source.keys, pa.string()))
    return np.asarray(pc.fill_null(found, pa.scalar(-1, pa.int32())), np.int64)


def new_rows(samples: pa.Table, source: ImageSource, options: ExtractOptions) -> NewRows:
    """Images of the source, of those that `where` and `split` choose, whose keys the store has not.

    Shuffled by the store's seed and its number of rows, so that the images of two additions of as many are
    not in the same order; or in the source's order.

    Raises:
        ConfigError, ImageSourceError: see `order.chosen_rows`.
    """
    chosen = chosen_rows(source, seed=None, where=options.where, split=options.split)
    known = places_of(samples, source)
    is_known = np.zeros(len(source), np.bool_)
    is_known[known[known >= 0]] = True
    places = chosen[~is_known[chosen]]
    if options.order == "shuffled":
        places = places[np.random.default_rng([options.seed, len(samples)]).permutation(len(places))]
    foreign = np.asarray(pc.not_equal(samples["source"], pa.scalar(source.info.name)), np.bool_)
    is_foreign = np.zeros(len(source), np.bool_)
    is_foreign[known[foreign & (known >= 0)]] = True
    return NewRows(places, int(is_known[chosen].sum()), int(is_foreign[chosen].sum()))


def refuse_missing(
    samples: pa.Table, places: Rows, rows: npt.NDArray[np.int64], source: ImageSource, rule: str
) -> None:
    """Refuse a source that lacks the image of a row.

    Args:
        samples: the table.
        places: of all its rows.
        rows: rows that are needed.
        source: where they were looked for.
        rule: what the message begins with.

    Raises:
        StoreMismatchError: it lacks one; row, key and where the image was from are named.
    """
    missing = rows[places[rows] < 0]
    if not len(missing):
        return
    row = int(missing[0])
    key, name = samples["key"][row].as_py(), samples["source"][row].as_py()
    raise StoreMismatchError(
        f"{rule}; {len(missing)} of {len(rows)} are not in {source.info.name} (first: row {row}, {key}, "
        f"which came from {name}); give a source with all of them under their keys, such as a table of "
        "paths with --key-column"
    )


def joint_source(old: Manifest, samples: pa.Table, source: ImageSource) -> SourceInfo:
    """Where the rows of a store are from when images of `source` have come to it.

    The source itself, where it has the old rows too, such as a folder that got more images. Otherwise both:
    each row's own source stands in the sample table.
    """
    came, was = source.info, old.source
    if (places_of(samples, source) >= 0).all():
        return came
    return SourceInfo(
        kind=was.kind if was.kind == came.kind else _SEVERAL,
        name=", ".join(_each_once([*was.name.split(", "), came.name])),
        fingerprint=fingerprint_of((was.fingerprint, came.fingerprint), (old.num_rows, len(source))),
    )


def _each_once(names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(names))


def appended_details(old: Manifest, num_rows: int, name: str, options: ExtractOptions) -> dict[str, Detail]:
    """What `details` say of additions: first and last row of each, their source, and how they were chosen."""
    before = dict(old.details).get(APPENDED)
    told = f"{before}; " if isinstance(before, str) else ""
    told += f"{old.num_rows}-{num_rows - 1} {name[:100]}"
    chosen = selection_details(options.where, options.split)
    told += "".join(f", {how} {what[:200].replace(';', ',')}" for how, what in chosen.items())
    while len(told) > _MOST_TOLD:
        told = "..." + told.partition(";")[2]
    return {APPENDED: told}
