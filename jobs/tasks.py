"""The work behind each command that needs torch: it joins the rooms, hands the teacher's modules to training,
and reports progress. What the terminal then shows of a result is in `show.py`.

    extract_images  opened_source  train_run  probe_run  write_analysis
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from activault.analyze import (
    ReportInputs,
    Rollout,
    StoreAnalysis,
    analyze_store,
    max_cut_phases,
)
from activault.store import ConfigError, RunError, Store, open_store
from activault.store.repair_plan import read_plan

from . import console
from .phases import FoundPhases, find_phases, rows_of, training_similarity
from .report_inputs import report_inputs

if TYPE_CHECKING:
    import torch

    from activault.extract import ExtractOptions, ExtractSummary, ImageSource
    from activault.extract.backbone import Backbone
    from activault.train import ProbeReport, Raptor, RolloutMetrics, Run, RunSummary, TrainRecipe

__all__ = [
    "Analysis",
    "extract_images",
    "opened_source",
    "probe_run",
    "train_run",
    "write_analysis",
]


def extract_images(
    images: Path | str,
    store: Path | str,
    options: ExtractOptions,
    *,
    repair: Path | None = None,
    quiet: bool = False,
) -> ExtractSummary:
    """Plan, extract, resume; see `activault.extract.extract`. Or carry out the plan in the file `repair`."""
    from activault.extract import extract
    from activault.extract import repair as carry_out

    source = opened_source(images, options, quiet=quiet)
    with console.progress_bar("extract", "rows", quiet=quiet) as advance:
        if repair is None:
            return extract(source, store, options, progress=advance)
        return carry_out(source, store, options, read_plan(repair), progress=advance)


def opened_source(images: Path | str, options: ExtractOptions, *, quiet: bool = False) -> ImageSource:
    """The images of a request, and a line on standard error for whatever is to be known of them first."""
    from activault.extract import open_source

    with console.progress_bar("index", "B", quiet=quiet) as advance:
        source = open_source(images, options.source, advance)
    for line in source.faults:
        console.warn(line)
    if source.rows_at_once > 1 and options.order == "shuffled":
        console.warn(
            f"Parquet is read by row groups, here of {source.rows_at_once} rows: shuffled rows read that "
            "many times the bytes; --order kept reads them once"
        )
    return source


def train_run(
    recipe_path: Path,
    out: Path,
    *,
    overrides: Sequence[str] = (),
    weights: Path | None = None,
    device: str = "auto",
    quiet: bool = False,
) -> RunSummary:
    """Train a recipe to its end, finding its phases and fetching the teacher's blocks from the store."""
    from activault.extract.machine import choose_device
    from activault.train import StageProgress, load_recipe, train

    recipe, chosen = load_recipe(recipe_path, overrides), choose_device(device)
    store = open_store(recipe.store)
    cuts = recipe.cuts if recipe.cuts is not None else _cuts_of(recipe, store, out, quiet)
    blocks = None
    if recipe.teacher_block:
        remedy = 'start the blocks at random (init = "random")'
        blocks = list(_teacher_of(store, weights, remedy).blocks)
    total = recipe.stage1.steps * (len(cuts) + 1) + recipe.stage2.steps
    done: dict[str, int] = {}
    with console.progress_bar("train", "steps", quiet=quiet) as advance:

        def report(state: StageProgress) -> None:
            done[state.stage] = state.step
            loss = "" if state.loss is None else f" loss {state.loss:.4f}"
            advance(sum(done.values()), total, f"{state.stage}{loss}")

        return train(
            recipe, out, store=store, cuts=cuts, teacher_blocks=blocks, device=chosen, progress=report
        )


def _teacher_of(store: Store, weights: Path | None, remedy: str) -> Backbone:
    """The store's own teacher; `weights` are used where the store was made without them.

    Raises:
        ConfigError: it has none, as an imported one, or its weights were left out and are not given.
        WeightsError: its files are damaged, or other weights are given.
    """
    from activault.extract.backbone import load_teacher
    from activault.extract.teacher_files import weights_left_out

    if not store.teacher_dir.is_dir() or not any(store.teacher_dir.iterdir()):
        raise ConfigError(f"this needs the teacher's weights, and {store.path} carries none; {remedy}")
    if weights is None and weights_left_out(store.teacher_dir):
        teacher = store.manifest.teacher
        raise ConfigError(
            f"this needs the teacher's weights, and {store.path} was made without them; give those of "
            f"{teacher.name} ({teacher.weights}; hash {teacher.weights_sha256}) with --weights, or {remedy}"
        )
    return load_teacher(store.teacher_dir, weights=weights)


def _cuts_of(recipe: TrainRecipe, store: Store, out: Path, quiet: bool) -> tuple[int, ...]:
    """The phases of a run that was begun, which `train` then holds against the recipe; else the store's."""
    assert recipe.num_phases is not None, "a recipe has cuts or num_phases"
    from activault.train.run_folder import read_run

    if (out / "run.json").exists():
        cuts = read_run(out).get("model", {}).get("cuts", ())
        return tuple(int(cut) for cut in cuts)
    return max_cut_phases(training_similarity(store, quiet=quiet), recipe.num_phases, recipe.cost).cuts


