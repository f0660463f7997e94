"""Engines: batches of images through the teacher, and their layers into a shard's buffer.

In: pixels (H, W, 3) uint8 or None where an image was bad, row after row, and a `ShardBuffer`. Out: the
buffer's rows, filled when the batch's `Future` is done. Batches may be computed in any order.

`CoreEngine` is for a CPU: every core runs whole forwards of its own, of few images, in one thread. Cores that
share one forward meet at a barrier after each of its hundreds of loops, and wait there for whichever of them
has just decoded an image or compressed a chunk. `DeviceEngine` is for GPUs: images go there through pinned
memory, and layers come back, rounded on the device, through a ring of pinned buffers while the next ones are
computed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from typing import Final

import numpy as np
import torch
from torch import Tensor

from activault.store import ConfigError, Manifest, ShardBuffer

from .arithmetic import Forward
from .batches import Batch, Pixels, host_values, is_whole, rounded
from .machine import one_thread_each
from .memory import is_out_of_memory
from .ring import Ring, Staging
from .stalls import StallTimes
from .tokens import kept_tokens
from .transfers import Transfer, transfer_of

__all__ = ["CoreEngine", "DeviceEngine", "Engine", "core_batch", "engine_for"]

_CORE_TOKENS: Final = 2_100
"""Tokens of a forward on one core: 8 images of 224 pixels in patches of 14. Larger ones leave its caches."""
_RING_BYTES: Final = 512 << 20
_RING_SLOTS: Final = (3, 16)
"""Fewest and most tensors that may be on their way from a device to the host."""


class Engine(ABC):
    """Runs batches; a context manager."""

    def __init__(
        self, forward: Forward, manifest: Manifest, batch_size: int, stalls: StallTimes | None = None
    ) -> None:
        self.forward = forward
        self.manifest = manifest
        self.stalls = stalls or StallTimes()
        self.num_images = forward.arithmetic.images_of(batch_size)
        """Most images of a forward."""

    @abstractmethod
    def __enter__(self) -> Engine: ...

    @abstractmethod
    def __exit__(self, *exception: object) -> None: ...

    @abstractmethod
    def put(self, buffer: ShardBuffer, offset: int, pixels: Sequence[Pixels | None]) -> Future[None]:
        """Begin a batch whose first row is `offset` of the buffer; waits while enough are under way.

        Rows without pixels are left out. The future is done when the rows are in the buffer.

        Raises:
            ConfigError: the batch does not fit the device's memory.
        """

    def _batch(self, buffer: ShardBuffer, offset: int, pixels: Sequence[Pixels | None]) -> Batch:
        arithmetic = self.forward.arithmetic
        first_place = arithmetic.place_of(buffer.rows[offset])
        assert first_place + len(pixels) <= self.num_images, "a batch is one forward"
        return Batch(buffer, offset, pixels, first_place, self.num_images if arithmetic.is_padded else None)

    def _count(self, batch: Batch) -> int:
        return batch.num_images or len(batch.good)

    def _layers(self, images: Tensor) -> Iterator[tuple[int, Tensor]]:
        for layer, tokens in self.forward(images):
            yield layer, kept_tokens(tokens, self.manifest.layout, self.manifest.kinds)


class CoreEngine(Engine):
    """Forwards of one thread each, as many at once as the teacher may have threads.

    Several in one process have so many each.

    Args:
        forward: the teacher, on the CPU.
        manifest: of the store.
        batch_size: images of a forward.
        stalls: where time is counted.
    """

    def __enter__(self) -> CoreEngine:
        with ExitStack() as stack:
            self.num_threads = stack.enter_context(one_thread_each())
            pool = ThreadPoolExecutor(
                self.num_threads, "teacher", initializer=torch.set_num_threads, initargs=(1,)
            )
            self._pool = stack.enter_context(pool)
            self._under_way = deque[Future[None]]()
            # In a thread that computes: code is compiled for the number of threads that it finds.
            self._pool.submit(self.forward.warm_up, self.num_images).result()
            self._entered = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._entered.close()

    def put(self, buffer: ShardBuffer, offset: int, pixels: Sequence[Pixels | None]) -> Future[None]:  # noqa: D102
        while len(self._under_way) >= 2 * self.num_threads:
            wait([self._under_way.popleft()])
        future = self._pool.submit(self._run, self._batch(buffer, offset, pixels))
        self._under_way.append(future)
        return future

    @torch.inference_mode()
    def _run(self, batch: Batch) -> None:
        if not batch.good:
            return
        height, width = self.forward.backbone.preprocessing.image_size
        images = np.empty((self._count(batch), height, width, 3), np.uint8)
        batch.stack(images)
        for layer, tokens in self._computed(torch.from_numpy(images)):
            with self.stalls.worked("copy"):
                values = rounded(tokens, self.manifest.dtype)
                # What has become infinite goes as it was, so that the refusal can say what it was.
                batch.store(layer, host_values(values if is_whole(values) else tokens.float()))

    def _computed(self, images: Tensor) -> Iterator[tuple[int, Tensor]]:
        """The layers, whose time is counted."""
        layers = self._layers(images)
        while True:
            with self.stalls.worked("compute"):
                found = next(layers, None)
            if found is None:
                return
            yield found


class DeviceEngine(Engine):
    """Forwards on a device, whose layers come back while the next ones are computed.

    Args:
        forward: the teacher, on its device.
        manifest: of the store.
        batch_size: images of a forward.
        stalls: where time is counted.
        transfer: what copies; None is the best that the device can do.
    """

    def __init__(
        self,
        forward: Forward,
        manifest: Manifest,
        batch_size: int,
        stalls: StallTimes | None = None,
        transfer: Transfer | None = None,
    ) -> None:
        super().__init__(forward, manifest, batch_size, stalls)
        self._transfer = transfer or transfer_of(forward.backbone.mean.device)
        item = 2 if manifest.dtype in ("bfloat16", "float16") else 4
        self._slot_bytes = self.num_images * manifest.tokens_per_layer * manifest.dim * item
        fewest, most = _RING_SLOTS
        self._num_slots = max(fewest, min(most, _RING_BYTES // self._slot_bytes))
        self._image_shape = (self.num_images, *forward.backbone.preprocessing.image_size, 3)

    def __enter__(self) -> DeviceEngine:
        self.forward.warm_up(self.num_images)
        self._ring = Ring(self._transfer, self._slot_bytes, self._num_slots, self.stalls)
        self._staging = Staging(self._transfer, self._image_shape, num_slots=2)
        return self

    def __exit__(self, *exception: object) -> None:
        self._ring.close()

    @torch.inference_mode()
    def put(self, buffer: ShardBuffer, offset: int, pixels: Sequence[Pixels | None]) -> Future[None]:  # noqa: D102
        batch = self._batch(buffer, offset, pixels)
        sent: list[Future[None]] = []
        if batch.good:
            try:
                self._send(batch, sent)
            except RuntimeError as exc:
                if not is_out_of_memory(exc):
                    raise
                raise ConfigError(
                    f"a forward of {self._count(batch)} images must fit the device's memory, and does not "
                    "(--batch-size auto finds what does, or give a smaller one)"
                ) from exc
        return _all_of(sent)

    def _send(self, batch: Batch, sent: list[Future[None]]) -> None:
        """One forward; what is sent of it is noted at once."""
        images = self._staging.up(self._count(batch), batch.stack)
        for layer, tokens in self._layers(images):
            values = rounded(tokens, self.manifest.dtype).contiguous()
            sent.append(self._ring.send(values, self._delivery(batch, layer, tokens)))

    def _delivery(self, batch: Batch, layer: int, tokens: Tensor) -> Callable[[Tensor], None]:
        # Where float16 overflows the values go as they were, so the device keeps them until that is known.
        as_it_was = tokens if self.manifest.dtype == "float16" else None

        def deliver(values: Tensor) -> None:
            if as_it_was is not None and not is_whole(values):
                batch.store(layer, as_it_was.float().cpu().numpy())
            else:
                batch.store(layer, host_values(values))

        return deliver


def _all_of(futures: Sequence[Future[None]]) -> Future[None]:
    """One future for what is delivered in order: done with the last, failed with the first to fail."""
    whole = Future[None]()

    def settle(_: Future[None]) -> None:
        error = next((error for each in futures if (error := each.exception()) is not None), None)
        if error is None:
            whole.set_result(None)
        else:
            whole.set_exception(error)

    if futures:
        futures[-1].add_done_callback(settle)
    else:
        whole.set_result(None)
    return whole


def core_batch(batch_size: int, num_tokens: int) -> int:
    """Images of a forward on one core where `batch_size` are asked for at most."""
    return max(1, min(batch_size, _CORE_TOKENS // num_tokens))


def engine_for(
    forward: Forward, manifest: Manifest, batch_size: int, stalls: StallTimes | None = None
) -> Engine:
    """The engine of the teacher's device."""
    on_cpu = forward.backbone.mean.device.type == "cpu"
    return (CoreEngine if on_cpu else DeviceEngine)(forward, manifest, batch_size, stalls)
