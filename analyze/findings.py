"""Sentences about numbers: what the analyses found here, to stand beside what is published."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .dynamics import Curve, Dynamics, Measure
from .inputs import ProbeRow, R2Row
from .panels import KIND_NAMES, percent
from .phases import Phases
from .similarity import LayerSimilarity

__all__ = [
    "convergence_findings",
    "phase_findings",
    "probe_findings",
    "r2_findings",
    "rank_findings",
    "similarity_findings",
    "speed_findings",
    "written",
]


def written(value: float | None, digits: int = 2) -> str:
    """A number with a true minus sign; a dash for none."""
    if value is None or not math.isfinite(value):
        return "\N{EN DASH}"
    return f"{value:.{digits}f}".replace("-", "\N{MINUS SIGN}")


def similarity_findings(similarity: LayerSimilarity) -> list[str]:
    """The nearest and the farthest neighbours, and how far the ends are apart."""
    blocks = similarity.blocks_only()
    matrix, layers = blocks.matrix, blocks.layers
    steps = [(float(matrix[i, i + 1]), layers[i], layers[i + 1]) for i in range(len(layers) - 1)]
    if not steps:
        return []
    (low, a, b), (high, c, d) = min(steps), max(steps)
    first, last = layers[0], layers[-1]
    return [
        f"Neighbouring layers are most alike at {c} and {d} (S = {written(high)}), "
        f"least at {a} and {b} ({written(low)}).",
        f"Layer {first} and layer {last} stand at S = {written(float(matrix[0, -1]))}.",
    ]


def phase_findings(found: Sequence[Phases], num_resamples: int) -> list[str]:
    """Cuts, their stability and the runner-up, a sentence for each k."""
    lines = []
    for phases in found:
        text = f"k = {phases.k}: {_cuts(phases.cuts)}"
        if phases.stability:
            shares = ", ".join(f"{100 * share:.0f} %" for share in phases.stability)
            text += f", found again in {shares} of {num_resamples} resamples of the images"
        if phases.second_cuts is not None and phases.second_value is not None:
            gap = phases.second_value - phases.value
            text += f"; the next best, {_cuts(phases.second_cuts)}, costs {gap:.3f} more"
        lines.append(text + ".")
    return lines


def _cuts(cuts: tuple[int, ...]) -> str:
    return "one phase" if not cuts else "cut after " + ", ".join(map(str, cuts))


def convergence_findings(dynamics: Dynamics) -> list[str]:
    """Where each kind's direction comes to agree with its last one, and how its norm grows."""
    lines = []
    for curve in dynamics.of("convergence"):
        norm = dynamics.curve("norm", curve.kind)
        lines.append(
            f"{KIND_NAMES[curve.kind]}: {_half(curve)}, {written(curve.mean[-2])} "
            f"at layer {curve.layers[-2]}; "
            f"norm {written(norm.mean[0], 1)} at layer {norm.layers[0]}, {written(norm.mean[-1], 1)} "
            f"at layer {norm.layers[-1]}."
        )
    return lines


def _half(curve: Curve) -> str:
    for layer, value in zip(curve.layers, curve.mean, strict=True):
        if value >= 0.5 and layer != curve.layers[-1]:
            return f"0.5 is reached at layer {layer}"
    return "under 0.5 until the last layer"


def speed_findings(dynamics: Dynamics, cuts: Sequence[int]) -> list[str]:
    """Mean and largest turn of each kind, and the turns just after the cuts against the others."""
    lines = []
    for curve in dynamics.of("speed"):
        degrees = [math.degrees(value) for value in curve.mean]
        top = max(range(len(degrees)), key=degrees.__getitem__)
        text = (
            f"{KIND_NAMES[curve.kind]}: {sum(degrees) / len(degrees):.0f}\N{DEGREE SIGN} a layer on average, "
            f"the sharpest turn {degrees[top]:.0f}\N{DEGREE SIGN} into layer {curve.layers[top]}"
        )
        after = [
            value for layer, value in zip(curve.layers, degrees, strict=True) if _starts(curve, layer, cuts)
        ]
        others = [value for value in degrees if value not in after]
        if after and others:
            text += (
                f"; {sum(after) / len(after):.0f}\N{DEGREE SIGN} into a new phase, "
                f"{sum(others) / len(others):.0f}\N{DEGREE SIGN} elsewhere"
            )
        lines.append(text + ".")
    return lines


def _starts(curve: Curve, layer: int, cuts: Sequence[int]) -> bool:
    place = curve.layers.index(layer)
    return place > 0 and curve.layers[place - 1] in cuts


def rank_findings(dynamics: Dynamics) -> list[str]:
    """Highest and last values of the stable rank and the energy rank."""
    lines = []
    names: dict[Measure, str] = {
        "stable_rank": "Stable rank",
        "energy_rank": "Entropy rank of s\N{SUPERSCRIPT TWO}",
    }
    for measure, name in names.items():
        curve = dynamics.curve(measure)
        top = max(range(len(curve.mean)), key=curve.mean.__getitem__)
        lines.append(
            f"{name}: at most {written(curve.mean[top], 1)} (layer {curve.layers[top]}), "
            f"{written(curve.mean[-1], 1)} at layer {curve.layers[-1]}."
        )
    return lines


def r2_findings(rows: Sequence[R2Row]) -> list[str]:
    """Lowest and last R2 of each kind."""
    lines = []
    for kind in dict.fromkeys(row.kind for row in rows):
        measured = [(row.value, row.layer) for row in rows if row.kind == kind and row.value is not None]
        if measured:
            low, layer = min(measured)
            last, end = max(measured, key=lambda pair: pair[1])
            lines.append(
                f"{KIND_NAMES.get(kind, kind)}: lowest {written(low)} at layer {layer}, "
                f"{written(last)} at layer {end}."
            )
        constant = [row.layer for row in rows if row.kind == kind and row.value is None]
        if constant:
            name, where = KIND_NAMES.get(kind, kind), ", ".join(map(str, constant))
            lines.append(f"{name}: constant at layer {where}, where R\N{SUPERSCRIPT TWO} means nothing.")
    return lines


def probe_findings(rows: Sequence[ProbeRow]) -> list[str]:
    """What the surrogate keeps under each head, and whether it beats every baseline there."""
    lines = []
    for head in dict.fromkeys(row.head for row in rows):
        mine = {row.name: row for row in rows if row.head == head}
        surrogate = mine.get("surrogate")
        baselines = [row for name, row in mine.items() if name not in ("teacher", "surrogate")]
        if surrogate is None:
            continue
        kept = percent(surrogate.retention)
        text = f"With the {head} head the surrogate keeps {kept} of the teacher's accuracy"
        if baselines:
            best = max(baselines, key=lambda row: row.accuracy)
            verb = "above" if surrogate.accuracy > best.accuracy else "not above"
            text += f", {verb} the best baseline ({best.name}, {percent(best.retention)})"
        lines.append(text + ".")
    return lines
