"""Drawings: numbers in, one SVG element out. The only file that knows matplotlib.

Every function takes a `slug` (prefix of the element's ids, unique on a page) and a spoken `label`, and
returns the text of one `<svg>` that scales with its container, has text as text and follows the page's light
or dark scheme. The same numbers give the same bytes.
"""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from .marks import HEIGHT, STYLE, WIDTH, Bar, Line, LineChart, spread_apart
from .palette import marker
from .svg import finish

__all__ = ["Sheet", "draw_bars", "draw_lines", "draw_matrix", "draw_strips", "sheet_for"]


@dataclass
class Sheet:
    """A drawing under way."""

    figure: Figure
    axes: Axes
    tips: dict[str, list[str]] = field(default_factory=dict)
    """Tool tips by the id of a mark."""
    below: Counter[float] = field(default_factory=Counter)
    svg: str = ""
    """The drawing, once it is done."""


@contextmanager
def sheet_for(slug: str, label: str, width: float = WIDTH, height: float = HEIGHT) -> Iterator[Sheet]:
    """Paper of so many points to draw on; the drawing is in `svg` afterwards."""
    with mpl.rc_context(STYLE | {"svg.hashsalt": slug}):
        figure = Figure(figsize=(width / 72, height / 72), dpi=72, layout="constrained")
        sheet = Sheet(figure, figure.add_subplot())
        yield sheet
        buffer = io.StringIO()
        # All metadata off: its date would make every drawing different.
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
        sheet.svg = finish(buffer.getvalue(), slug, label, sheet.tips)


