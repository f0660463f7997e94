"""Configurations side by side: every text is there, bars stay on their tracks."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from activault.analyze.comparison import Measured, draw_comparison

BARS = [
    Measured(row="a", column="R2", value=0.5, text="0.500", role="green", error=0.1),
    Measured(row="b", column="R2", value=-3.0, text="\N{MINUS SIGN}3.000", role="grey"),
    Measured(row="b", column="retention", value=1.2, text="120.0 %", role="blue"),
]


def test_rows_columns_and_texts_are_drawn() -> None:
    svg = draw_comparison(BARS, slug="sweep", label="two configurations")
    root = ElementTree.fromstring(svg)
    texts = {"".join(element.itertext()).strip() for element in root.iter() if element.tag.endswith("text")}
    assert {"a", "b", "R2", "retention", "0.500", "\N{MINUS SIGN}3.000", "120.0 %"} <= texts
    assert root.get("aria-label") == "two configurations"
    assert "b, retention: 120.0 %" in svg
    assert svg == draw_comparison(BARS, slug="sweep", label="two configurations")


def test_bars_end_where_their_tracks_do() -> None:
    svg = draw_comparison(BARS, slug="sweep", label="two configurations")
    widths = {}
    for name in ("bar-0", "bar-1", "bar-2"):
        (path,) = re.findall(rf'id="sweep-{name}".*?<path d="(.*?)"', svg, re.DOTALL)
        xs = [float(x) for x in re.findall(r"[ML] ([-\d.]+) ", path)]
        widths[name] = max(xs) - min(xs)
    assert widths["bar-1"] == 0
    assert abs(widths["bar-2"] - 2 * widths["bar-0"]) < 0.01
