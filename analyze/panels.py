"""Which numbers go into which figure. In: results; out: SVG elements (see `figures`)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .dynamics import Curve, Measure
from .figures import draw_bars, draw_lines, draw_matrix, draw_strips
from .inputs import LossCurve, ProbeRow, R2Row
from .marks import Bar, Line, LineChart
from .phases import Phases
from .study import ModelAnalysis, StoreAnalysis

__all__ = [
    "KIND_NAMES",
    "cost_panel",
    "loss_panel",
    "measure_panel",
    "percent",
    "phase_panel",
    "probe_panel",
    "r2_panel",
    "rank_panel",
    "similarity_panel",
]

KIND_NAMES = {"cls": "CLS", "registers": "registers", "patches": "patches", "all": "all tokens"}
KIND_ROLES = {"cls": "vermillion", "registers": "purple", "patches": "blue", "all": "ink"}
RANK_LINES: dict[Measure, tuple[str, str]] = {
    "stable_rank": ("stable", "green"),
    "energy_rank": ("entropy, s\N{SUPERSCRIPT TWO}", "purple"),
    "entropy_rank": ("entropy, s", "blue"),
}
STAGE_ROLES = ("blue", "vermillion", "green", "purple", "gold", "grey")
MODEL_KEY = {"teacher": False, "surrogate": True}
# R2 below this says no more than "far off"; the axis ends here and arrows give the number.
R2_FLOOR = -1.0
MAX_POINTS = 300


def similarity_panel(model: ModelAnalysis, spans: Sequence[tuple[int, int]], slug: str, who: str) -> str:
    """Heat map of a model's layer similarity."""
    similarity = model.similarity
    label = (
        f"Similarity of the {who}'s layers, a matrix of {len(similarity.layers)} by {len(similarity.layers)}"
    )
    return draw_matrix(similarity.matrix, similarity.layers, spans, slug=slug, label=label)


def phase_panel(found: Sequence[Phases], slug: str) -> str:
    """The divisions into k phases, one strip each, with the stability of every cut."""
    rows = [
        (f"k = {phases.k}", phases.spans, [f"{100 * s:.0f} %" for s in phases.stability or ()])
        for phases in found
    ]
    spoken = "; ".join(f"k = {phases.k}: cuts after layers {phases.cuts}" for phases in found)
    return draw_strips(rows, slug=slug, label=f"Phases. {spoken}")


def cost_panel(curve: Sequence[Phases], chosen: int, slug: str) -> str:
    """Cost of the best division against k, the chosen k ringed."""
    ks = [phases.k for phases in curve]
    cost = curve[0].cost
    chart = LineChart(
        lines=[Line(name=cost, role="green", x=ks, y=[phases.value for phases in curve])],
        x_title="number of phases k",
        y_title="cost of the best division, summed over its phases",
        highlight=chosen,
    )
    return draw_lines(chart, slug=slug, label=f"Cost against the number of phases; k = {chosen} is ringed")


def measure_panel(
    analysis: StoreAnalysis,
    measure: Measure,
    spans: Sequence[tuple[int, int]],
    slug: str,
    *,
    y_title: str,
    logarithmic: bool = False,
) -> str:
    """One measure of the dynamics by token kind; teacher solid, surrogate dashed; angles in degrees."""
    chart = LineChart(
        lines=[
            _curve_line(curve, KIND_NAMES[curve.kind], KIND_ROLES[curve.kind], dashed)
            for model, dashed in _models(analysis)
            for curve in model.dynamics.of(measure)
        ],
        y_title=y_title,
        spans=spans,
        floor=0.0 if measure == "speed" else None,
        baseline=0.0 if measure == "convergence" else None,
        logarithmic=logarithmic,
        key=MODEL_KEY if analysis.surrogate else None,
    )
    return draw_lines(chart, slug=slug, label=f"{y_title}, against the layer, by token kind")


def rank_panel(analysis: StoreAnalysis, spans: Sequence[tuple[int, int]], slug: str) -> str:
    """Stable rank and both entropy ranks of the updates; teacher solid, surrogate dashed."""
    lines = [
        _curve_line(model.dynamics.curve(measure), name, role, dashed)
        for model, dashed in _models(analysis)
        for measure, (name, role) in RANK_LINES.items()
    ]
    title = "rank of the updates of one image's tokens"
    key = MODEL_KEY if analysis.surrogate else None
    chart = LineChart(lines=lines, y_title=title, spans=spans, logarithmic=True, key=key)
    return draw_lines(chart, slug=slug, label=f"{title}, against the layer")


