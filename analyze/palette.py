"""The figures' colours: a name a role, and what it is on a light and on a dark page.

Figures are drawn once, with a marker colour for every role; `svg.finish` turns the markers into CSS
variables, and `css` gives the variables their values for both schemes. Hues are those of Okabe and Ito
(distinct to colour-blind readers), darkened or lightened until text in them has a contrast of 4.5 or more;
amber and grey are for areas only.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["COLORS", "css", "marker", "variable"]

# role: (on a light page, on a dark page)
COLORS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "ink": ("#1c2530", "#e8ecf1"),
        "muted": ("#59636f", "#a3adb9"),
        "grid": ("#e3e7ec", "#2c343e"),
        "page": ("#ffffff", "#14181d"),
        "track": ("#eef1f4", "#222931"),
        "blue": ("#0067a5", "#5ab8ee"),
        "vermillion": ("#b84a00", "#ff935c"),
        "green": ("#00785a", "#3fcf9f"),
        "purple": ("#97407a", "#e59cca"),
        "gold": ("#8a6500", "#e8c04a"),
        "amber": ("#b98307", "#e8c04a"),
        "grey": ("#7b8591", "#7f8a97"),
    }
)


def marker(role: str) -> str:
    """The colour that stands for a role while a figure is drawn, `#0001xx`."""
    return f"#0001{list(COLORS).index(role):02x}"


def variable(role: str) -> str:
    """The CSS value that takes its place; a figure without the page's CSS falls back to the light colour."""
    return f"var(--fig-{role}, {COLORS[role][0]})"


def css(dark: bool) -> str:
    """Declarations of the variables for one scheme."""
    return " ".join(f"--fig-{role}: {pair[dark]};" for role, pair in COLORS.items())