def probe_run(
    path: Path | str,
    run_path: Path,
    *,
    task: Literal["classification"] = "classification",
    weights: Path | None = None,
    device: str = "auto",
    quiet: bool = False,
) -> ProbeReport:
    """Teacher, surrogate and baselines under linear heads; also written to the run's `probe.json`."""
    from activault.extract.machine import choose_device
    from activault.train import load_run, probe, repeated_blocks
    from activault.train.checkpoint import write_json

    store, run, chosen = open_store(path), load_run(run_path), choose_device(device)
    _check_fit(store, run)
    train_rows, test_rows = rows_of(store, "train"), rows_of(store, "test")
    teacher = _teacher_of(store, weights, "probe from a store that `activault extract` made").to(chosen)
    untrained = repeated_blocks(run.model.config, list(teacher.blocks)).to(chosen)
    with console.progress_bar("probe", "rows", quiet=quiet) as advance:
        report = probe(
            store,
            run.model.to(chosen),
            teacher.norm,
            {"untrained blocks": untrained},
            train_rows,
            test_rows,
            device=chosen,
            progress=advance,
        )
    try:
        write_json(run_path / "probe.json", {"task": task, **_probe_identity(store, run), **report.to_dict()})
    except RunError as exc:  # another team's run may be read-only; its numbers are still good
        console.err.print(f"activault: the probe is not kept: {exc}", style="yellow", soft_wrap=True)
    return report


def _probe_identity(store: Store, run: Run) -> dict[str, str]:
    """What a probe was made from."""
    with (run.path / "model.safetensors").open("rb") as file:
        return {"store_digest": store.digest, "model_sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _check_fit(store: Store, run: Run) -> None:
    """A run rolls out from a store of its own teacher; the images may be others."""
    if store.manifest.teacher.weights_sha256 != run.teacher_sha256:
        raise ConfigError(
            f"a run is held against its own teacher's activations; {run.path} was trained on weights "
            f"{run.teacher_sha256[:12]}..., {store.path} has {store.manifest.teacher.weights_sha256[:12]}..."
        )


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """What `activault analyze` leaves."""

    page: Path
    """The HTML report."""
    inputs: ReportInputs
    """Everything that is in it."""
    rollout: RolloutMetrics | None
    """R2 and cosine of the run's roll-outs on test rows, if there was a run."""
    probe: dict[str, Any] | None
    """The run's probes, as `ProbeReport.to_dict` gives them, if there was a run and there are labels."""


def write_analysis(
    path: Path,
    out: Path,
    *,
    run_path: Path | None = None,
    weights: Path | None = None,
    device: str = "auto",
    quiet: bool = False,
) -> Analysis:
    """Every analysis, on all rows or, beside a run, on test rows alone; figures, numbers and the page.

    The phases are those of `find_phases`, from the training rows, so that every command tells the same ones.
    """
    from activault.analyze import write_report

    store, found = open_store(path), find_phases(path, quiet=quiet)
    if run_path is None:
        analysis = _analyzed(store, store.valid_rows, None, quiet)
        inputs = report_inputs(store, analysis, found)
        return Analysis(page=write_report(out, inputs), inputs=inputs, rollout=None, probe=None)
    return _analysis_of_run(store, out, found, run_path, weights, device, quiet)


def _analysis_of_run(
    store: Store,
    out: Path,
    found: FoundPhases,
    run_path: Path,
    weights: Path | None,
    device: str,
    quiet: bool,
) -> Analysis:
    from activault.analyze import write_report
    from activault.extract.machine import choose_device
    from activault.train import evaluate_rollout, load_run

    run, chosen = load_run(run_path), choose_device(device)
    _check_fit(store, run)
    model, rows = run.model.to(chosen), rows_of(store, "test")
    with console.progress_bar("roll out", "rows", quiet=quiet) as advance:
        rollout = evaluate_rollout(model, store, rows, device=chosen, progress=advance)
    analysis = _analyzed(store, rows, _rollout_of(model, chosen), quiet)
    probe, why_not = _probe_of(store, run, weights, device, quiet)
    inputs = report_inputs(store, analysis, found, run=run, rollout=rollout, probe=probe)
    if why_not:
        inputs.notes["probes"] = f"left out: {why_not}"
    return Analysis(page=write_report(out, inputs), inputs=inputs, rollout=rollout, probe=probe)


def _rollout_of(model: Raptor, device: torch.device) -> Rollout:
    """Layer 0 to all later layers, NumPy in and out."""
    import torch

    @torch.no_grad()
    def roll(tokens: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        layers: npt.NDArray[np.float32] = model(torch.from_numpy(tokens).to(device)).cpu().numpy()
        return layers

    return roll


def _analyzed(
    store: Store, rows: npt.NDArray[np.int64], surrogate: Rollout | None, quiet: bool
) -> StoreAnalysis:
    with console.progress_bar("analyze", "rows", quiet=quiet) as advance:
        return analyze_store(store, rows, surrogate, ks=(), progress=advance)


def _probe_of(
    store: Store, run: Run, weights: Path | None, device: str, quiet: bool
) -> tuple[dict[str, Any] | None, str]:
    """The run's probe on this store, as `activault probe` left it or made now; or why there can be none."""
    made = _read_probe(run.path / "probe.json")
    if made and _probe_identity(store, run).items() <= made.items():
        return made, ""
    try:
        probe = probe_run(store.path, run.path, weights=weights, device=device, quiet=quiet)
        return probe.to_dict(), ""
    except ConfigError as exc:  # no labels, one class, no weights: a report without probes is still a report
        return None, str(exc)


def _read_probe(path: Path) -> dict[str, Any]:
    """What stands there; nothing if it is absent or damaged, since it can be made again."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return report if isinstance(report, dict) else {}
