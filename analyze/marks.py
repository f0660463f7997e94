"""What a figure is made of: lines, bars and the drawing style, without the library that draws them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .palette import marker

__all__ = ["HEIGHT", "STYLE", "WIDTH", "Bar", "Line", "LineChart", "spread_apart"]

# Points; a page shows a figure at 340 (phone) to 560 pixels, so that 9 points stay readable on both.
WIDTH, HEIGHT = 380.0, 250.0
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "text.color": marker("ink"),
    "axes.edgecolor": marker("grid"),
    "axes.labelcolor": marker("muted"),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 9.0,
    "axes.titlecolor": marker("muted"),
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": marker("grid"),
    "grid.linewidth": 0.8,
    "xtick.color": marker("muted"),
    "ytick.color": marker("muted"),
    "xtick.major.size": 0.0,
    "ytick.major.size": 0.0,
    "ytick.minor.size": 0.0,
    "lines.linewidth": 1.8,
    "lines.markersize": 3.6,
    "lines.solid_capstyle": "round",
}


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a line figure."""

    name: str
    """Written at its right end if it is solid."""
    role: str
    """Colour, a role of the palette."""
    x: Sequence[float]
    y: Sequence[float | None]
    """None leaves a gap."""
    error: Sequence[float] | None = None
    """Half width of a band around the line."""
    dashed: bool = False
    marks: bool = True
    """Points with tool tips; without them the line alone."""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One bar of a bar figure, its value in [0, 1]."""

    group: str
    name: str
    value: float
    text: str
    """Written at its end."""
    role: str


@dataclass(frozen=True, kw_only=True)
class LineChart:
    """Lines and the axes they are drawn on."""

    lines: Sequence[Line]
    """At least one, with at least one point."""
    y_title: str
    """What the y axis shows, with its unit; written above the axis."""
    x_title: str = "layer"
    spans: Sequence[tuple[int, int]] = ()
    """Phases, first and last layer; boundaries are drawn between them."""
    floor: float | None = None
    """Lower end of the axis; values below are drawn there as arrows, with their numbers under it."""
    ceiling: float | None = None
    """Upper end of the axis."""
    baseline: float | None = None
    """A value to draw a firmer line at."""
    highlight: float | None = None
    """An x value whose points are ringed."""
    logarithmic: bool = False
    """Powers of ten on the y axis."""
    key: Mapping[str, bool] | None = None
    """Names of solid (False) and dashed (True) lines, written under the axis."""

    @property
    def num_below(self) -> int:
        """The most values below the floor at one x."""
        if self.floor is None:
            return 0
        below = [
            x
            for line in self.lines
            for x, y in zip(line.x, line.y, strict=True)
            if y is not None and y < self.floor
        ]
        return max((below.count(x) for x in set(below)), default=0)


def spread_apart(spots: Sequence[float], gap: float) -> list[float]:
    """Ascending places, moved about as little as they must be to stand `gap` apart."""
    moved = list(spots)
    for _ in range(50):
        for low in range(len(moved) - 1):
            overlap = gap - (moved[low + 1] - moved[low])
            if overlap > 0:
                moved[low], moved[low + 1] = moved[low] - overlap / 2, moved[low + 1] + overlap / 2
    return moved
