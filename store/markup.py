"""Strings of strangers in Markdown and YAML: never markup, whatever is in them."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["as_block", "as_code", "one_line", "yaml_string"]

_MOST_CHARACTERS: Final = 300
_MOST_IN_BLOCK: Final = 20_000


def one_line(text: str) -> str:
    """Printable characters of `text` in one line of bounded length."""
    line = " ".join("".join(mark if mark.isprintable() else " " for mark in text).split())
    return line if len(line) <= _MOST_CHARACTERS else line[: _MOST_CHARACTERS - 1] + "…"


def _fence(text: str, least: int) -> str:
    """Backticks enough to hold `text`."""
    return "`" * max(least, 1 + max((len(run) for run in re.findall("`+", text)), default=0))


def as_code(text: str) -> str:
    """`text` as Markdown code within a line."""
    line = one_line(text)
    if not line:
        return "(empty)"
    fence, pad = _fence(line, 1), " " if "`" in (line[0], line[-1]) else ""
    return f"{fence}{pad}{line}{pad}{fence}"


def as_block(text: str) -> str:
    """`text` as a Markdown code block, its lines kept."""
    held = text.strip()[:_MOST_IN_BLOCK].replace("\r\n", "\n")
    lines = "".join(mark if mark.isprintable() or mark == "\n" else " " for mark in held)
    fence = _fence(lines, 3)
    return f"{fence}\n{lines}\n{fence}"


def yaml_string(text: str) -> str:
    """`text` as a double-quoted YAML string."""
    marks = (mark if mark.isprintable() and mark not in '"\\' else f"\\U{ord(mark):08X}" for mark in text)
    return f'"{"".join(marks)}"'
