"""`export`: a finished run as files that PyTorch alone can run."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from . import console

__all__ = ["export"]


def export(
    run: Path,
    file: Path,
    /,
    *,
    which: Literal["last", "best"] = "last",
    ema: bool = False,
    overwrite: bool = False,
    json: bool = False,
) -> int:
    """Write a run as one safetensors file, its config, and one Python file that needs PyTorch alone.

    FILE.safetensors holds the tensors, FILE.json says what they are, and FILE.py runs them: `load` makes the
    model, which takes layer 0 to all later ones. Neither activault nor the teacher is needed for that.

    ```
    activault export runs/k3 exported/k3
    activault export runs/k3 exported/k3 --which best --ema --overwrite
    ```

    Parameters
    ----------
    run
        A finished run.
    file
        Name of the files, with or without .safetensors.
    which
        The last weights, or those of the best validation.
    ema
        Their moving average, if the run kept one.
    overwrite
        Replace files of that name.
    json
        Print the paths as JSON.
    """
    from activault.train import export_run, load_run

    exported = export_run(load_run(run, which, ema=ema), file, overwrite=overwrite)
    if json:
        console.print_json({"files": [str(path) for path in exported.paths]})
        return 0
    for path in exported.paths:
        console.say(f"{path}  {console.human_bytes(path.stat().st_size)}")
    return 0
