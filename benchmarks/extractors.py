"""What `extract.py` runs in turn: the bare forward, ours, the reference's script, and the usual own script.

A folder of images and a work folder in; images a second out, until every byte is on disk. A candidate lives
in a process of its own, in which the teacher is loaded once, before anything is timed.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
import types
import warnings
from pathlib import Path
from typing import Any

import torch
from extraction_task import (
    Extractor,
    Measured,
    Task,
    decoded,
    forward_rate,
    linked,
    rows_of,
    settled,
    teacher_of,
)

from activault.extract.arithmetic import Arithmetic
from activault.extract.backbone import Backbone
from activault.extract.batch_size import choose_batch_size
from activault.extract.calibration import calibration_for
from activault.extract.capture import capture
from activault.extract.memory import host_peak
from activault.extract.planning import plan_manifest, plan_table
from activault.store import create_store

BATCH = 64


class PlainForward(Extractor):
    """As a script would have it: one batch after the other, all threads in each."""

    name = f"bare forward, batches of {BATCH}"

    def run(self, task: Task, folder: Path) -> Measured:  # noqa: ARG002, D102
        return Measured(forward_rate(task, BATCH, 1))


class OurForward(Extractor):
    """As our engine has it on a CPU, and nothing else: the hardest to come near to."""

    name = "bare forward, as our engine runs it"

    def run(self, task: Task, folder: Path) -> Measured:  # noqa: ARG002, D102
        size = choose_batch_size(BATCH, teacher_of(task), Arithmetic()).num_images
        on_cpu = teacher_of(task).mean.device.type == "cpu"
        return Measured(forward_rate(task, size, torch.get_num_threads() if on_cpu else 1))


class Ours(Extractor):
    """From the first image file to a complete store; the plan and loading the teacher come before."""

    name = "activault extract"

    def run(self, task: Task, folder: Path) -> Measured:  # noqa: D102
        source, order, decode = rows_of(task)
        backbone, options = teacher_of(task), task.options
        steps = calibration_for(backbone, decode, len(order), options)
        manifest = plan_manifest(source, len(order), backbone, options, lambda: None, steps)
        with create_store(folder / "s.zarr", manifest, plan_table(source, order), {}) as writer:
            begun = time.perf_counter()
            stalls = capture(writer, backbone, decode, batch_size=BATCH, workers=os.cpu_count() or 1)
            writer.complete()
        seconds = time.perf_counter() - begun
        work = {part: seconds * 1000 / task.num_images for part, seconds in stalls.work.items()}
        return Measured(task.num_images / seconds, waited=stalls.shares(), work=work)


class _AsDinov2(torch.nn.Module):
    """Our teacher under the two names that the reference's script asks its model for."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone
        self.blocks = backbone.blocks

    def prepare_tokens_with_masks(self, images: torch.Tensor, masks: None) -> torch.Tensor:  # noqa: ARG002
        return self.backbone.embed(images)


class Reference(Extractor):
    """`data/precompute_dinov2_act.py` of KempnerInstitute/raptor at ba3b53f, run from a checkout.

    Replaced from outside: where images and store are, the hub's model by ours, the literals of tokens, width
    and pixels, a batch of 256 by 128 (a chunk: 256 would leave nothing to overlap with), and `.cuda()` where
    there is no GPU. Its loader's 4 processes, its queue, its writer and its format are as they are.
    """

    name = "the reference's script"

    def run(self, task: Task, folder: Path) -> Measured:  # noqa: D102
        assert task.reference is not None
        script = task.reference / "data" / "precompute_dinov2_act.py"
        backbone, text = teacher_of(task), script.read_text()
        for old, new in (
            ("num_tokens = 261", f"num_tokens = {backbone.layout.num_tokens}"),
            ("dim = 768", f"dim = {backbone.dim}"),
            ("batch_size = 256", "batch_size = 128"),
            ("Resize(256,", f"Resize({backbone.preprocessing.resize},"),
            ("CenterCrop(224)", f"CenterCrop({task.image_size})"),
        ):
            assert text.count(old) == 1, f"{script} is another version: {old!r}"
            text = text.replace(old, new)
        paths = types.ModuleType("paths")
        vars(paths).update(IMAGENET_TRAIN_DIR=str(linked(task)), DATA_DIR=str(folder))
        sys.modules["paths"] = paths
        torch.hub.load = lambda *_, **__: _AsDinov2(backbone)  # type: ignore[assignment]
        if not torch.cuda.is_available():
            torch.Tensor.cuda = lambda self, *_, **__: self  # type: ignore[method-assign, assignment]
            torch.nn.Module.cuda = lambda self, *_, **__: self  # type: ignore[method-assign, assignment]
        begun = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            names: dict[str, Any] = {"__name__": "__main__"}
            try:
                exec(compile(text, str(script), "exec"), names)
            finally:
                # If it fails, its writer would wait for ever, and this process with it.
                if "write_queue" in names:
                    names["write_queue"].put(None)
        settled(folder)
        return Measured(task.num_images / (time.perf_counter() - begun))


class OwnScript(Extractor):
    """What people write for themselves: a DataLoader, timm's `forward_intermediates`, safetensors a batch.

    Of all blocks and no layer 0, in the dtype of the store; loader processes as many as cores.
    """

    name = "own script: timm and safetensors"

    def run(self, task: Task, folder: Path) -> Measured:  # noqa: D102
        from safetensors.torch import save_file
        from torch.utils.data import DataLoader
        from torchvision import datasets, transforms

        backbone = teacher_of(task)
        device, plan = backbone.mean.device, backbone.preprocessing
        transform = transforms.Compose(
            [
                transforms.Resize(plan.resize, transforms.InterpolationMode.BICUBIC),
                transforms.CenterCrop(plan.image_size),
                transforms.ToTensor(),
                transforms.Normalize(plan.mean, plan.std),
            ]
        )
        images = datasets.ImageFolder(str(linked(task)), transform)
        dtype = getattr(torch, task.dtype if task.dtype != "int8" else "float16")
        begun = time.perf_counter()
        loader = DataLoader(images, BATCH, num_workers=os.cpu_count() or 1, pin_memory=device.type == "cuda")
        with torch.inference_mode():
            for number, (batch, _) in enumerate(loader):
                found = backbone.vit.forward_intermediates(
                    batch.to(device, non_blocking=True),
                    return_prefix_tokens=True,
                    output_fmt="NLC",
                    intermediates_only=True,
                )
                tensors = {
                    f"layer_{layer}": torch.cat([prefix, patches], dim=1).to(dtype).cpu()
                    for layer, (patches, prefix) in enumerate(found, start=1)
                }
                save_file(tensors, folder / f"{number:05d}.safetensors")
        settled(folder)
        return Measured(task.num_images / (time.perf_counter() - begun))


CANDIDATES: tuple[type[Extractor], ...] = (PlainForward, OurForward, Ours, Reference, OwnScript)


def measure(kind: type[Extractor], task: Task) -> Measured:
    """Run a candidate once, in the process that this is called in."""
    folder = task.work / kind.__name__
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    decoded(task)
    measured = kind().run(task, folder)
    measured.num_bytes = settled(folder)
    measured.peak_host_bytes = host_peak() or 0
    shutil.rmtree(folder)
    return measured
