"""Batches of all layers made out of image files at every step: what training costs without a store.

A task in; batches (batch, layers, tokens, dim) float32 without end. Images are decoded ahead of time on
threads; the teacher runs when it is asked, as in our extraction on a CPU: a small forward a core, which is
faster than a whole batch at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from itertools import count

import numpy as np
import torch
from lessons import Task

from activault.extract import Backbone, ExtractOptions, load_backbone, open_source
from activault.extract.arithmetic import Arithmetic, Forward, exact_arithmetic
from activault.extract.batch_size import choose_batch_size
from activault.extract.decoders import Decoded
from activault.extract.machine import one_thread_each
from activault.extract.planning import row_order
from activault.extract.run import row_decoder


def online(task: Task) -> Iterator[torch.Tensor]:
    """Batches of the folder's images in random order."""
    backbone = _teacher(task)
    forward = Forward(backbone, Arithmetic(), range(backbone.num_blocks + 1))
    size = choose_batch_size(task.batch_size, backbone, Arithmetic()).num_images
    with ThreadPoolExecutor(task.threads, "decode") as decoders:
        images = _Images(task, decoders)
        ahead = images.submit(0)
        for number in count(1):
            pixels = torch.from_numpy(np.stack([_pixels(row.result()) for row in ahead]))
            ahead = images.submit(number)
            yield _layers(forward, pixels, size)


class _Images:
    """A folder, decoded as the store's images were."""

    def __init__(self, task: Task, decoders: ThreadPoolExecutor) -> None:
        options = _options(task)
        source = open_source(str(task.images))
        order = row_order(source, options)
        self._decode = row_decoder(source, order, _teacher(task), options)
        self._num_rows, self._batch_size, self._decoders = len(order), task.batch_size, decoders

    def submit(self, number: int) -> list[Future[Decoded]]:
        """Begin a batch."""
        first = number * self._batch_size
        rows = [(first + place) % self._num_rows for place in range(self._batch_size)]
        return [self._decoders.submit(self._decode, row) for row in rows]


def _pixels(row: Decoded) -> np.ndarray:
    assert row.pixels is not None, f"an image of the benchmark is bad: {row.outcome}"
    return row.pixels


def _options(task: Task) -> ExtractOptions:
    """As the store was extracted, as far as a step's time depends on it."""
    manifest = task.opened().manifest
    told = manifest.preprocessing
    return ExtractOptions(teacher=manifest.teacher.name, image_size=told.image_size, resize=told.resize)


@cache
def _teacher(task: Task) -> Backbone:
    options = _options(task)
    return load_backbone(options.teacher, image_size=options.image_size, resize=options.resize)


def _layers(forward: Forward, pixels: torch.Tensor, size: int) -> torch.Tensor:
    """(batch, layers, tokens, dim) of decoded images, `size` of them a forward."""
    backbone = forward.backbone
    shape = (len(pixels), backbone.num_blocks + 1, backbone.layout.num_tokens, backbone.dim)
    # Made by NumPy, which asks for huge pages; and outside of inference mode, which forbids a backward pass.
    tokens = torch.from_numpy(np.empty(shape, np.float32))

    @torch.inference_mode()
    def run(start: int) -> None:
        for layer, values in forward(pixels[start : start + size]):
            tokens[start : start + size, layer] = values

    with (
        exact_arithmetic(),
        one_thread_each() as threads,
        ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool,
    ):
        list(pool.map(run, range(0, len(pixels), size)))
    return tokens
