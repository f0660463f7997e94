"""A store's phases, from the training rows: one answer for `phases`, `train` and `analyze`.

store path -> FoundPhases: layer similarity, the phases for several k, the cost curve
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from activault.analyze import (
    Cost,
    LayerSimilarity,
    Phases,
    cost_curve,
    cut_stability,
    layer_similarity,
    max_cut_phases,
    max_num_phases,
)
from activault.store import ConfigError, Store, open_store, split_rows

from . import console

__all__ = ["SHOWN_PHASES", "FoundPhases", "find_phases", "rows_of", "training_similarity"]

SHOWN_PHASES = (2, 3, 4)
SIMILARITY_ROWS = 10_000
"""Images behind similarity and phases, the paper's number."""
NUM_RESAMPLES = 200
"""Bootstrap resamples of the images behind a cut's stability: a standard error of at most 3.5 %."""


@dataclass(frozen=True, kw_only=True)
class FoundPhases:
    """A store's phases for several k, and what they were cut from."""

    similarity: LayerSimilarity
    phases: tuple[Phases, ...]
    """One division for every k that was asked for, with the stability of its cuts."""
    curve: tuple[Phases, ...]
    """The best division for every possible k."""
    num_rows: int
    """Images of the training split that were looked at."""
    num_resamples: int = NUM_RESAMPLES
    """Bootstrap resamples behind the stability of the cuts."""

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON takes it."""
        return {
            "num_rows": self.num_rows,
            "layers": list(self.similarity.layers),
            "similarity": self.similarity.matrix.tolist(),
            "phases": [dataclasses.asdict(phases) for phases in self.phases],
            "cost_curve": [
                {"k": phases.k, "value": phases.value, "cuts": phases.cuts} for phases in self.curve
            ],
        }


def find_phases(
    path: Path | str, *, k: Sequence[int] | None = None, cost: Cost = "ncut", quiet: bool = False
) -> FoundPhases:
    """Similarity and phases from the training rows, so that a recipe's phases never see a test image.

    Without `k`, the usual ones that fit the layers.

    Raises:
        ConfigError: a k does not fit the layers.
    """
    if k is not None and not k:
        raise ConfigError("k is one or more numbers of phases, such as --k 2 3; got none")
    similarity = training_similarity(open_store(path), quiet=quiet)
    most = max_num_phases(len(similarity.blocks_only().layers), cost)
    wanted = sorted(set(k)) if k is not None else [number for number in SHOWN_PHASES if number <= most]
    return FoundPhases(
        similarity=similarity,
        phases=tuple(_stable(similarity, number, cost) for number in wanted),
        curve=cost_curve(similarity, cost),
        num_rows=similarity.num_rows,
    )


def training_similarity(store: Store, *, quiet: bool = False) -> LayerSimilarity:
    """Layer similarity over the training rows, or over a seeded choice of them where there are many."""
    rows = rows_of(store, "train")
    if len(rows) > SIMILARITY_ROWS:
        rows = np.sort(np.random.default_rng(0).choice(rows, SIMILARITY_ROWS, replace=False))
    with console.progress_bar("similarity", "rows", quiet=quiet) as advance:
        return layer_similarity(store, rows, progress=advance)


def _stable(similarity: LayerSimilarity, k: int, cost: Cost) -> Phases:
    phases = max_cut_phases(similarity, k, cost)
    return dataclasses.replace(phases, stability=cut_stability(similarity, phases, NUM_RESAMPLES))


def rows_of(store: Store, split: Literal["train", "test"]) -> npt.NDArray[np.int64]:
    """Good rows of one split.

    Raises:
        ConfigError: there are none.
    """
    rows = split_rows(store.samples, store.valid_rows)
    if not len(rows[split]):
        counts = ", ".join(f"{len(found):,} {name}" for name, found in rows.items())
        raise ConfigError(
            f"this needs rows of the {split} split, and {store.path} has {counts}; the split is the first "
            "folder of a key, train or test, or drawn by key where no key has such a folder"
        )
    return rows[split]
