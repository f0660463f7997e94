"""Where the program starts: everything else is imported inside a `try`.

Ctrl-C in the first half second, while modules are imported, ends as it does later: one line, status 130.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

__all__ = ["main"]

_ROOT = Path(__file__).resolve().parents[1]
_as_python_does = warnings.formatwarning


def main() -> int:
    """Run the command line and return its exit status."""
    warnings.formatwarning = _format_warning
    try:
        from . import cli

        return cli.main()
    except KeyboardInterrupt:  # `cli.main` answers those that come later
        sys.stderr.write("activault: interrupted\n")
        return 130


def _format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """What this program warns of, as the line that it tells everything else in; others as Python does."""
    if category is RuntimeWarning and _ROOT in Path(filename).resolve().parents:
        return f"activault: {message}\n"
    return _as_python_does(message, category, filename, lineno, line)
