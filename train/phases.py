"""Which block makes which layer: phases as cuts, as groups of layers, or drawn as controls.

    cuts (7, 10) of 12 layers               ->  1-7, 8-10, 11-12
    groups ((1, 3, 5), (2, 4, 6))           ->  the same blocks take turns
    runs_of((2, 4, 5))                      ->  2-2, 4-5: the layers of a phase that follow one another

A phase is the target layers of one block, ascending; layers count from 1. The controls hold found phases
against chance: `random_cuts` keeps phases contiguous, `shuffled_groups` keeps only their lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from activault.store.errors import ConfigError

__all__ = [
    "Phase",
    "phases_of",
    "phases_of_cuts",
    "phases_of_groups",
    "random_cuts",
    "runs_of",
    "shuffled_groups",
    "spoken_phases",
]

Phase = range | tuple[int, ...]
"""Target layers of one block: a range where they follow one another."""


def phases_of(
    cuts: Sequence[int], groups: Sequence[Sequence[int]] | None, num_layers: int
) -> tuple[Phase, ...]:
    """Phases as groups where there are such, and as cuts otherwise.

    Raises:
        ValueError: they are not those of so many layers.
    """
    if groups is None:
        return phases_of_cuts(cuts, num_layers)
    return phases_of_groups(groups, num_layers)


def phases_of_cuts(cuts: Sequence[int], num_layers: int) -> tuple[range, ...]:
    """Contiguous phases; a cut ends a phase after its layer.

    Raises:
        ValueError: the cuts do not rise within 1 to L - 1.
    """
    inside = all(0 < cut < num_layers for cut in cuts)
    if list(cuts) != sorted(set(cuts)) or not inside:
        raise ValueError(f"cuts rise within 1-{num_layers - 1}; got {list(cuts)}")
    return tuple(range(first + 1, last + 1) for first, last in pairwise((0, *cuts, num_layers)))


def phases_of_groups(groups: Sequence[Sequence[int]], num_layers: int) -> tuple[Phase, ...]:
    """Any phases; each group names the layers that one block makes.

    Raises:
        ValueError: a group is empty or does not rise, or they do not name every layer once.
    """
    for group in groups:
        if not group or list(group) != sorted(set(group)):
            raise ValueError(f"a group names at least one layer, and its layers rise; got {list(group)}")
    named = sorted(layer for group in groups for layer in group)
    if named != list(range(1, num_layers + 1)):
        absent = sorted(set(range(1, num_layers + 1)) - set(named))
        several = sorted({layer for layer in named if named.count(layer) > 1})
        outside = sorted(set(named) - set(range(1, num_layers + 1)))
        raise ValueError(
            f"groups name every layer of 1-{num_layers} once; absent {absent}, named twice {several}, "
            f"outside {outside}"
        )
    return tuple(runs_of(group)[0] if len(runs_of(group)) == 1 else tuple(group) for group in groups)


def runs_of(phase: Sequence[int]) -> tuple[range, ...]:
    """The layers of a phase in stretches that follow one another; one stretch for a contiguous phase."""
    runs: list[range] = []
    for layer in phase:
        if runs and layer == runs[-1].stop:
            runs[-1] = range(runs[-1].start, layer + 1)
        else:
            runs.append(range(layer, layer + 1))
    return tuple(runs)


def random_cuts(num_layers: int, num_phases: int, seed: int) -> tuple[int, ...]:
    """Cuts drawn from all divisions into so many contiguous phases, each as likely as any other.

    Raises:
        ConfigError: there are more phases than layers.
    """
    if not 1 <= num_phases <= num_layers:
        raise ConfigError(f"1 to {num_layers} phases fit {num_layers} layers; got {num_phases}")
    drawn = np.random.default_rng(seed).choice(num_layers - 1, num_phases - 1, replace=False)
    return tuple(sorted(int(cut) + 1 for cut in drawn))


def shuffled_groups(phases: Sequence[Sequence[int]], seed: int) -> tuple[tuple[int, ...], ...]:
    """Groups of the same lengths whose layers are drawn anew, at least one of them with a hole.

    Raises:
        ConfigError: one phase, or two layers, cannot have a hole.
    """
    layers = sorted(layer for phase in phases for layer in phase)
    if len(phases) < 2 or len(layers) < 3 or all(len(phase) == 1 for phase in phases):
        raise ConfigError(
            "shuffled phases need two phases, one of them of two layers, among three layers or more; got "
            f"{spoken_phases(phases)}"
        )
    rng = np.random.default_rng(seed)
    while True:
        drawn = iter(rng.permutation(layers).tolist())
        groups = tuple(tuple(sorted(next(drawn) for _ in phase)) for phase in phases)
        if any(len(runs_of(group)) > 1 for group in groups):
            return groups


def spoken_phases(phases: Sequence[Sequence[int]]) -> str:
    """`1-7, 8-10, 11-12`; stretches of one phase are joined by `+`."""
    return ", ".join(
        "+".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs_of(phase))
        for phase in phases
    )