def draw_matrix(
    values: npt.NDArray[np.float64],
    layers: Sequence[int],
    spans: Sequence[tuple[int, int]],
    *,
    slug: str,
    label: str,
) -> str:
    """A heat map of S (n, n) in [-1, 1] over layers, phases (first and last layer) framed on the diagonal.

    The deeper the blue the more alike, the deeper the orange the more opposed; 0 is the page's own colour.
    """
    with sheet_for(slug, label, height=WIDTH) as sheet:
        axes, num = sheet.axes, len(layers)
        for i, j in np.ndindex(num, num):
            value = float(values[i, j])
            _cell(axes, (j, i), value, f"cell-{i}-{j}", written=num <= 14)
            sheet.tips[f"cell-{i}-{j}"] = [f"layers {layers[i]} and {layers[j]}: {value:.3f}"]
        for first, last in spans:
            a, e = layers.index(first), layers.index(last)
            corner, side = (a - 0.5, a - 0.5), e - a + 1
            for role, width in (("page", 4.4), ("ink", 1.8)):
                frame = Rectangle(corner, side, side, fill=False, edgecolor=marker(role), linewidth=width)
                frame.set_clip_on(False)
                axes.add_patch(frame)
        # The scale: six cells above the upper right corner.
        for place, value in enumerate((-0.4, 0, 0.2, 0.4, 0.6, 0.8, 1)):
            _cell(axes, (num - 7 + place, -1.5), value, f"scale-{place}", written=True)
        axes.set(
            xlim=(-0.6, num - 0.4), ylim=(num - 0.4, -2.1), aspect="equal", xlabel="layer", ylabel="layer"
        )
        axes.spines.bottom.set_visible(False)
        axes.grid(visible=False)
        shown = range(0, num, -(-num // 20))
        axes.set_xticks(shown, [str(layers[place]) for place in shown])
        axes.set_yticks(shown, [str(layers[place]) for place in shown])
    return sheet.svg


def draw_strips(
    rows: Sequence[tuple[str, Sequence[tuple[int, int]], Sequence[str]]], *, slug: str, label: str
) -> str:
    """Divisions of layers as strips: for each its name, first and last layer of its phases, a note a cut."""
    with sheet_for(slug, label, height=46 + 46 * len(rows)) as sheet:
        axes = sheet.axes
        for place, (_, spans, notes) in enumerate(rows):
            for first, last in spans:
                name, size = f"strip-{place}-{first}", last - first + 0.92
                box = Rectangle((first - 0.46, place - 0.2), size, 0.5, facecolor=marker("green"), gid=name)
                axes.add_patch(box)
                sheet.tips[name] = [f"layers {first} to {last}: one block, {last - first + 1} times"]
                text = f"{first}-{last}" if last > first else f"{first}"
                axes.text(
                    (first + last) / 2, place + 0.05, text, color=marker("page"), ha="center", va="center"
                )
            for (_, last), note in zip(spans, notes, strict=False):
                axes.text(
                    last + 0.5,
                    place - 0.27,
                    note,
                    color=marker("muted"),
                    ha="center",
                    va="bottom",
                    fontsize=7.5,
                )
        ends = [layer for _, spans, _ in rows for span in spans for layer in span]
        axes.set(xlim=(min(ends) - 0.6, max(ends) + 0.6), ylim=(len(rows) - 0.6, -0.7), xlabel="layer")
        axes.set_yticks(range(len(rows)), [name for name, _, _ in rows])
        axes.set_xticks(_layer_ticks(min(ends), max(ends)))
        axes.grid(visible=False)
        axes.spines.bottom.set_visible(False)
    return sheet.svg


def draw_lines(chart: LineChart, *, slug: str, label: str) -> str:
    """Lines over layers, steps or numbers of phases, with their names at the right end."""
    with sheet_for(slug, label) as sheet:
        for place, line in enumerate(chart.lines):
            _draw_line(sheet, line, f"line-{place}", chart)
        _scale_axes(sheet.axes, chart)
        _boundaries(sheet.axes, chart.spans)
        # Names are pushed apart on the paper: the axes' final height has to be known first.
        sheet.figure.draw_without_rendering()
        _end_names(sheet.axes, chart)
        _line_key(sheet.axes, chart.key or {})
    return sheet.svg


def draw_bars(bars: Sequence[Bar], *, slug: str, label: str, x_title: str) -> str:
    """Horizontal bars in named groups, values in [0, 1], each with its text at the end."""
    groups = list(dict.fromkeys(bar.group for bar in bars))
    places = [place + 1.5 * groups.index(bar.group) for place, bar in enumerate(bars)]
    with sheet_for(slug, label, height=60 + 20 * (len(bars) + 1.5 * len(groups))) as sheet:
        axes = sheet.axes
        for place, bar in zip(places, bars, strict=True):
            name = f"bar-{place}".replace(".", "-")
            axes.barh(place, 1.0, height=0.7, color=marker("track"), zorder=1)
            (drawn,) = axes.barh(place, bar.value, height=0.7, color=marker(bar.role), zorder=2)
            drawn.set_gid(name)
            sheet.tips[name] = [f"{bar.group}, {bar.name}: {bar.text}"]
            axes.text(1.015, place, bar.text, va="center_baseline", fontsize=8.5)
        for group in groups:
            first = next(place for place, bar in zip(places, bars, strict=True) if bar.group == group)
            axes.text(0, first - 0.62, group, va="bottom", fontweight="bold")
        axes.set_yticks(places, [bar.name for bar in bars])
        axes.tick_params(axis="y", labelcolor=marker("ink"))
        axes.set(xlim=(0, 1), ylim=(max(places) + 0.6, -1.5), xlabel=x_title)
        axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
        axes.grid(visible=False)
        axes.spines.bottom.set_visible(False)
    return sheet.svg


def _scale_axes(axes: Axes, chart: LineChart) -> None:
    if chart.logarithmic:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    if chart.floor is not None or chart.ceiling is not None:
        low, high = axes.get_ylim()
        low = low if chart.floor is None else chart.floor
        high = high if chart.ceiling is None else chart.ceiling
        # Room under the edge for the numbers of what lies below it.
        room = (high - low) * (0.02 + 0.065 * chart.num_below)
        axes.set_ylim(low - room, high + 0.02 * (high - low))
    if chart.baseline is not None:
        axes.axhline(chart.baseline, color=marker("grey"), linewidth=1, zorder=1)
    xs = [x for line in chart.lines for x in line.x]
    margin = 0.03 * (max(xs) - min(xs) or 1)
    axes.set(xlim=(min(xs) - margin, max(xs) + margin), xlabel=chart.x_title)
    axes.set_title(chart.y_title, pad=20 if len(chart.spans) > 1 else 8)
    if chart.x_title == "layer":
        axes.set_xticks(_layer_ticks(int(min(xs)), int(max(xs))))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))