def r2_panel(rows: Sequence[R2Row], spans: Sequence[tuple[int, int]], slug: str) -> str:
    """R2 of the roll-out against the layer, by token kind; below `R2_FLOOR` as arrows with numbers."""
    lines = []
    # All tokens first, so that the kinds are drawn over their mean.
    for kind in sorted(dict.fromkeys(row.kind for row in rows), key=lambda kind: kind != "all"):
        mine = sorted((row for row in rows if row.kind == kind), key=lambda row: row.layer)
        x, y = [row.layer for row in mine], [row.value for row in mine]
        lines.append(Line(name=KIND_NAMES.get(kind, kind), role=KIND_ROLES.get(kind, "gold"), x=x, y=y))
    lowest = min((row.value for row in rows if row.value is not None), default=0.0)
    chart = LineChart(
        lines=lines,
        y_title="R\N{SUPERSCRIPT TWO} of the closed loop (1 is perfect, 0 the mean)",
        spans=spans,
        floor=R2_FLOOR if lowest < R2_FLOOR else min(0.0, math.floor(lowest * 10) / 10),
        ceiling=1.0,
        baseline=0.0,
    )
    return draw_lines(chart, slug=slug, label="R2 of the roll-out against the layer, by token kind")


def probe_panel(rows: Sequence[ProbeRow], slug: str) -> str:
    """Accuracy of every model under each head, with its retention written at the bar."""
    roles = {"teacher": "grey", "surrogate": "green"}
    bars = [
        Bar(
            group=f"{row.head} head",
            name=row.name,
            value=row.accuracy,
            text=f"{100 * row.accuracy:.1f} %" + _kept(row),
            role=roles.get(row.name, "amber"),
        )
        for head in dict.fromkeys(row.head for row in rows)
        for row in rows
        if row.head == head
    ]
    spoken = "; ".join(f"{bar.group}, {bar.name}: {bar.text}" for bar in bars)
    return draw_bars(bars, slug=slug, label=f"Probe accuracy. {spoken}", x_title="accuracy on the test rows")


def loss_panel(curves: Sequence[LossCurve], slug: str) -> str:
    """Training loss of one stage's curves against the step, on a logarithmic axis."""
    lines = [
        Line(name=curve.name, role=STAGE_ROLES[place % len(STAGE_ROLES)], x=x, y=y, marks=len(x) <= 60)
        for place, curve in enumerate(curves)
        for x, y in [_thinned(curve)]
    ]
    chart = LineChart(lines=lines, x_title="step", y_title="training loss", logarithmic=True)
    return draw_lines(chart, slug=slug, label=f"Training loss against the step: {curves[0].stage}")


def percent(share: float) -> str:
    """A share as people write it: `96 %`, and `99.7 %` where rounding would say 100."""
    return f"{100 * share:.0f} %" if not 0.995 <= share < 1 else f"{100 * share:.1f} %"


def _kept(row: ProbeRow) -> str:
    return "" if row.name == "teacher" else f" \N{MIDDLE DOT} keeps {percent(row.retention)}"


def _models(analysis: StoreAnalysis) -> list[tuple[ModelAnalysis, bool]]:
    surrogate = [(analysis.surrogate, True)] if analysis.surrogate else []
    return [(analysis.teacher, False), *surrogate]


def _curve_line(curve: Curve, name: str, role: str, dashed: bool) -> Line:
    scale = 180 / math.pi if curve.unit == "radian" else 1.0
    return Line(
        name=name,
        role=role,
        x=curve.layers,
        y=[scale * value for value in curve.mean],
        error=[1.96 * scale * value for value in curve.stderr],
        dashed=dashed,
    )


def _thinned(curve: LossCurve) -> tuple[list[float], list[float]]:
    """Steps and losses, means of equal runs of steps where there are more than a figure can show."""
    run = -(-len(curve.steps) // MAX_POINTS)
    parts = [slice(start, start + run) for start in range(0, len(curve.steps), run)]
    x = [math.fsum(curve.steps[part]) / len(curve.steps[part]) for part in parts]
    return x, [math.fsum(curve.values[part]) / len(curve.values[part]) for part in parts]
