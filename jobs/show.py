"""Results as the terminal shows them; numbers in tables, one idea a table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import console

if TYPE_CHECKING:
    from activault.extract import ExtractSummary
    from activault.train import CostComparison, RolloutMetrics, RunSummary

    from .phases import FoundPhases

__all__ = [
    "bytes_line",
    "show_cost",
    "show_extraction",
    "show_phases",
    "show_probe",
    "show_rollouts",
    "show_training",
]


def bytes_line(num_bytes: int, float32_bytes: int) -> str:
    """`268 MB, 1 / 2.66 of float32`."""
    return f"{console.human_bytes(num_bytes)}, 1 / {float32_bytes / max(num_bytes, 1):.2f} of float32"


def show_extraction(store: Path | str, summary: ExtractSummary) -> None:
    """Rows, bytes, where the time went, and the digest."""
    bad = ", ".join(f"{count} {status}" for status, count in summary.bad.items())
    rate = summary.num_new / summary.seconds if summary.seconds else 0.0
    lines = {
        "rows": f"{summary.num_rows:,}" + (f", of which bad: {bad}" if bad else ""),
        "new": f"{summary.num_new:,} in {console.human_seconds(summary.seconds)} ({rate:,.1f} rows/s)",
        "stored": bytes_line(summary.num_bytes, summary.float32_bytes),
        "digest": summary.digest,
    }
    if summary.num_new:
        lines |= _engine_lines(summary)
    console.out.print(f"{store}", style="bold", soft_wrap=True)
    for name, text in lines.items():
        console.out.print(f"  {name:<7} {text}", soft_wrap=True)
    if summary.num_new:
        rows = [(part, f"{share:.1%}", f"{summary.work[part]:.1%}") for part, share in summary.stalls.items()]
        console.out.print(console.table("Where the time went", ("part", "waited for", "work"), rows))


def _engine_lines(summary: ExtractSummary) -> dict[str, str]:
    """Images of a forward, how they were found, and the most memory."""
    batch = f"{summary.batch_size} image{'s' * (summary.batch_size != 1)} a forward"
    if summary.batch_rates:
        tried = ", ".join(f"{size}: {rate:,.1f}" for size, rate in summary.batch_rates.items())
        batch += f", found among (images/s) {tried}"
    peaks = {"host": summary.peak_host_bytes, "device": summary.peak_device_bytes}
    known = [f"{name} {console.human_bytes(most)}" for name, most in peaks.items() if most is not None]
    return {"batch": batch, "memory": f"peak {', '.join(known)}" if known else "not known"}


def show_phases(found: FoundPhases) -> None:
    """Every k with its phases, the stability of each cut, and the second-best cuts; then the cost curve."""
    rows = []
    for phases in found.phases:
        kept = "  ".join(f"{share:.0%}" for share in phases.stability or ())
        second = ", ".join(map(str, phases.second_cuts)) if phases.second_cuts else "-"
        cuts = ", ".join(map(str, phases.cuts)) or "-"
        rows.append((str(phases.k), cuts, kept or "-", f"{phases.value:.3f}", second))
    cost = found.phases[0].cost
    title = f"Phases by {cost}, from {found.num_rows:,} images of the training split"
    console.out.print(
        console.table(title, ("k", "cuts after layers", "kept", "cost", "second-best cuts"), rows)
    )
    curve = "  ".join(f"{phases.k}: {phases.value:.3f}" for phases in found.curve)
    console.out.print(f"cost by k   {curve}", soft_wrap=True)
    if cost != "ncut":
        console.out.print("Only the cost ncut gives the published phases of DINOv2 ViT-B/14.")


def show_training(run: Path, summary: RunSummary) -> None:
    """Stages with their last loss, the share of time spent waiting for data, and R2 where it was measured."""
    plain = all(stage.validation is None for stage in summary.stages)
    rows = [
        (
            stage.name,
            f"{stage.steps:,}",
            f"{stage.loss:.4f}",
            console.human_seconds(stage.seconds),
            f"{stage.wait_seconds / stage.seconds:.1%}" if stage.seconds else "-",
            *([] if plain else ["-" if stage.validation is None else f"{stage.validation:.4f}"]),
        )
        for stage in summary.stages
    ]
    phases = f"cuts {', '.join(map(str, summary.cuts)) or 'none'}"
    if summary.groups is not None:
        phases = f"groups {' and '.join('+'.join(map(str, group)) for group in summary.groups)}"
    title = f"{run}: {phases}; {summary.num_parameters:,} parameters"
    columns = ("stage", "steps", "loss", "time", "waiting for data", *(() if plain else ("R2 held out",)))
    console.out.print(console.table(title, columns, rows))
    if not summary.finished:
        console.say("The run is not finished: other stages are left.")


def show_cost(cost: CostComparison) -> None:
    """The model beside its teacher's blocks: what they hold, multiply and take."""
    title = f"Cost from layer 0 to the last, rows of {cost.tokens:,} tokens"
    console.out.print(console.table(title, ("", "teacher", "surrogate", "ratio"), cost.rows()))


def show_probe(probe: dict[str, Any]) -> None:
    """Accuracy and retention of every model under both heads; `probe` is `ProbeReport.to_dict()`."""
    rows = [
        (
            name,
            *(f"{score[f'{head}_accuracy']:.1%}" for head in ("frozen", "refitted")),
            *(f"{score[f'{head}_retention']:.1%}" for head in ("frozen", "refitted")),
        )
        for name, score in probe["scores"].items()
    ]
    title = (
        f"Linear probe: {len(probe['classes'])} classes, {probe['num_train']:,} training and "
        f"{probe['num_test']:,} test rows, chance {probe['chance']:.1%}"
    )
    columns = ("model", "accuracy\nfrozen", "accuracy\nrefitted", "retention\nfrozen", "retention\nrefitted")
    console.out.print(console.table(title, columns, rows))
    if "surrogate" not in probe["scores"]:
        return
    verdict = "beats" if probe["beats_baselines"] else "does NOT beat"
    console.out.print(f"The surrogate {verdict} every baseline under both heads.")


def show_rollouts(rollouts: Mapping[str, RolloutMetrics]) -> None:
    """R2 of every model's closed loop: the mean over layers, and the last layer."""
    if not rollouts:
        return
    kinds = list(next(iter(rollouts.values())).r2)
    rows = []
    for name, metrics in rollouts.items():
        values = {kind: [value for value in metrics.r2[kind] if value is not None] for kind in kinds}
        means = [f"{sum(found) / len(found):.3f}" if found else "-" for found in values.values()]
        lasts = [f"{metrics.r2[kind][-1]:.3f}" if metrics.r2[kind][-1] is not None else "-" for kind in kinds]
        rows.append((name, *means, *lasts))
    columns = [f"{kind}\n{which}" for which in ("mean", "last") for kind in kinds]
    num_rows = next(iter(rollouts.values())).num_rows
    title = f"R2 of the closed loop on {num_rows:,} test rows: mean over layers, and last layer"
    console.out.print(console.table(title, ("model", *columns), rows))
