"""The report's sections, one an analysis: its words, figures, findings and numbers, put together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from . import findings, panels, prose
from .dynamics import Measure
from .findings import written
from .inputs import ReportInputs
from .page import Figure, Section, Table
from .phases import Cost, max_cut_phases, max_num_phases

__all__ = ["run_sections", "store_sections"]

BAND = "Bands, where wide enough to see, are 95 % intervals of the mean over images."


def store_sections(inputs: ReportInputs) -> Iterator[Section]:
    """The sections that need no run; a surrogate stands beside the teacher where there is one."""
    yield _similarity(inputs)
    if inputs.analysis.phases:
        yield _phases(inputs)
    yield _convergence(inputs)
    yield _speed(inputs)
    yield _rank(inputs)


def run_sections(inputs: ReportInputs) -> Iterator[Section]:
    """The sections that come from a run, as far as its results were given."""
    if inputs.probes:
        yield _probes(inputs)
    if inputs.r2:
        yield _r2(inputs)
    if inputs.losses:
        yield _training(inputs)


def _section(
    slug: str,
    words: prose.Prose,
    figures: Sequence[Figure],
    here: Sequence[str] = (),
    table: Table | None = None,
    folded: bool = True,
) -> Section:
    return Section(
        slug=slug,
        title=words.title,
        asks=words.asks,
        figures=figures,
        reading=words.reading,
        published=words.published,
        here=here,
        table=table,
        folded=folded,
    )


def _models_caption(inputs: ReportInputs) -> str:
    return "Solid: teacher. Dashed: surrogate, rolled out from layer 0. " if inputs.analysis.surrogate else ""


def _similarity(inputs: ReportInputs) -> Section:
    analysis, spans = inputs.analysis, inputs.spans
    svg = panels.similarity_panel(analysis.teacher, spans, "similarity-teacher", "teacher")
    figures = [Figure(svg=svg, caption="Teacher. Frames: the phases.")]
    if analysis.surrogate:
        svg = panels.similarity_panel(analysis.surrogate, spans, "similarity-surrogate", "surrogate")
        figures.append(Figure(svg=svg, caption="Surrogate, rolled out from layer 0; the same frames."))
    similarity = analysis.teacher.similarity
    rows = [
        [str(layer), *(written(value) for value in values)]
        for layer, values in zip(similarity.layers, similarity.matrix.tolist(), strict=True)
    ]
    table = Table(heads=["layer", *map(str, similarity.layers)], rows=rows)
    return _section("similarity", prose.SIMILARITY, figures, findings.similarity_findings(similarity), table)


def _phases(inputs: ReportInputs) -> Section:
    analysis, chosen = inputs.analysis, len(inputs.cuts) + 1
    strips = (
        "One strip a number of phases. Over each cut: in how many of "
        f"{analysis.num_resamples} bootstrap resamples of the images it is found again."
    )
    figures = [
        Figure(svg=panels.phase_panel(analysis.phases, "phases-strips"), caption=strips),
        Figure(
            svg=panels.cost_panel(analysis.curve, chosen, "phases-cost"),
            caption=f"Ringed: k = {chosen}, as in the other figures.",
        ),
    ]
    here = findings.phase_findings(analysis.phases, analysis.num_resamples)
    return _section("phases", prose.PHASES, figures, here, _cost_table(inputs), folded=False)


def _cost_table(inputs: ReportInputs) -> Table:
    """Cuts for every k under every cost: they need not agree, and the reader should see it."""
    similarity = inputs.phase_similarity or inputs.analysis.teacher.similarity
    used = inputs.analysis.curve[0].cost
    num = len(similarity.blocks_only().layers)
    costs: list[Cost] = ["ncut", "sum", "greedy"]
    rows = []
    for phases in inputs.analysis.phases:
        cells = [str(phases.k)]
        for cost in costs:
            fits = phases.k <= max_num_phases(num, cost)
            cuts = max_cut_phases(similarity, phases.k, cost).cuts if fits else ()
            cells.append("after " + ", ".join(map(str, cuts)) if cuts else "\N{EN DASH}")
        rows.append(cells)
    return Table(
        heads=["k", *(f"by {cost}" + (", used here" if cost == used else "") for cost in costs)], rows=rows
    )


def _convergence(inputs: ReportInputs) -> Section:
    analysis, spans = inputs.analysis, inputs.spans
    title = "cosine with the token's direction at the last layer"
    gamma = panels.measure_panel(analysis, "convergence", spans, "convergence", y_title=title)
    norms = panels.measure_panel(
        analysis, "norm", spans, "norms", y_title="norm of a token (logarithmic)", logarithmic=True
    )
    caption = _models_caption(inputs)
    figures = [
        Figure(svg=gamma, caption=f"{caption}{BAND}"),
        Figure(svg=norms, caption=f"{caption}Lengths of the same tokens."),
    ]
    here = findings.convergence_findings(analysis.teacher.dynamics)
    return _section(
        "convergence", prose.CONVERGENCE, figures, here, _measure_table(inputs, "convergence", digits=3)
    )


def _speed(inputs: ReportInputs) -> Section:
    title = "turn from the layer before, in degrees"
    svg = panels.measure_panel(inputs.analysis, "speed", inputs.spans, "speed", y_title=title)
    figures = [Figure(svg=svg, caption=f"{_models_caption(inputs)}{BAND}")]
    here = findings.speed_findings(inputs.analysis.teacher.dynamics, inputs.cuts)
    table = _measure_table(inputs, "speed", digits=1, scale=180 / math.pi)
    return _section("speed", prose.SPEED, figures, here, table)


def _rank(inputs: ReportInputs) -> Section:
    dynamics = inputs.analysis.teacher.dynamics
    curve = dynamics.curve("stable_rank")
    caption = f"{_models_caption(inputs)}Means over {curve.num_rows} images, evenly spread over the rows."
    figures = [Figure(svg=panels.rank_panel(inputs.analysis, inputs.spans, "rank"), caption=caption)]
    columns = [dynamics.curve(name).mean for name in panels.RANK_LINES]
    table = Table(
        heads=["layer", *(name for name, _ in panels.RANK_LINES.values())],
        rows=[
            [str(layer), *(written(value) for value in values)]
            for layer, *values in zip(curve.layers, *columns, strict=True)
        ],
    )
    return _section("rank", prose.RANK, figures, findings.rank_findings(dynamics), table)


def _measure_table(inputs: ReportInputs, measure: Measure, digits: int, scale: float = 1.0) -> Table:
    """One row a layer, one column a model and token kind."""
    models = [("teacher", inputs.analysis.teacher), ("surrogate", inputs.analysis.surrogate)]
    columns = [(name, curve) for name, model in models if model for curve in model.dynamics.of(measure)]
    rows = [
        [str(layer), *(written(scale * curve.mean[place], digits) for _, curve in columns)]
        for place, layer in enumerate(columns[0][1].layers)
    ]
    heads = ["layer", *(f"{name}, {panels.KIND_NAMES[curve.kind]}" for name, curve in columns)]
    return Table(heads=heads, rows=rows)


def _training(inputs: ReportInputs) -> Section:
    figures = []
    for place, stage in enumerate(dict.fromkeys(curve.stage for curve in inputs.losses)):
        mine = [curve for curve in inputs.losses if curve.stage == stage]
        caption = f"{stage[:1].upper()}{stage[1:]}; logarithmic axis."
        figures.append(Figure(svg=panels.loss_panel(mine, f"loss-{place}"), caption=caption))
    return _section("training", prose.TRAINING, figures)


def _r2(inputs: ReportInputs) -> Section:
    kinds = list(dict.fromkeys(row.kind for row in inputs.r2))
    found = {(row.layer, row.kind): row.value for row in inputs.r2}
    rows = []
    for layer in sorted({row.layer for row in inputs.r2}):
        values = [found.get((layer, kind)) for kind in kinds]
        rows.append([str(layer), *("constant" if value is None else written(value, 3) for value in values)])
    svg = panels.r2_panel(inputs.r2, inputs.spans, "r2")
    cut = any(row.value is not None and row.value < panels.R2_FLOOR for row in inputs.r2)
    note = f" The axis is cut at {written(panels.R2_FLOOR, 0)}; arrows give what lies below." if cut else ""
    figures = [Figure(svg=svg, caption=f"The firm line is 0: no better than each channel's mean.{note}")]
    table = Table(heads=["layer", *(panels.KIND_NAMES.get(kind, kind) for kind in kinds)], rows=rows)
    return _section("r2", prose.R2, figures, findings.r2_findings(inputs.r2), table)


def _probes(inputs: ReportInputs) -> Section:
    rows = [
        [row.name, row.head, written(row.accuracy, 4), written(row.retention, 4)] for row in inputs.probes
    ]
    caption = "Grey: teacher. Green: surrogate. Amber: baselines that learned nothing."
    figures = [Figure(svg=panels.probe_panel(inputs.probes, "probes"), caption=caption)]
    table = Table(heads=["model", "head", "accuracy", "retention"], rows=rows)
    return _section("probes", prose.PROBES, figures, findings.probe_findings(inputs.probes), table)
