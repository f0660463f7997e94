from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]
BOXES = """[...document.querySelectorAll('svg.figure')].map(svg => {
  const box = svg.getBoundingClientRect()
  return {width: box.width, height: box.height, texts: svg.querySelectorAll('text').length,
          right: box.right, fill: getComputedStyle(svg.querySelector('text')).fill}
})"""


@pytest.fixture
def page(report_folder) -> Path:
    return report_folder / "report.html"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [375, 1280], ids=["phone", "desktop"])
def test_every_figure_is_drawn_and_nothing_complains(browser, page, width, dark) -> None:
    browser.open(page, width=width, dark=dark)
    boxes = browser.value(BOXES)
    assert len(boxes) == 12
    for box in boxes:
        assert box["width"] > 250
        assert box["height"] > 60
        assert box["right"] <= width
        assert box["texts"] > 3
    assert browser.complaints == []
    # The page itself, and its empty icon where the browser asks for one: nothing is fetched.
    assert {url for url in browser.requests if not url.startswith("data:")} == {page.as_uri()}


@pytest.mark.parametrize("width", [375, 1280], ids=["phone", "desktop"])
def test_the_page_never_scrolls_sideways(browser, page, width) -> None:
    browser.open(page, width=width)
    browser.value("document.querySelectorAll('details').forEach(part => part.open = true)")
    assert browser.value("document.documentElement.scrollWidth") <= width


def test_figures_follow_the_scheme(browser, page) -> None:
    found = {}
    for dark in (False, True):
        browser.open(page, dark=dark)
        body = "getComputedStyle(document.body)"
        axis = "getComputedStyle(document.querySelector('#similarity-teacher-text_1 text')).fill"
        found[dark] = tuple(
            browser.value(part) for part in (f"{body}.backgroundColor", f"{body}.color", axis)
        )
    assert found[False] == ("rgb(255, 255, 255)", "rgb(28, 37, 48)", "rgb(89, 99, 111)")
    assert found[True] == ("rgb(20, 24, 29)", "rgb(232, 236, 241)", "rgb(163, 173, 185)")


def test_marks_have_tool_tips(browser, page) -> None:
    browser.open(page)
    tips = browser.value("[...document.querySelectorAll('svg title')].map(title => title.textContent)")
    assert "layers 1 and 2: " in " ".join(tips)
    assert any(tip.startswith("CLS, 1: -18") for tip in tips)


def test_the_browser_sees_complaints(browser, tmp_path) -> None:
    """The check above can fail."""
    page = tmp_path / "bad.html"
    page.write_text("<script>console.error('no'); missing()</script><img src='missing.png'>")
    browser.open(page)
    assert len(browser.complaints) >= 3
