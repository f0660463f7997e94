from __future__ import annotations

import re
from collections import Counter
from xml.etree import ElementTree

import numpy as np
import pytest

from activault.analyze.figures import draw_bars, draw_lines, draw_matrix, draw_strips
from activault.analyze.marks import Bar, Line, LineChart, spread_apart
from activault.analyze.palette import COLORS, css, marker, variable

MINUS = "\N{MINUS SIGN}"


def chart(**options: object) -> LineChart:
    lines = [
        Line(name="CLS", role="vermillion", x=[1, 2, 3], y=[-18.0, None, 0.5], error=[0.1, 0.1, 0.1]),
        Line(name="patches", role="blue", x=[1, 2, 3], y=[-2.0, 0.1, 0.52]),
        Line(name="patches", role="blue", x=[1, 2, 3], y=[0.1, 0.2, 0.3], dashed=True),
    ]
    return LineChart(lines=lines, y_title="R2", **options)


DRAWINGS = {
    "matrix": lambda slug: draw_matrix(np.eye(4), [0, 1, 2, 3], [(1, 2), (3, 3)], slug=slug, label="a"),
    "strips": lambda slug: draw_strips([("k = 2", [(1, 4), (5, 6)], ["90 %"])], slug=slug, label="a"),
    "lines": lambda slug: draw_lines(
        chart(floor=-1.0, ceiling=1.0, baseline=0.0, spans=[(1, 2), (3, 3)], key={"a": False, "b": True}),
        slug=slug,
        label="a",
    ),
    "logarithm": lambda slug: draw_lines(
        LineChart(
            lines=[Line(name="n", role="ink", x=[0, 900], y=[0.5, 300.0])],
            y_title="norm",
            x_title="step",
            logarithmic=True,
        ),
        slug=slug,
        label="a",
    ),
    "one point": lambda slug: draw_lines(
        LineChart(lines=[Line(name="n", role="ink", x=[1], y=[0.5], error=[float("nan")])], y_title="n"),
        slug=slug,
        label="a",
    ),
    "bars": lambda slug: draw_bars(
        [Bar(group="frozen", name=name, value=0.5, text="50 %", role="green") for name in ("a", "b")],
        slug=slug,
        label="a",
        x_title="accuracy",
    ),
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_drawing_is_one_clean_svg_element(name: str) -> None:
    text = DRAWINGS[name]("some-slug")
    root = ElementTree.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert (root.get("role"), root.get("aria-label"), root.get("class")) == ("img", "a", "figure")
    assert root.get("width") is None
    assert root.get("viewBox") is not None
    names = [element.get("id") for element in root.iter() if element.get("id")]
    assert [found for found, times in Counter(names).items() if times > 1] == []
    assert all(found.startswith("some-slug-") for found in names)
    targets = re.findall(r'(?:href="|url\()#([^")]+)', text)
    assert set(targets) <= set(names)
    assert "metadata" not in text
    assert "<script" not in text
    assert not re.search(r"#0001[0-9a-f]{2}", text)
    assert "DejaVu" not in text
    assert root.findall(".//{http://www.w3.org/2000/svg}text")


@pytest.mark.parametrize("name", DRAWINGS)
def test_the_same_numbers_give_the_same_bytes(name: str) -> None:
    assert DRAWINGS[name]("x") == DRAWINGS[name]("x")


def texts(svg: str) -> list[str]:
    root = ElementTree.fromstring(svg)
    return ["".join(element.itertext()) for element in root.iter("{http://www.w3.org/2000/svg}text")]


def tips(svg: str) -> list[str]:
    root = ElementTree.fromstring(svg)
    return [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}title")]


def test_values_below_the_floor_are_said_and_their_tips_are_true() -> None:
    svg = DRAWINGS["lines"]("x")
    assert {f"{MINUS}18", f"{MINUS}2"} <= set(texts(svg))
    assert tips(svg)[:2] == ["CLS, 1: -18", "CLS, 3: 0.5"]


def test_lines_are_named_at_their_ends_and_dashed_ones_in_the_key() -> None:
    written = texts(DRAWINGS["lines"]("x"))
    assert written.count("patches") == written.count("CLS") == 1
    assert {"a", "b", "phase 1", "phase 2"} <= set(written)


def test_a_matrix_says_every_pair() -> None:
    found = tips(draw_matrix(np.eye(3) - 0.25, [0, 2, 4], [], slug="x", label="a"))
    assert len(found) == 9
    assert "layers 2 and 4: -0.250" in found


def test_a_large_matrix_leaves_its_numbers_to_the_tips() -> None:
    svg = draw_matrix(np.eye(25), list(range(25)), [(1, 12), (13, 24)], slug="x", label="a")
    assert len(tips(svg)) == 625
    assert len(texts(svg)) < 60


def test_names_are_spread_apart_and_stay_in_order() -> None:
    spread = spread_apart([0, 1, 2, 100], gap=10)
    assert np.diff(spread).min() > 9.9
    assert spread[3] == 100
    assert np.mean(spread[:3]) == pytest.approx(1)


def luminance(color: str) -> float:
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize(
    ("role", "least"),
    [(role, 4.5) for role in ("ink", "muted", "blue", "vermillion", "green", "purple", "gold")]
    + [("amber", 3.0), ("grey", 3.0)],
)
def test_colors_stand_out_from_the_page(role: str, least: float, dark: bool) -> None:
    """4.5 for text, 3 for areas: the contrasts of WCAG 2.2, level AA."""
    pair = sorted(luminance(COLORS[name][dark]) for name in (role, "page"))
    assert (pair[1] + 0.05) / (pair[0] + 0.05) >= least


def test_every_role_has_a_marker_of_its_own_and_a_variable() -> None:
    assert len({marker(role) for role in COLORS}) == len(COLORS)
    for dark in (False, True):
        assert all(f"--fig-{role}: {COLORS[role][dark]};" in css(dark=dark) for role in COLORS)
    assert variable("ink") == "var(--fig-ink, #1c2530)"
