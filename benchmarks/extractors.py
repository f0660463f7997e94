"""What `extract.py` runs in turn: the bare forward, ours, the reference's script, and the usual own script.

A folder of images and a work folder in; images a second out, until every byte is on disk. A candidate lives
in a process of its own, in which the teacher is loaded once, before anything is timed.
"""

from __future__ import annotations

import os
import resource
import shutil
import sys
import time
import types
import warnings
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from activault.extract import ExtractOptions, open_source
from activault.extract.arithmetic import Arithmetic, Forward, exact_arithmetic
from activault.extract.backbone import Backbone, load_backbone
from activault.extract.batch_size import choose_batch_size
from activault.extract.capture import capture
from activault.extract.machine import choose_device
from activault.extract.planning import plan_manifest, plan_table, row_order
from activault.extract.run import row_decoder
from activault.store import create_store

BATCH = 64


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is extracted, and where to."""

    images: Path
    work: Path
    teacher: str
    image_size: int
    num_images: int
    shard_rows: int
    device: str
    dtype: str
    reference: Path | None

    @property
    def options(self) -> ExtractOptions:
        """As ours is asked."""
        return ExtractOptions(
            teacher=self.teacher,
            image_size=self.image_size,
            limit=self.num_images,
            shard_rows=self.shard_rows,
            device=self.device,
            dtype=self.dtype,  # type: ignore[arg-type]
        )


@dataclass
class Measured:
    """One run of one candidate."""

    rate: float
    """Images a second."""
    num_bytes: int = 0
    peak_host_bytes: int = 0
    waited: dict[str, float] = field(default_factory=dict)
    work: dict[str, float] = field(default_factory=dict)
    """Processor time a row in ms."""


@cache
def _teacher(task: Task) -> Backbone:
    backbone = load_backbone(task.teacher, image_size=task.image_size)
    return backbone.to(choose_device(task.device))


@cache
def _rows(task: Task) -> tuple[Any, Any, Any]:
    source = open_source(str(task.images))
    order = row_order(source, task.options)
    return source, order, row_decoder(source, order, _teacher(task), task.options)


@cache
def _decoded(task: Task) -> torch.Tensor:
    decode = _rows(task)[2]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        rows = list(threads.map(decode, range(task.num_images)))
    return torch.from_numpy(np.stack([row.pixels for row in rows]))


def _settled(folder: Path) -> int:
    """Bring every file to disk; returns their bytes."""
    total = 0
    for file in folder.rglob("*"):
        if file.is_file():
            handle = os.open(file, os.O_RDONLY)
            os.fsync(handle)
            os.close(handle)
            total += file.stat().st_size
    return total


class Extractor(ABC):
    """One way to do it."""

    name = ""

    @abstractmethod
    def run(self, task: Task, folder: Path) -> Measured:
        """All images once; into an empty folder, if anything is written."""


def _forward_rate(task: Task, batch: int, threads: int) -> float:
    """Images a second of forwards alone, of decoded images; `threads` forwards of one thread each, or one."""
    forward, pixels = (
        Forward(_teacher(task), Arithmetic(), range(_teacher(task).num_blocks + 1)),
        _decoded(task),
    )

    @torch.inference_mode()
    def run(start: int) -> None:
        for _, tokens in forward(pixels[start : start + batch]):
            del tokens

    starts, begun = range(0, len(pixels), batch), time.perf_counter()
    with exact_arithmetic():
        if threads == 1:
            for start in starts:
                run(start)
        else:
            cores = torch.get_num_threads()
            with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                list(pool.map(run, starts))
            torch.set_num_threads(cores)
        if _teacher(task).mean.device.type != "cpu":
            torch.accelerator.synchronize()
    return len(pixels) / (time.perf_counter() - begun)


class PlainForward(Extractor):
    """As a script would have it: one batch after the other, all threads in each."""

    name = f"bare forward, batches of {BATCH}"

    def run(self, task: Task, folder: Path) -> Measured:  # noqa: ARG002, D102
        return Measured(_forward_rate(task, BATCH, 1))


class OurForward(Extractor):
    """As our engine has it on a CPU, and nothing else: the hardest to come near to."""

    name = "bare forward, as our engine runs it"

    def run(self, task: Task, folder: Path) -> Measured:  # noqa: ARG002, D102
        size = choose_batch_size(BATCH, _teacher(task), Arithmetic()).num_images
        on_cpu = _teacher(task).mean.device.type == "cpu"
        return Measured(_forward_rate(task, size, torch.get_num_threads() if on_cpu else 1))


class Ours(Extractor):
    """From the first image file to a complete store; the plan and loading the teacher come before."""

    name = "activault extract"

    def run(self, task: Task, folder: Path) -> Measured:  # noqa: D102
        source, order, decode = _rows(task)
        backbone, options = _teacher(task), task.options
        manifest = plan_manifest(source, len(order), backbone, options, lambda: None, lambda _: ())
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
        backbone, text = _teacher(task), script.read_text()
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
        vars(paths).update(IMAGENET_TRAIN_DIR=str(_linked(task)), DATA_DIR=str(folder))
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
        _settled(folder)
        return Measured(task.num_images / (time.perf_counter() - begun))


def _linked(task: Task) -> Path:
    """The same images in class folders of links, for a loader that takes a whole folder."""
    root = task.work / "linked"
    source, order, _ = _rows(task)
    if not root.exists():
        for number in order.tolist():
            key = Path(source.keys[number])
            link = root / (key.parent.name or "all") / key.name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to((task.images / key).resolve())
    return root


class OwnScript(Extractor):
    """What people write for themselves: a DataLoader, timm's `forward_intermediates`, safetensors a batch.

    Of all blocks and no layer 0, in the dtype of the store; loader processes as many as cores.
    """

    name = "own script: timm and safetensors"

    def run(self, task: Task, folder: Path) -> Measured:  # noqa: D102
        from safetensors.torch import save_file
        from torch.utils.data import DataLoader
        from torchvision import datasets, transforms

        backbone = _teacher(task)
        device, plan = backbone.mean.device, backbone.preprocessing
        transform = transforms.Compose(
            [
                transforms.Resize(plan.resize, transforms.InterpolationMode.BICUBIC),
                transforms.CenterCrop(plan.image_size),
                transforms.ToTensor(),
                transforms.Normalize(plan.mean, plan.std),
            ]
        )
        images = datasets.ImageFolder(str(_linked(task)), transform)
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
        _settled(folder)
        return Measured(task.num_images / (time.perf_counter() - begun))


CANDIDATES: tuple[type[Extractor], ...] = (PlainForward, OurForward, Ours, Reference, OwnScript)


def measure(kind: type[Extractor], task: Task) -> Measured:
    """Run a candidate once, in the process that this is called in."""
    folder = task.work / kind.__name__
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    _decoded(task)
    measured = kind().run(task, folder)
    measured.num_bytes = _settled(folder)
    measured.peak_host_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    shutil.rmtree(folder)
    return measured
