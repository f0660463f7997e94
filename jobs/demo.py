"""The demo: real photographs and a real teacher through every command, as a user would type them.

    OUT/images/          seeded crops of the photographs that scikit-image and scikit-learn carry
    OUT/store.zarr/      the demo teacher's layers 0-12 over them
    OUT/demo.toml        the recipe
    OUT/run/             a surrogate of three blocks, trained from the store
    OUT/report/          report.html, numbers.json, layers.parquet

Everything resumes: started again after an interruption it goes on, and ends with the same store digest and,
on the same machine, the same final loss.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from activault.extract import ExtractOptions
from activault.extract.demo_crops import DemoImages, demo_images
from activault.train.checkpoint import write_atomically

from . import console, inspect, probing, show, tasks
from .phases import SHOWN_PHASES, find_phases

if TYPE_CHECKING:
    from activault.extract import ExtractSummary
    from activault.train import RunSummary

    from .tasks import Analysis

__all__ = ["DemoOptions", "DemoResult", "run_demo"]


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """How large the demo is; the defaults are the ones whose numbers the README tells."""

    images: DemoImages = field(default_factory=DemoImages)
    """The crops."""
    shard_rows: int = 128
    """Small shards, so that an interrupted extraction loses seconds."""
    batch_size: int = 32
    """Images a forward pass."""
    overrides: tuple[str, ...] = ()
    """Changes to the recipe, as `key=value`."""


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """What the demo leaves, and the table it closes with."""

    seconds: float
    extraction: ExtractSummary
    training: RunSummary
    analysis: Analysis

    def numbers(self) -> dict[str, Any]:
        """The closing numbers, as JSON takes them."""
        rollout, probe = self.analysis.rollout, self.analysis.probe
        assert rollout is not None, "the demo analyses its run"
        return {
            "report": str(self.analysis.page),
            "seconds": round(self.seconds, 1),
            "digest": self.extraction.digest,
            "num_rows": self.extraction.num_rows,
            "num_bytes": self.extraction.num_bytes,
            "float32_bytes": self.extraction.float32_bytes,
            "phases": {phases.k: phases.cuts for phases in self.analysis.inputs.analysis.phases},
            "cuts": list(self.training.cuts),
            "final_loss": self.training.stages[-1].loss,
            "r2": rollout.to_dict()["r2"],
            "probe": probe,
        }

    def show(self) -> None:
        """The closing table and the path of the report."""
        rollout, probe = self.analysis.rollout, self.analysis.probe
        assert rollout is not None, "the demo analyses its run"
        assert probe is not None, "the demo's images have labels"
        kinds = [*(kind for kind in rollout.r2 if kind != "all"), "all"]
        rows = [
            (f"{layer}", *(_r2(rollout.r2[kind][place]) for kind in kinds))
            for place, layer in enumerate(rollout.layers)
        ]
        console.out.print()
        show.show_probe(probe)
        console.out.print()
        title = f"R2 of the closed loop on {rollout.num_rows:,} held-out crops"
        console.out.print(console.table(title, ("layer", *kinds), rows))
        found = "; ".join(
            f"k = {phases.k}: {', '.join(map(str, phases.cuts))}"
            for phases in self.analysis.inputs.analysis.phases
        )
        stored = show.bytes_line(self.extraction.num_bytes, self.extraction.float32_bytes)
        console.out.print(
            f"\n{self.extraction.num_rows:,} rows, {stored}\nphases end after layers  {found}\n"
            f"{console.human_seconds(self.seconds)} in all. The teacher is a DINOv2 ViT-S/14 fine-tuned for "
            "saliency, not Meta's release.",
            soft_wrap=True,
        )
        console.out.print(f"report: {self.analysis.page}", soft_wrap=True, style="bold")


def _r2(value: float | None) -> str:
    return "constant" if value is None else f"{value:.2f}"


def run_demo(out: Path, options: DemoOptions | None = None, *, quiet: bool = False) -> DemoResult:
    """Run the whole pipeline into a folder, or go on with what is there.

    Raises:
        ActivaultError: from any step; nothing that was finished is lost.
    """
    options, began = options or DemoOptions(), time.perf_counter()
    store, run, report = out / "store.zarr", out / "run", out / "report"

    _say(quiet, f"crops of ten photographs -> {out / 'images'}")
    images = demo_images(out / "images", options.images)
    extract = ExtractOptions(
        teacher="demo",
        image_size=options.images.side,
        resize=options.images.side,
        batch_size=options.batch_size,
        shard_rows=options.shard_rows,
    )
    side = options.images.side
    _say(
        quiet,
        f"activault extract {images} {store} --teacher demo --image-size {side} --resize {side} "
        f"--batch-size {options.batch_size} --shard-rows {options.shard_rows}",
    )
    extraction = tasks.extract_images(images, store, extract, quiet=quiet)
    _say(quiet, f"activault verify {store} --deep --complete")
    inspect.require_sound(store, quiet=quiet)
    _say(quiet, f"activault phases {store} --k 2 3 4")
    if not quiet:
        show.show_phases(find_phases(store, k=SHOWN_PHASES))
    training = _train(out, options.overrides, quiet)
    _say(quiet, f"activault probe {store} --run {run}")
    probing.probe_run(store, run, quiet=quiet)
    _say(quiet, f"activault analyze {store} --run {run} --out {report}")
    analysis = tasks.write_analysis(store, report, run_path=run, quiet=quiet)
    return DemoResult(
        seconds=time.perf_counter() - began,
        extraction=extraction,
        training=training,
        analysis=analysis,
    )


def _train(out: Path, overrides: Sequence[str], quiet: bool) -> RunSummary:
    """Train by a copy of the demo's recipe, so that its command can be typed and its values changed."""
    recipe, store, run = out / "demo.toml", out / "store.zarr", out / "run"
    if not recipe.exists():
        text = resources.files("activault.jobs").joinpath("demo.toml").read_bytes()
        write_atomically(recipe, lambda temporary: temporary.write_bytes(text))
    _say(quiet, f"activault train {recipe} --out {run} --set store={store}")
    settings = (f"store={json.dumps(str(store))}", *overrides)
    summary = tasks.train_run(recipe, run, overrides=settings, quiet=quiet)
    if not quiet:
        show.show_training(run, summary)
    return summary


def _say(quiet: bool, text: str) -> None:
    if not quiet:
        console.err.print(f"$ {text}", style="cyan", soft_wrap=True)
