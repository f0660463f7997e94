"""Where the program starts: everything else is imported inside a `try`.

Ctrl-C in the first half second, while modules are imported, ends as it does later: one line, status 130.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> int:
    """Run the command line and return its exit status."""
    try:
        from . import cli

        return cli.main()
    except KeyboardInterrupt:  # `cli.main` answers those that come later
        sys.stderr.write("activault: interrupted\n")
        return 130
