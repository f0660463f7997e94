"""What every candidate of `extract.py` does, and what they share: teacher, rows, forwards, files on disk.

A `Task` in; what was made of it once in a process out, and the rate of forwards alone.
"""

from __future__ import annotations

import os
import time
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
from activault.extract.machine import choose_device
from activault.extract.planning import row_order
from activault.extract.run import row_decoder


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
def teacher_of(task: Task) -> Backbone:
    """The teacher, on its device."""
    backbone = load_backbone(task.teacher, image_size=task.image_size)
    return backbone.to(choose_device(task.device))


@cache
def rows_of(task: Task) -> tuple[Any, Any, Any]:
    """The source, the order of its rows, and what decodes a row."""
    source = open_source(str(task.images))
    order = row_order(source, task.options)
    return source, order, row_decoder(source, order, teacher_of(task), task.options)


@cache
def decoded(task: Task) -> torch.Tensor:
    """(images, height, width, 3) uint8: all of them, ready for the teacher."""
    decode = rows_of(task)[2]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        rows = list(threads.map(decode, range(task.num_images)))
    return torch.from_numpy(np.stack([row.pixels for row in rows]))


def settled(folder: Path) -> int:
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


def forward_rate(task: Task, batch: int, threads: int) -> float:
    """Images a second of forwards alone, of decoded images; `threads` forwards of one thread each, or one."""
    forward, pixels = (
        Forward(teacher_of(task), Arithmetic(), range(teacher_of(task).num_blocks + 1)),
        decoded(task),
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
        if teacher_of(task).mean.device.type != "cpu":
            torch.accelerator.synchronize()
    return len(pixels) / (time.perf_counter() - begun)


def linked(task: Task) -> Path:
    """The same images in class folders of links, for a loader that takes a whole folder."""
    root = task.work / "linked"
    source, order, _ = rows_of(task)
    if not root.exists():
        for number in order.tolist():
            key = Path(source.keys[number])
            link = root / (key.parent.name or "all") / key.name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to((task.images / key).resolve())
    return root
