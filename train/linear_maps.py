"""The linear baselines: what a surrogate without attention or non-linearity would reach, in closed form.

    store (all layers), rows, phases  ->  LinearMaps: layer 0 (batch, tokens, dim) -> layers 1 .. L

Two kinds, each with a map of its own for every token kind (CLS, registers, patches), since they move apart:

    linear   one map a span: layer l of a phase straight from the layer before the phase, x_l = M_l x_a. The
             last one is the best linear map of the whole span; those in between are its inner layers.
    power    one map K a phase, fitted to all its steps, applied again and again: x_l = K^(l - a) x_a.

Phases are chained as a surrogate's are: a phase goes on from what the one before it made. Both kinds come
from one pass over the rows, each fifth batch of which chooses the ridge and is then fitted too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from activault.store import Store
from activault.store.errors import ConfigError
from activault.store.layout import TokenKind, TokenLayout, require_all_layers, require_all_tokens

from .linear_moments import AffineMap, Moments, best_ridge, solve
from .phases import Phase, runs_of
from .rollout import RolloutModel

__all__ = ["LinearKind", "LinearMaps", "fit_linear_maps"]

LinearKind = Literal["linear", "power"]
HELD_OUT = 5
"""One batch in so many chooses the ridge."""


@dataclass(frozen=True, kw_only=True)
class _Step:
    """One map: which layers it is fitted to take to which."""

    kind: LinearKind
    pairs: tuple[tuple[int, int], ...]
    """Layers it starts from and makes."""

    @property
    def targets(self) -> list[int]:
        """Layers that it makes."""
        return [target for _, target in self.pairs]


class LinearMaps(RolloutModel):
    """The layers 1 to L by linear maps, one a step and token kind."""

    def __init__(
        self, layout: TokenLayout, sources: dict[int, int], maps: dict[int, dict[TokenKind, AffineMap]]
    ) -> None:
        super().__init__()
        self.layout = layout
        self.num_layers = len(sources)
        self.sources = sources
        """The layer that each layer is made from."""
        for layer, by_kind in maps.items():
            for kind, found in by_kind.items():
                for name in ("weight", "centre", "bias"):
                    self.register_buffer(f"{name}_{layer}_{kind}", getattr(found, name).float())

    def rollout(
        self, tokens: Float[Tensor, "batch tokens dim"], start: int = 0, stop: int | None = None
    ) -> Iterator[Float[Tensor, "batch tokens dim"]]:
        """Layers start+1 .. stop; maps of spans start where a phase does.

        Raises:
            ConfigError: not 0 <= start < stop <= L, or a layer's source lies before `start`.
        """
        start, stop = self.checked_span(start, stop)
        made = {start: tokens}
        for layer in range(start + 1, stop + 1):
            source = self.sources[layer]
            if source not in made:
                raise ConfigError(
                    f"layer {layer} is made straight from layer {source}, which lies before the start; "
                    f"start from layer {source}, got {start}"
                )
            made[layer] = self._mapped(made[source], layer)
            needed = {self.sources[later] for later in range(layer + 1, stop + 1)}
            made = {number: kept for number, kept in made.items() if number in needed or number == layer}
            yield made[layer]

    def _mapped(self, tokens: Tensor, layer: int) -> Tensor:
        parts = []
        for kind in self.layout.kinds:
            weight, centre, bias = (
                getattr(self, f"{name}_{layer}_{kind}") for name in ("weight", "centre", "bias")
            )
            parts.append((tokens[:, self.layout.span(kind)] - centre) @ weight.T + bias)
        return torch.cat(parts, dim=1)


def fit_linear_maps(
    store: Store,
    rows: np.ndarray,
    phases: Sequence[Phase],
    *,
    kinds: Sequence[LinearKind] = ("linear", "power"),
    ridge: float | None = None,
    batch_size: int = 16,
    device: torch.device | str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> dict[LinearKind, LinearMaps]:
    """Fit the baselines to rows of a store, in one pass.

    `phases` are the target layers of each phase, as `RaptorConfig.phases` has them. `ridge` is relative to
    the mean variance of what a map starts from; None chooses one a map. Memory is a batch of all layers and,
    on `device`, which has to know float64, 4 dim^2 values for each map and token kind: 0.85 GB for both kinds
    of a ViT-B with three phases. `progress` is told (rows done, rows in all).

    Raises:
        ConfigError: a layer or a token kind is not in the store, there are no rows, or the ridge is negative.
    """
    require_all_layers(store.layers, store.manifest.teacher.num_blocks, "a linear map of every layer")
    require_all_tokens(store.layout, store.kinds, "a linear map of every token")
    steps = [step for kind in kinds for step in _steps(kind, phases)]
    sums = _summed(store, rows, steps, batch_size, torch.device(device), progress)
    models: dict[LinearKind, LinearMaps] = {}
    for kind in kinds:
        own = [step for step in steps if step.kind == kind]
        maps = {layer: {} for layer in store.layers if layer}  # type: dict[int, dict[TokenKind, AffineMap]]
        for step in own:
            for token_kind in store.layout.kinds:
                found = _solved(*sums[step, token_kind], ridge)
                for layer in step.targets:
                    maps[layer][token_kind] = found
        sources = {target: source for step in own for source, target in step.pairs}
        models[kind] = LinearMaps(store.layout, sources, maps)
    return models


def _steps(kind: LinearKind, phases: Sequence[Phase]) -> list[_Step]:
    """The maps of one kind; a phase with holes starts anew after each hole."""
    if kind == "power":
        return [_Step(kind=kind, pairs=tuple((layer - 1, layer) for layer in phase)) for phase in phases]
    runs = [run for phase in phases for run in runs_of(phase)]
    return [_Step(kind=kind, pairs=((run[0] - 1, layer),)) for run in runs for layer in run]


_Sums = dict[tuple[_Step, TokenKind], tuple[Moments, Moments]]
"""Moments of the rows that are fitted first, and of those that choose the ridge."""


def _summed(
    store: Store,
    rows: np.ndarray,
    steps: Sequence[_Step],
    batch_size: int,
    device: torch.device,
    progress: Callable[[int, int], None] | None,
) -> _Sums:
    """One pass over the rows."""
    sums: _Sums = {
        (step, kind): (_about_means(store, step, kind, device), _about_means(store, step, kind, device))
        for step in steps
        for kind in store.layout.kinds
    }
    num_layers = store.manifest.teacher.num_blocks
    for number, first in enumerate(range(0, len(rows), batch_size)):
        read = store.read(rows[first : first + batch_size], range(num_layers + 1), "all")
        part = int(number % HELD_OUT == HELD_OUT - 1)
        for kind in store.layout.kinds:
            layers = torch.from_numpy(read[:, :, store.layout.span(kind)]).to(device).double()
            flat = layers.transpose(0, 1).flatten(1, 2)
            for step in steps:
                for source, target in step.pairs:
                    sums[step, kind][part].update(flat[source], flat[target])
        if progress:
            progress(min(first + batch_size, len(rows)), len(rows))
    return sums


def _about_means(store: Store, step: _Step, kind: TokenKind, device: torch.device) -> Moments:
    """Empty moments about the store's own means."""
    means = [
        np.mean([store.statistics(layer, kind).mean for layer in layers], axis=0)
        for layers in zip(*step.pairs, strict=True)
    ]
    origins = [torch.from_numpy(mean).double().to(device) for mean in means]
    return Moments(origins[0], origins[1])


def _solved(fitted: Moments, held_out: Moments, ridge: float | None) -> AffineMap:
    """The map of all rows, under the given ridge or the one that the held-out rows choose."""
    if ridge is None:
        ridge = best_ridge(fitted, held_out) if fitted.count and held_out.count else 1e-4
    return solve(fitted + held_out, [ridge])[0]
