"""All analyses of a store in one pass over its rows, for the teacher and, beside it, for a surrogate.

In: an open store; for a surrogate a callable from layer-0 tokens, float32 (B, T, D), to the layers 1..L
that it rolls out, float32 (B, L, T, D), tokens in the layout's order. Out: `StoreAnalysis`.

    analysis = analyze_store(store, ks=(2, 3, 4), surrogate=rollout)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from activault.store.errors import ConfigError
from activault.store.layout import TokenKind, require_all_tokens

from .dynamics import Dynamics, DynamicsSum
from .phases import Cost, Phases, cost_curve, cut_stability, max_cut_phases, max_num_phases
from .similarity import LayerSimilarity, SimilaritySum
from .source import DEFAULT_BYTES, LayerSource, RowArray, choose_layers, choose_rows, kind_spans, read_batches

__all__ = ["ModelAnalysis", "Rollout", "StoreAnalysis", "analyze_store"]

FloatArray = npt.NDArray[np.float32]
Rollout = Callable[[FloatArray], FloatArray]


@dataclass(frozen=True, kw_only=True)
class ModelAnalysis:
    """What was measured of one model's layers."""

    similarity: LayerSimilarity
    dynamics: Dynamics


@dataclass(frozen=True, kw_only=True)
class StoreAnalysis:
    """Everything that was measured in one pass over a store."""

    layers: tuple[int, ...]
    kinds: tuple[TokenKind, ...]
    num_rows: int
    """Images."""
    teacher: ModelAnalysis
    surrogate: ModelAnalysis | None
    """The same of the roll-outs, if there were any."""
    phases: tuple[Phases, ...]
    """The teacher's phases for every k that was asked for and fits, with the stability of their cuts."""
    curve: tuple[Phases, ...]
    """The best division for every possible number of phases."""
    num_resamples: int
    """Bootstrap resamples behind the stability."""

    def phases_of(self, k: int) -> Phases:
        """The division into `k` phases.

        Raises:
            KeyError: it was not asked for, or does not fit.
        """
        for phases in self.phases:
            if phases.k == k:
                return phases
        raise KeyError(f"no division into {k} phases was computed")


class _ModelSum:
    """Both measurements of one model, fed with the same batches."""

    def __init__(
        self, num_rows: int, layers: Sequence[int], spans: dict[TokenKind, slice], rank_rows: int, seed: int
    ) -> None:
        self.similarity = SimilaritySum(num_rows, layers, spans, seed)
        self.dynamics = DynamicsSum(num_rows, layers, spans, rank_rows)

    def add(self, start: int, tokens: FloatArray) -> None:
        self.similarity.add(start, tokens)
        self.dynamics.add(start, tokens)

    def result(self) -> ModelAnalysis:
        return ModelAnalysis(similarity=self.similarity.result(), dynamics=self.dynamics.result())


def analyze_store(
    store: LayerSource,
    rows: RowArray | Sequence[int] | None = None,
    surrogate: Rollout | None = None,
    *,
    ks: Sequence[int] = (2, 3, 4),
    cost: Cost = "ncut",
    num_resamples: int = 200,
    rank_rows: int = 256,
    memory_bytes: int = DEFAULT_BYTES,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> StoreAnalysis:
    """Similarity, phases and dynamics of the teacher's layers, and of a surrogate's, in one pass.

    Args:
        store: an open store; any set of two or more layers.
        rows: row numbers; by default all rows with a good image.
        surrogate: roll-out from layer 0; needs a store with all layers from 0 on and all token kinds.
        ks: numbers of phases; those that do not fit the layers are left out.
        cost: what the phases minimise (see `max_cut_phases`).
        num_resamples: bootstrap resamples for the stability of the cuts.
        rank_rows: images whose update ranks are computed.
        memory_bytes: budget for the rows in memory at a time.
        seed: of the bootstrap and its groups of images.
        progress: called with (rows done, rows in all).

    Raises:
        ConfigError: rows that are not there, too few layers, or a store that a surrogate cannot start from.
        IncompleteStoreError, CorruptStoreError: from reading.
    """
    chosen, layers = choose_rows(store, rows), choose_layers(store, None)
    if surrogate is not None:
        _check_rollout(store, layers)
    spans = kind_spans(store.layout, store.kinds)
    teacher, rolled = (_ModelSum(len(chosen), layers, spans, rank_rows, seed) for _ in range(2))
    for batch in read_batches(store, chosen, layers, store.kinds, memory_bytes):
        teacher.add(batch.start, batch.tokens)
        if surrogate is not None:
            rolled.add(batch.start, _roll(surrogate, batch.tokens))
        if progress is not None:
            progress(batch.stop, len(chosen))
    result = teacher.result()
    return StoreAnalysis(
        layers=layers,
        kinds=store.kinds,
        num_rows=len(chosen),
        teacher=result,
        surrogate=rolled.result() if surrogate is not None else None,
        phases=_stable_phases(result.similarity, ks, cost, num_resamples, seed),
        curve=cost_curve(result.similarity, cost),
        num_resamples=num_resamples,
    )


def _stable_phases(
    similarity: LayerSimilarity, ks: Sequence[int], cost: Cost, num_resamples: int, seed: int
) -> tuple[Phases, ...]:
    most = max_num_phases(len(similarity.blocks_only().layers), cost)
    found = [max_cut_phases(similarity, k, cost) for k in sorted(set(ks)) if k <= most]
    return tuple(
        dataclasses.replace(phases, stability=cut_stability(similarity, phases, num_resamples, seed))
        for phases in found
    )


def _check_rollout(store: LayerSource, layers: tuple[int, ...]) -> None:
    if layers != tuple(range(len(layers))):
        raise ConfigError(
            "a surrogate is compared from layer 0 on, layer by layer; "
            f"this store keeps layers {', '.join(map(str, layers))}"
        )
    require_all_tokens(store.layout, store.kinds, "a surrogate's roll-out")


def _roll(surrogate: Rollout, tokens: FloatArray) -> FloatArray:
    """Layer 0 and the rolled-out layers, float32 (n, layers, tokens, D)."""
    later = surrogate(tokens[:, 0])
    expected = tokens[:, 1:].shape
    if later.shape != expected:
        raise ConfigError(f"a roll-out returns layers 1..L, shape {expected}; got {later.shape}")
    return np.concatenate([tokens[:, :1], later], axis=1)
