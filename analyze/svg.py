"""From a drawn SVG document to an element that lives well inside a page with others.

In: SVG text with marker colours (see `palette`). Out: one `<svg>` element: no prologue, no fixed size, ids of
its own, colours as CSS variables, the page's font, a spoken name, and tool tips at the marks that were named.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from xml.etree import ElementTree

from .palette import COLORS, marker, variable

__all__ = ["finish"]

SVG = "http://www.w3.org/2000/svg"
HREF = "{http://www.w3.org/1999/xlink}href"


def finish(text: str, slug: str, label: str, tips: Mapping[str, Sequence[str]] | None = None) -> str:
    """Make a drawn figure ready for a page.

    Args:
        text: an SVG document of our own drawing.
        slug: prefix of all ids; unique on the page.
        label: what the figure shows, for those who cannot see it.
        tips: tool tips by id of a drawn group: one for each mark in it, in drawing order.
    """
    ElementTree.register_namespace("", SVG)
    root = ElementTree.fromstring(text)  # noqa: S314 - drawn by ourselves a moment ago
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    for metadata in root.findall(f"{{{SVG}}}metadata"):
        root.remove(metadata)
    root.attrib.update({"role": "img", "aria-label": label, "class": "figure"})
    _add_tips(root, tips or {})
    for element in root.iter():
        _localise(element, slug)
    plain = ElementTree.tostring(root, encoding="unicode")
    for role in COLORS:
        plain = plain.replace(marker(role), variable(role))
    return plain


def _add_tips(root: ElementTree.Element, tips: Mapping[str, Sequence[str]]) -> None:
    groups = {element.get("id"): element for element in root.iter(f"{{{SVG}}}g")}
    for name, texts in tips.items():
        shapes = ("use", "path")
        marks = [
            element
            for element in groups[name].iter()
            if element.tag in {f"{{{SVG}}}{shape}" for shape in shapes} and element.get("id") is None
        ]
        # A line with marks is drawn as one path for the line, then its marks.
        marks = marks[-len(texts) :]
        assert len(marks) == len(texts), f"{name}: {len(texts)} tips for {len(marks)} marks"
        for mark, tip in zip(marks, texts, strict=True):
            title = ElementTree.Element(f"{{{SVG}}}title")
            title.text = tip
            mark.insert(0, title)


def _localise(element: ElementTree.Element, slug: str) -> None:
    if (name := element.get("id")) is not None:
        element.set("id", f"{slug}-{name}")
    if (target := element.attrib.pop(HREF, None)) is not None:
        element.set("href", target.replace("#", f"#{slug}-", 1))
    for attribute, value in element.attrib.items():
        if "url(#" in value:
            element.set(attribute, value.replace("url(#", f"url(#{slug}-"))
    if "font" in (style := element.get("style", "")):
        # The page's own font: the drawn one is wider, so nothing that fitted runs over. Both spellings occur.
        page_font = "var(--fig-font, sans-serif)"
        style = re.sub(r"(font:[^;]*?px) [^;]*", rf"\1 {page_font}", style)
        element.set("style", re.sub(r"font-family:[^;]*", f"font-family: {page_font}", style))