def _draw_line(sheet: Sheet, line: Line, name: str, chart: LineChart) -> None:
    axes, color = sheet.axes, marker(line.role)
    floor = -math.inf if chart.floor is None else chart.floor
    x, y = (
        np.array(line.x, dtype=float),
        np.array([math.nan if v is None else v for v in line.y], dtype=float),
    )
    shown = np.maximum(y, floor)
    axes.plot(x, shown, "--" if line.dashed else "-", color=color, zorder=3)
    if line.error is not None and np.isfinite(line.error).all():
        error = np.asarray(line.error)
        axes.fill_between(x, shown - error, shown + error, color=color, alpha=0.18, linewidth=0)
    there = np.isfinite(y)
    if not line.marks or not there.any():
        return
    axes.plot(x[there], shown[there], "o", color=color, gid=name, zorder=4)
    sheet.tips[name] = [f"{line.name}, {a:g}: {b:.4g}" for a, b in zip(x[there], y[there], strict=True)]
    for at, value in zip(x[there & (y < floor)], y[there & (y < floor)], strict=True):
        axes.plot([at], [floor], "v", color=color, markersize=6, zorder=5)
        # Where several lines leave at one x, their numbers stand one below the other.
        drop = -12 - 9 * sheet.below[at]
        sheet.below[at] += 1
        text = f"{value:.2g}".replace("-", "\N{MINUS SIGN}")
        axes.annotate(
            text,
            (at, floor),
            xytext=(0, drop),
            textcoords="offset points",
            ha="center",
            fontsize=7,
            color=color,
        )
    ringed = x == chart.highlight
    axes.plot(x[ringed], y[ringed], "o", color=color, markersize=10, fillstyle="none", markeredgewidth=1.6)


def _end_names(axes: Axes, chart: LineChart) -> None:
    """Every solid line's name right of its last point, pushed apart where they would overlap."""
    floor = -math.inf if chart.floor is None else chart.floor
    ends = []
    for line in chart.lines:
        values = [y for y in line.y if y is not None and math.isfinite(y)]
        if line.name and values and not line.dashed:
            data = max(values[-1], floor)
            ends.append((float(axes.transData.transform((0, data))[1]), data, line))
    ends.sort(key=lambda end: end[0])
    spots = spread_apart([height for height, _, _ in ends], gap=12.5)
    for spot, (height, data, line) in zip(spots, ends, strict=True):
        axes.annotate(
            line.name,
            (1, data),
            xycoords=("axes fraction", "data"),
            xytext=(5, spot - height),
            textcoords="offset points",
            va="center_baseline",
            color=marker(line.role),
            fontweight="bold",
            annotation_clip=False,
        )


def _line_key(axes: Axes, key: Mapping[str, bool]) -> None:
    for place, (name, dashed) in enumerate(key.items()):
        left, down = 0.3 * place, -0.235
        style = "--" if dashed else "-"
        frame = axes.transAxes
        axes.plot(
            [left, left + 0.07], [down, down], style, color=marker("muted"), transform=frame, clip_on=False
        )
        axes.text(left + 0.09, down, name, transform=frame, va="center", color=marker("muted"))


def _boundaries(axes: Axes, spans: Sequence[tuple[int, int]]) -> None:
    for place, (first, last) in enumerate(spans if len(spans) > 1 else ()):
        if place:
            axes.axvline(first - 0.5, color=marker("muted"), linewidth=0.9, linestyle=(0, (1, 3)), zorder=1)
        middle, frame = (first + last) / 2, axes.get_xaxis_transform()
        name = f"phase {place + 1}"
        axes.text(
            middle, 1.02, name, transform=frame, ha="center", va="bottom", fontsize=7.5, color=marker("muted")
        )


def _cell(axes: Axes, center: tuple[float, float], value: float, name: str, *, written: bool) -> None:
    """One value of a matrix: strength of the colour is its size, hue its sign."""
    x, y = center
    strength = min(abs(value), 1.0) ** 1.2
    color = marker("blue" if value >= 0 else "vermillion")
    box = Rectangle((x - 0.46, y - 0.46), 0.92, 0.92, facecolor=color, alpha=strength, linewidth=0, gid=name)
    box.set_clip_on(False)
    # Left out of the layout, which would measure every cell.
    box.set_in_layout(False)
    axes.add_patch(box)
    if written:
        rounded = f"{value:.2f}".replace("-", "\N{MINUS SIGN}").replace("0.", ".").replace("1.00", "1")
        ink = marker("page" if strength > 0.7 else "ink")
        text = "0" if rounded.endswith(".00") else rounded
        drawn = axes.text(x, y, text, ha="center", va="center_baseline", fontsize=6.6, color=ink)
        drawn.set_in_layout(False)


def _layer_ticks(first: int, last: int) -> range:
    return range(first, last + 1, -(-(last - first + 1) // 14))
