"""What a sweep leaves to be read: its configurations side by side, as Markdown and as one drawing.

    outcomes  ->  OUT/results.md, OUT/comparison.svg

A configuration is what runs of several seeds share; its figures are `mean ± standard deviation (number)`.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from . import console
from .sweep_plan import SEED_LIKE
from .sweep_table import Outcome

__all__ = ["FIGURES", "configurations", "spoken", "write_pages"]

FIGURES = {
    "mean_r2": "R2, mean over layers",
    "frozen_retention": "frozen retention",
    "refitted_retention": "refitted retention",
}
"""What configurations are compared by; each at most 1 or little more."""
NONE = "-"
Values = dict[str, dict[str, list[float]]]


def configurations(outcomes: Sequence[Outcome]) -> Values:
    """By configuration and figure, the values of its finished seeds."""
    found: Values = {}
    for each in outcomes:
        for name, value in each.figures().items():
            if value is not None:
                found.setdefault(each.run.cell, {}).setdefault(name, []).append(value)
    return found


def spoken(name: str, values: Sequence[float]) -> str:
    """`0.931` or `93.1 %` for accuracies and retentions; of several seeds `93.1 ± 0.4 % (3)`."""
    percent = name.endswith(("retention", "accuracy"))
    scale, digits, unit = (100, 1, " %") if percent else (1, 3, "")
    mean = f"{scale * statistics.fmean(values):.{digits}f}".replace("-", "\N{MINUS SIGN}")
    if len(values) == 1:
        return f"{mean}{unit}"
    spread = f"{scale * statistics.stdev(values):.{digits}f}"
    return f"{mean} \N{PLUS-MINUS SIGN} {spread}{unit} ({len(values)})"


def write_pages(out: Path, title: str, outcomes: Sequence[Outcome]) -> None:
    """Write `results.md` and, where a run is finished, `comparison.svg`.

    Raises:
        RunError: a file cannot be written.
    """
    from activault.train.checkpoint import write_atomically

    page = "\n".join(_page(title, outcomes))
    write_atomically(out / "results.md", lambda temporary: temporary.write_text(page, encoding="utf-8"))
    if any(each.result for each in outcomes):
        svg = _drawn(outcomes)
        write_atomically(
            out / "comparison.svg", lambda temporary: temporary.write_text(svg, encoding="utf-8")
        )


def _page(title: str, outcomes: Sequence[Outcome]) -> Iterator[str]:
    """The page, line by line."""
    done = [each for each in outcomes if each.result]
    yield from (
        f"# Sweep {title}",
        "",
        f"{len(done)} of {len(outcomes)} finished. {_measured_on(done)}".rstrip(),
    )
    yield from ("", *_table(*_overview(done)))
    if sets := list(_sets(done)):
        yield from ("", "## What they set", "", *_table(("configuration", "over the recipe"), sets))
    several = [each for each in done if sum(each.run.cell == other.run.cell for other in done) > 1]
    if several:
        yield from ("", "## Single runs", "", *_table(*_single(several)))
    for kind in done[0].rollout["r2"] if done else ():
        spelled = "all tokens" if kind == "all" else kind
        yield from ("", f"## R2 by layer: {spelled}", "", *_table(*_by_layer(done, kind)))
    lost = [each for each in outcomes if not each.result]
    if lost:
        rows = [(each.run.name, each.status, each.error or NONE) for each in lost]
        yield from ("", "## Not finished", "", *_table(("run", "status", "why"), rows))
    yield ""


def _measured_on(done: Sequence[Outcome]) -> str:
    """What the figures were measured on, and the teacher's own."""
    if not done:
        return ""
    figures = [each.figures() for each in done]
    text = f"R2 is that of the closed loop on {_range(figures, 'num_evaluated_rows')} test rows"
    probed = [each for each in figures if each["teacher_accuracy"] is not None]
    if probed:
        train, test = (_range(probed, f"num_probe_{split}_rows") for split in ("train", "test"))
        accuracies, chance = (
            ", ".join(sorted({spoken("accuracy", [value]) for each in probed if (value := each[name])}))
            for name in ("teacher_accuracy", "chance")
        )
        text += (
            f"; heads are fitted on {train} training rows and tell their accuracy on {test} test rows, where "
            f"the teacher has {accuracies} and chance is {chance}"
        )
        text += ". A run beats the baselines where it is above identity and untrained blocks under both heads"
    return (
        f"{text}. Several seeds or draws: mean \N{PLUS-MINUS SIGN} standard deviation (number). Updates are "
        "those of each block, alone and in the closed loop together; T MACs are their multiply-accumulates "
        "by formula, in 10^12, a way back counted as two forward passes."
    )


def _range(figures: Sequence[Mapping[str, float | None]], name: str) -> str:
    return " or ".join(f"{value:,.0f}" for value in sorted({each[name] or 0.0 for each in figures}))


