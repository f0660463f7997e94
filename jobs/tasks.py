"""The work behind each command that needs torch: it joins the rooms, hands the teacher's modules to training,
and reports progress. What the terminal then shows of a result is in `show.py`.

    extract_images  opened_source  train_run  write_analysis
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from activault.analyze import (
    ReportInputs,
    Rollout,
    StoreAnalysis,
    analyze_store,
)
from activault.store import ConfigError, Store, open_store
from activault.store.repair_plan import read_plan

from . import console
from .phases import FoundPhases, find_phases, rows_of
from .probing import check_fit, probe_identity, probe_run
from .report_inputs import report_inputs
from .run_training import train_run

if TYPE_CHECKING:
    import torch

    from activault.extract import ExtractOptions, ExtractSummary, ImageSource
    from activault.train import Raptor, RolloutMetrics, Run

__all__ = [
    "Analysis",
    "extract_images",
    "opened_source",
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
    path: Path | str,
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
    check_fit(store, run)
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
    if made and probe_identity(store, run).items() <= made.items():
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
