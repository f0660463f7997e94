"""Many configurations side by side: a row each, a column a measure, one bar where they meet.

[Measured(row, column, value, text), ...]  ->  one SVG element, as `figures.py` makes them
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .figures import sheet_for
from .palette import marker

__all__ = ["Measured", "draw_comparison"]

ROW, COLUMN, NAMES = 19.0, 165.0, 165.0
"""Points: height of a row, width of a column with its text, width of the rows' names."""
STEP = 2.1
"""From one column's start to the next one's; a bar of 1 is 1 wide, its text takes the rest."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One bar."""

    row: str
    column: str
    value: float
    """In [0, 1]; what lies outside is drawn at the end that is nearer."""
    text: str
    """Written beside it."""
    role: str
    """Colour, a role of the palette."""
    error: float = 0.0
    """Half length of a whisker about its end."""


def draw_comparison(bars: Sequence[Measured], *, slug: str, label: str) -> str:
    """Rows and columns in the order in which they come first; a cell without a bar stays empty."""
    rows, columns = (
        list(dict.fromkeys(names)) for names in zip(*((b.row, b.column) for b in bars), strict=True)
    )
    with sheet_for(slug, label, NAMES + COLUMN * len(columns), 40 + ROW * len(rows)) as sheet:
        axes = sheet.axes
        for number, bar in enumerate(bars):
            place, left, name = rows.index(bar.row), STEP * columns.index(bar.column), f"bar-{number}"
            length = min(1.0, max(0.0, bar.value))
            axes.barh(place, 1.0, left=left, height=0.66, color=marker("track"), zorder=1)
            (drawn,) = axes.barh(place, length, left=left, height=0.66, color=marker(bar.role), zorder=2)
            drawn.set_gid(name)
            sheet.tips[name] = [f"{bar.row}, {bar.column}: {bar.text}"]
            if bar.error:
                ends = (max(0.0, bar.value - bar.error), min(1.0, bar.value + bar.error))
                axes.plot([left + end for end in ends], [place, place], color=marker("ink"), linewidth=1.2)
            axes.text(left + 1.04, place, bar.text, va="center_baseline", fontsize=8.5)
        for number, column in enumerate(columns):
            axes.text(STEP * number, -0.75, column, va="bottom", fontweight="bold")
        axes.set_yticks(range(len(rows)), rows)
        axes.set_xticks([])
        axes.tick_params(axis="y", labelcolor=marker("ink"))
        axes.set(xlim=(0, STEP * len(columns)), ylim=(len(rows) - 0.4, -1.6))
        axes.grid(visible=False)
        axes.spines.bottom.set_visible(False)
    return sheet.svg
