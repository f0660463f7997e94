"""The report's page: sections in, one self-contained HTML document out. All text is escaped here.

The page needs no network and no script: figures are inline SVG, tool tips are SVG titles, light and dark come
from the reader's own setting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from . import palette

__all__ = ["Figure", "Section", "Table", "Tile", "render_page"]

STYLE = """
:root { color-scheme: light dark; LIGHT
  --fig-font: system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif }
@media (prefers-color-scheme: dark) { :root { DARK } }
@media print { :root { LIGHT } }
* { box-sizing: border-box }
html { -webkit-text-size-adjust: 100%; scroll-behavior: smooth }
body { margin: 0; background: var(--fig-page); color: var(--fig-ink); font: 16px/1.55 var(--fig-font) }
main, header, nav { max-width: 1140px; margin: 0 auto; padding: 0 20px }
header { padding-top: 44px }
h1 { font-size: clamp(1.6rem, 4.2vw, 2.3rem); line-height: 1.15; letter-spacing: -.02em; margin: 0 0 .4em }
h2 { font-size: 1.35rem; letter-spacing: -.01em; margin: 0 0 .3em }
h3 { font-size: .8rem; text-transform: uppercase; letter-spacing: .06em; margin: .6em 0 .2em;
  color: var(--fig-muted) }
p { margin: 0 0 .8em; max-width: 70ch }
a { color: var(--fig-blue) }
.lead, figcaption, .published { color: var(--fig-muted) }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px;
  margin: 24px 0 }
.tile { border: 1px solid var(--fig-grid); border-radius: 10px; padding: 14px 16px }
.tile b { display: block; font-size: 1.55rem; line-height: 1.2; letter-spacing: -.02em;
  font-variant-numeric: tabular-nums }
.tile span { color: var(--fig-muted); font-size: .85rem; display: block }
.note { border-left: 3px solid var(--fig-gold); padding: 2px 0 2px 14px; margin: 18px 0 }
nav ul { display: flex; flex-wrap: wrap; gap: 2px 18px; list-style: none; padding: 10px 0; margin: 0;
  border-block: 1px solid var(--fig-grid); font-size: .92rem }
section { padding: 40px 0 6px }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(400px, 100%), 1fr));
  gap: 18px 40px; margin: 14px 0; align-items: start }
figure { margin: 0; max-width: 620px; min-width: 0 }
figcaption { font-size: .88rem; margin-top: 6px }
svg.figure { display: block; width: 100%; height: auto; overflow: visible }
.beside { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(320px, 100%), 1fr));
  gap: 4px 40px; margin: 14px 0 }
section ul { margin: 0 0 .8em; padding-left: 1.1em }
details { margin: 10px 0 4px }
summary { cursor: pointer; color: var(--fig-blue) }
.scroll { overflow-x: auto }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; margin: 8px 0 }
th, td { text-align: left; padding: 4px 16px 4px 0; border-bottom: 1px solid var(--fig-grid);
  white-space: nowrap }
th { color: var(--fig-muted); font-weight: 500 }
td.number { text-align: right }
td.long { white-space: normal; overflow-wrap: anywhere }
footer { color: var(--fig-muted); font-size: .88rem; padding: 30px 0 50px }
@media print { body { font-size: 11pt } section, figure { break-inside: avoid } }
""".replace("LIGHT", palette.css(dark=False)).replace("DARK", palette.css(dark=True))


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One of the few numbers that matter."""

    value: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A drawing and what is under it."""

    svg: str
    caption: str


@dataclass(frozen=True, kw_only=True)
class Table:
    """Numbers, as written."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Section:
    """One analysis: plain text, which the page escapes."""

    slug: str
    title: str
    asks: str
    figures: Sequence[Figure] = ()
    reading: str = ""
    """How to read the figures."""
    published: str = ""
    """What the literature reports."""
    here: Sequence[str] = ()
    """What was found here, a sentence each."""
    table: Table | None = None
    folded: bool = True
    """Whether the table waits behind a line to click."""


def render_page(
    *,
    title: str,
    lead: str,
    tiles: Sequence[Tile],
    notes: Sequence[str],
    sections: Sequence[Section],
    footer: str,
) -> str:
    """The whole document as text."""
    links = "".join(f'<li><a href="#{escape(s.slug)}">{escape(s.title)}</a></li>' for s in sections)
    tile_html = "".join(
        f'<div class="tile"><b>{escape(tile.value)}</b><span>{escape(tile.text)}</span></div>'
        for tile in tiles
    )
    note_html = "".join(f'<p class="note">{escape(note)}</p>' for note in notes)
    body = "\n".join(_section(section) for section in sections)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<header>
<h1>{escape(title)}</h1>
<p class="lead">{escape(lead)}</p>
<div class="tiles">{tile_html}</div>
{note_html}
</header>
<nav aria-label="Sections"><ul>{links}</ul></nav>
<main>
{body}
<footer>{escape(footer)}</footer>
</main>
</body>
</html>
"""


def _section(section: Section) -> str:
    figures = "".join(
        f"<figure>{figure.svg}<figcaption>{escape(figure.caption)}</figcaption></figure>"
        for figure in section.figures
    )
    reading = f"<div><h3>How to read it</h3><p>{escape(section.reading)}</p></div>" if section.reading else ""
    # A single figure leaves room beside it: what belongs to it stands there instead of below.
    alone = len(section.figures) == 1
    parts = [
        f'<section id="{escape(section.slug)}">',
        f"<h2>{escape(section.title)}</h2>",
        f"<p>{escape(section.asks)}</p>",
        f'<div class="figures">{figures}<div>{reading}{_here(section)}{_published(section)}</div></div>'
        if alone
        else f'<div class="figures">{figures}</div>' + reading,
        "" if alone else f'<div class="beside">{_here(section)}{_published(section)}</div>',
        _table(section.table, folded=section.folded) if section.table else "",
        "</section>",
    ]
    return "\n".join(part for part in parts if part)


def _here(section: Section) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in section.here)
    return f"<div><h3>Here</h3><ul>{items}</ul></div>" if items else ""


def _published(section: Section) -> str:
    if not section.published:
        return ""
    return f'<div class="published"><h3>Published</h3><p>{escape(section.published)}</p></div>'


def _table(table: Table, *, folded: bool) -> str:
    heads = "".join(f'<th scope="col">{escape(head)}</th>' for head in table.heads)
    rows = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in table.rows)
    html = f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'
    return f"<details><summary>The numbers</summary>{html}</details>" if folded else html


def _cell(text: str) -> str:
    plain = text.replace("\N{MINUS SIGN}", "-").removesuffix("%").strip()
    try:
        float(plain)
    except ValueError:
        return f'<td class="long">{escape(text)}</td>' if len(text) > 40 else f"<td>{escape(text)}</td>"
    return f'<td class="number">{escape(text)}</td>'
