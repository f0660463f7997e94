"""`activault sweep`: flags in, a table and an exit status out."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

from . import console

__all__ = ["sweep"]


def sweep(
    sweep: Path,
    /,
    *,
    out: Path | None = None,
    executor: Literal["local"] = "local",
    parallel: int = 1,
    seconds_per_step: float | None = None,
    device: str = "auto",
    dry_run: bool = False,
    json: bool = False,
) -> int:
    """Many training runs against one store: grids, random search, named variants, seeds.

    Prints its budget first, then makes every run, rolls it out on the test rows and probes it, and baselines
    beside them. results.md, results.parquet, layers.parquet and comparison.svg in the folder hold them side
    by side, as far as they are. Run again, it makes what is missing: finished runs are not run again, cut
    ones go on; a run whose cell was edited since is refused. A run that fails is told and the rest go on; the
    exit status is 1 then.

    ```
    activault sweep sweeps/phases.toml
    activault sweep sweeps/phases.toml --out runs/phases --parallel 2
    activault sweep recipes/sweeps/cifar.toml --dry-run --seconds-per-step 1.5
    ```

    Parameters
    ----------
    sweep
        A TOML file: a recipe, what is varied over it, baselines; see docs/training.md.
    out
        Folder for the runs and the tables; by default sweeps/NAME-OF-THE-FILE under the working directory.
    executor
        Where runs run: on this machine.
    parallel
        Runs at a time; they share the cores.
    seconds_per_step
        Time of a closed-loop step of one of the parallel runs, for the budget; by default a few steps are
        measured, which a dry run does not do.
    device
        auto, cpu, cuda, cuda:1, mps.
    dry_run
        Tell the budget and run nothing: steps, and with --seconds-per-step also time.
    json
        Print budget and results as JSON.
    """
    from activault.store import ConfigError

    from .sweep import run_sweep

    assert executor == "local", "the command line takes no other"
    if parallel < 1:
        raise ConfigError(f"at least one run runs at a time; got --parallel {parallel}")
    if seconds_per_step is not None and not 0 < seconds_per_step < math.inf:
        raise ConfigError(
            f"a step takes some time; got --seconds-per-step {seconds_per_step:g}: give the seconds of one, "
            "such as 1.5, or leave it out to have a few measured"
        )
    result = run_sweep(
        sweep,
        out or Path("sweeps") / sweep.stem,
        parallel=parallel,
        seconds_per_step=seconds_per_step,
        device=device,
        dry_run=dry_run,
        quiet=json,
    )
    if json:
        console.print_json(result.to_dict())
    elif not dry_run:
        result.show()
    return 1 if result.failed else 0
