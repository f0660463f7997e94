"""How good a stage's module is on rows that it does not learn from, read from the store.

    stage, held-out rows  ->  RolloutMetrics of the layers that the stage makes

The closed loop is rolled out from layer 0 over all layers, a phase from the teacher's layer before it over
its own. The rows are held out of the training rows by a hash of their keys, so that no row changes sides
when a store grows; test rows stay unseen.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch

from activault.store import Store, hold_out_rows
from activault.store.errors import ConfigError, RunError

from .distributed import ALONE, Peers
from .finite import SLOWER
from .metrics import R2Accumulator, RolloutMetrics
from .stages import Stage

__all__ = ["hold_out", "validate"]

Rows = npt.NDArray[np.int64]
BATCH_ROWS = 32


def hold_out(store: Store, rows: Rows, part: float) -> tuple[Rows, Rows]:
    """Rows to learn from, in their order, and held-out rows by ascending hash (`hold_out_rows`).

    Raises:
        ConfigError: all rows, or none, would be held out.
    """
    if not part:
        return rows, rows[:0]
    kept, held = hold_out_rows(store.samples, rows, part)
    if not len(kept) or not len(held):
        raise ConfigError(
            f"validation = {part} holds out {len(held)} of {len(rows)} training rows by the hashes of their "
            "keys; give a part that leaves rows on both sides"
        )
    return kept, held


@torch.no_grad()
def validate(
    stage: Stage, store: Store, rows: Rows, *, device: torch.device, peers: Peers = ALONE
) -> RolloutMetrics:
    """Figures of the stage's roll-out on the first `validation_rows` of these rows, each process a part.

    Memory is 32 rows of the stage's layers, twice. The module is in training mode again afterwards.

    Raises:
        RunError: the roll-out does not stay finite, which losses by teacher forcing do not show.
    """
    chosen = np.sort(rows[: stage.config.validation_rows])[peers.rank :: peers.world]
    places = [list(stage.layers).index(layer) for layer in stage.targets]
    counted = R2Accumulator(store.layout, stage.targets, store.dim)
    stage.module.eval()
    for first in range(0, len(chosen), BATCH_ROWS):
        layers = store.read(chosen[first : first + BATCH_ROWS], stage.layers, "all")
        tokens = torch.from_numpy(layers).to(device)
        counted.update(tokens[:, places], stage.rollout(tokens))
    stage.module.train()
    first_one, *others = peers.gathered(counted)
    for other in others:
        first_one.merge(other)
    measured = first_one.result()
    if not math.isfinite(measured.mean_r2):
        raise RunError(
            f"validation needs a roll-out that stays finite; that of stage {stage.name} has a mean R2 of "
            f"{measured.mean_r2} on {measured.num_rows} held-out rows; {SLOWER}"
        )
    return measured