def _overview(done: Sequence[Outcome]) -> tuple[Sequence[str], list[Sequence[str]]]:
    """A row a configuration."""
    found = configurations(done)
    kinds = [kind for kind in done[0].rollout["r2"] if kind != "all"] if done else []
    measured = ["mean_r2", *(f"r2_{kind}_last" for kind in kinds)]
    measured += [f"{head}_{what}" for what in ("accuracy", "retention") for head in ("frozen", "refitted")]
    rows: list[Sequence[str]] = []
    for cell, values in found.items():
        phases = dict.fromkeys(each.phases or NONE for each in done if each.run.cell == cell)
        rows.append(
            (
                cell,
                next(iter(phases)) if len(phases) == 1 else f"{len(phases)} draws",
                f"{statistics.fmean(values['num_parameters']):,.0f}",
                f"{statistics.fmean(values['updates']):,.0f}" if any(values["updates"]) else NONE,
                *(spoken(name, values[name]) if name in values else NONE for name in measured),
                _beats(values.get("beats_baselines")),
                f"{statistics.fmean(values['train_macs']) / 1e12:,.3g}" if "train_macs" in values else NONE,
                _minutes(values.get("train_seconds")),
            )
        )
    titles = ("R2, mean over layers", *(f"R2 last layer, {kind}" for kind in kinds))
    heads = ("frozen accuracy", "refitted accuracy", "frozen retention", "refitted retention")
    costs = ("beats baselines", "T MACs of training", "time")
    return ("configuration", "phases", "values", "updates", *titles, *heads, *costs), rows


def _beats(verdicts: Sequence[float] | None) -> str:
    """`yes` or `no`, or of how many runs."""
    if not verdicts:
        return NONE
    if len(set(verdicts)) == 1:
        return "yes" if verdicts[0] else "no"
    return f"{sum(verdicts):.0f} of {len(verdicts)}"


def _sets(done: Sequence[Outcome]) -> Iterator[tuple[str, str]]:
    """What each configuration lays over the recipe, and the weights that were measured if not the last.

    What all runs lay over it is told once.
    """
    found = {
        each.run.cell: {
            f"`{override}`": None
            for key, override in zip(each.run.changes, each.run.overrides, strict=True)
            if key not in ("seed", SEED_LIKE)
        }
        | ({f"measured with the weights `{each.run.weights.name}`": None} if each.run.weights.suffix else {})
        for each in done
        if each.run.baseline is None
    }
    shared = [
        part for part in next(iter(found.values()), {}) if all(part in parts for parts in found.values())
    ]
    if shared:
        yield "all", ", ".join(shared)
    for cell, parts in found.items():
        if own := [part for part in parts if part not in shared]:
            yield cell, ", ".join(own)


def _minutes(seconds: Sequence[float] | None) -> str:
    return console.human_seconds(statistics.fmean(seconds)) if seconds else NONE


def _single(runs: Sequence[Outcome]) -> tuple[Sequence[str], list[Sequence[str]]]:
    """A row a run, of configurations with several."""
    rows: list[Sequence[str]] = []
    for each in runs:
        figures = each.figures()
        told = (figures[name] for name in FIGURES)
        rows.append(
            (
                each.run.name,
                each.phases or NONE,
                *(
                    NONE if value is None else spoken(name, [value])
                    for name, value in zip(FIGURES, told, strict=True)
                ),
            )
        )
    return ("run", "phases", "R2, mean over layers", "frozen retention", "refitted retention"), rows


def _by_layer(done: Sequence[Outcome], kind: str) -> tuple[Sequence[str], list[Sequence[str]]]:
    """R2 of one kind: a row a configuration, a column a layer; means over seeds."""
    layers = list(dict.fromkeys(layer for each in done for layer in each.rollout["layers"]))
    found: dict[str, dict[int, list[float]]] = {}
    for each in done:
        by_layer = found.setdefault(each.run.cell, {})
        for layer, value in zip(each.rollout["layers"], each.rollout["r2"].get(kind, ()), strict=False):
            if value != "constant":
                by_layer.setdefault(layer, []).append(float(value))
    rows: list[Sequence[str]] = [
        (
            cell,
            *(
                spoken("r2", [statistics.fmean(values[layer])]) if layer in values else NONE
                for layer in layers
            ),
        )
        for cell, values in found.items()
    ]
    return ("configuration", *map(str, layers)), rows


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Markdown: the first column text, the others numbers."""
    yield _line(columns)
    yield _line(["---", *["---:"] * (len(columns) - 1)])
    yield from map(_line, rows)


def _line(cells: Sequence[str]) -> str:
    escaped = (cell.replace("|", r"\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"


def _drawn(outcomes: Sequence[Outcome]) -> str:
    """Every configuration's mean under each of `FIGURES`, with its spread; baselines in grey."""
    from activault.analyze.comparison import Measured, draw_comparison

    baselines = {each.run.cell for each in outcomes if each.run.baseline is not None}
    bars = [
        Measured(
            row=cell,
            column=title,
            value=statistics.fmean(values[name]),
            text=spoken(name, values[name]),
            role="grey" if cell in baselines else "green" if name == "mean_r2" else "blue",
            error=statistics.stdev(values[name]) if len(values[name]) > 1 else 0.0,
        )
        for cell, values in configurations(outcomes).items()
        for name, title in FIGURES.items()
        if name in values
    ]
    label = "; ".join(f"{bar.column}, {bar.row}: {bar.text}" for bar in bars)
    return draw_comparison(bars, slug="sweep", label=f"Comparison of a sweep's runs. {label}")
