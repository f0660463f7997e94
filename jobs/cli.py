"""The command line: `activault COMMAND`, made from the functions of `commands.py`.

Exit status: 0 done, 1 a finding or a failure, 2 wrong usage, 130 interrupted. Errors are one line on standard
error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError, CycloptsPanel, Parameter

from activault.store import ActivaultError, ConfigError, MissingExtraError

from . import commands, console, sharing
from .exporting import export
from .importing import import_
from .said import remembered
from .sweeping import sweep

__all__ = ["app", "main"]


def _version() -> str:
    import importlib.metadata  # half as long as all of cyclopts

    return importlib.metadata.version("activault")


app = App(
    name="activault",
    help="Cache every layer of a frozen Vision Transformer once; train, probe and analyse from the store.",
    version=_version,
    default_parameter=Parameter(negative=(), consume_multiple=True),
    help_format="markdown",
    suppress_keyboard_interrupt=False,
)

for _name in ("demo", "extract", "info", "verify", "phases", "train", "probe", "analyze"):
    app.command(getattr(commands, _name))
for _name in ("pull", "merge", "publish"):
    app.command(getattr(sharing, _name))
app.command(import_, name="import")
app.command(sweep)
app.command(export)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with remembered(words):
            status = app(words, exit_on_error=False, print_error=False, result_action="return_value")
        return int(status or 0)
    except CycloptsError as error:
        console.err.print(CycloptsPanel(error))
        return 2
    except ActivaultError as error:
        console.err.print(f"activault: {error}", style="red", soft_wrap=True)
        return 2 if isinstance(error, ConfigError | MissingExtraError) else 1
    except BrokenPipeError:  # whoever read standard output, `head` say, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        place = f" ({error.filename})" if error.filename else ""
        console.err.print(
            f"activault: {error.strerror or error}{place}; nothing that was finished is lost",
            style="red",
            soft_wrap=True,
        )
        return 1
    except KeyboardInterrupt:
        console.err.print(
            "activault: interrupted; run the same command again and it goes on where it stopped",
            soft_wrap=True,
        )
        return 130
    except ModuleNotFoundError as error:
        return _missing(error)


def _missing(error: ModuleNotFoundError) -> int:
    """One line for a dependency that an extra would bring; anything else is our own fault and is raised."""
    extras = {"onnx": "demo", "skimage": "demo", "sklearn": "demo"}
    extras |= dict.fromkeys(("torch", "timm", "PIL", "matplotlib", "jaxtyping"), "all")
    module = (error.name or "").split(".")[0]
    if module not in extras:
        raise error
    remedy = f"python -m pip install 'activault[{extras[module]}]'"
    console.err.print(
        f"activault: this command needs {module}, which is not installed; {remedy}",
        soft_wrap=True,
    )
    return 2
