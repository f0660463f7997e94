"""The engine: rows of a store's unfinished shards, from image files to published shards.

In: a function that gives a row's pixels (H, W, 3) uint8 or the reason why it has none, a teacher, and a
`StoreWriter`. Out: published shards, and where the time went.

Three kinds of thread share the work. Decoders run ahead of the teacher by a bounded number of images. The
caller's thread runs the teacher and copies its layers to the shard's buffer. One writer thread compresses
and publishes a finished shard while the next one fills; there are never more than these two. Batches end at
a shard's border, so that a shard is computed from the same batches whichever run computes it.

An error in any thread is raised in the caller's. On Ctrl-C decoding stops at once, and the shard that is
being written is finished first, since all of its rows are computed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import islice, pairwise
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from activault.store import Manifest, Outcome, ShardBuffer, StoredDtype, StoreWriter
from activault.store.samples import NO_CONTENT

from .backbone import Backbone
from .decode import BadImage, quiet_decoders
from .tokens import kept_tokens

__all__ = ["Decoded", "Progress", "StallTimes", "capture", "exact_arithmetic", "without_pixels"]

Progress = Callable[[int, int], None]
"""Called with rows done and rows in all."""


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """One row, ready for the teacher or not."""

    outcome: Outcome
    pixels: UInt8[np.ndarray, "height width 3"] | None
    """None if the image was bad."""


def without_pixels(image: BadImage) -> Decoded:
    """A row whose image was bad."""
    outcome = Outcome(
        status=image.status,
        reason=image.reason,
        width=image.width,
        height=image.height,
        content=image.content or NO_CONTENT,
    )
    return Decoded(outcome=outcome, pixels=None)


@dataclass(kw_only=True)
class StallTimes:
    """Seconds that the caller's thread spent on each part."""

    decode: float = 0.0
    """Waiting for images."""
    compute: float = 0.0
    """Running the teacher and copying its layers."""
    write: float = 0.0
    """Waiting for the writer."""

    @contextmanager
    def spent(self, part: str) -> Iterator[None]:
        """Add the time of a block to one part."""
        start = time.perf_counter()
        try:
            yield
        finally:
            setattr(self, part, getattr(self, part) + time.perf_counter() - start)

    def shares(self) -> dict[str, float]:
        """Each part's share of their sum."""
        total = self.decode + self.compute + self.write
        parts = {"decode": self.decode, "compute": self.compute, "write": self.write}
        return {part: seconds / total if total else 0.0 for part, seconds in parts.items()}


def capture(
    writer: StoreWriter,
    backbone: Backbone,
    decode: Callable[[int], Decoded],
    *,
    batch_size: int,
    workers: int,
    progress: Progress | None = None,
    shards: Sequence[int] | None = None,
) -> StallTimes:
    """Compute and publish every unfinished shard of the store, or some of them.

    Several processes may do so at once: each computes the shards that it claims first, then waits for those
    of the others, and computes them itself if their owner dies.

    Args:
        writer: of a store that was planned for this teacher.
        backbone: the teacher, on its device.
        decode: a row's pixels; called in `workers` threads.
        batch_size: images a forward pass.
        workers: decoding threads.
        progress: called in this thread after each batch.
        shards: which ones; None is all that are unfinished.

    Raises:
        NonFiniteError, StoreError: from publishing.
    """
    stalls = StallTimes()
    for wanted in writer.rounds(writer.unfinished if shards is None else shards):
        _capture_claimed(writer, backbone, decode, wanted, stalls, batch_size, workers, progress)
    return stalls


def _capture_claimed(
    writer: StoreWriter,
    backbone: Backbone,
    decode: Callable[[int], Decoded],
    shards: Sequence[int],
    stalls: StallTimes,
    batch_size: int,
    workers: int,
    progress: Progress | None,
) -> None:
    """Compute and publish those of `shards` that no other writer owns or has finished by then."""
    manifest, claimed = writer.manifest, deque[int]()
    done = manifest.num_rows - sum(len(manifest.shard_range(shard)) for shard in shards)
    rows = _claimed_rows(writer, shards, claimed)
    with (
        quiet_decoders(),
        exact_arithmetic(),
        _Publisher(writer, stalls, _writer_threads(backbone)) as publisher,
        _Decoder(decode, rows, workers, ahead=2 * batch_size + workers) as decoder,
    ):
        while claimed:
            buffer, outcomes = writer.buffer(claimed.popleft()), list[Outcome]()
            while len(outcomes) < len(buffer.rows):
                publisher.check()
                with stalls.spent("decode"):
                    batch = decoder.take(min(batch_size, len(buffer.rows) - len(outcomes)))
                with stalls.spent("compute"):
                    _forward(backbone, manifest, buffer, len(outcomes), [row.pixels for row in batch])
                outcomes += [row.outcome for row in batch]
                done += len(batch)
                if progress is not None:
                    progress(done, manifest.num_rows)
            publisher.submit(buffer, outcomes)
            # The publisher owns it now; holding on to it would keep three buffers alive.
            del buffer
        publisher.finish()


def _claimed_rows(writer: StoreWriter, shards: Sequence[int], claimed: deque[int]) -> Iterator[int]:
    """Rows of the shards that can be claimed; each is claimed, and noted, when its first row is asked for.

    The decoders ask ahead, so that the next shard is claimed before the one at hand is done.
    """
    for shard in shards:
        if writer.claim(shard):
            claimed.append(shard)
            yield from writer.manifest.shard_range(shard)


def _writer_threads(backbone: Backbone) -> int | None:
    """One where the teacher runs on the CPU, whose cores it would otherwise have to share; else all."""
    return 1 if backbone.mean.device.type == "cpu" else None


@torch.inference_mode()
def _forward(
    backbone: Backbone,
    manifest: Manifest,
    buffer: ShardBuffer,
    offset: int,
    pixels: Sequence[UInt8[np.ndarray, "height width 3"] | None],
) -> None:
    """One batch's layers into the buffer from row `offset` on; rows without pixels are left out."""
    good = [place for place, image in enumerate(pixels) if image is not None]
    if not good:
        return
    stacked = torch.from_numpy(np.stack([image for image in pixels if image is not None]))
    for layer, tokens in backbone.layers(backbone.prepare(stacked), manifest.layers):
        values = _host_values(kept_tokens(tokens, manifest.layout, manifest.kinds), manifest.dtype)
        for start, stop in _runs(good):
            buffer.write(layer, offset + good[start], values[start:stop])


def _host_values(tokens: Float[Tensor, "batch token dim"], dtype: StoredDtype) -> npt.NDArray[Any]:
    """The tokens in the host's memory, rounded on the device where the store rounds: half the copy.

    `.cpu()` returns when the copy is finished, so nothing is read before it has arrived.
    """
    if dtype == "bfloat16":
        return tokens.bfloat16().cpu().view(torch.uint16).numpy()
    if dtype == "float16":
        half = tokens.half().cpu()
        # What has become infinite goes as it was, so that the refusal can say what it was.
        if bool(half.isfinite().all()):
            return half.numpy()
    return tokens.float().cpu().numpy()


def _runs(places: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Spans of `places` whose numbers follow one another."""
    breaks = [i + 1 for i, (a, b) in enumerate(pairwise(places)) if b != a + 1]
    yield from pairwise([0, *breaks, len(places)])


def exact_arithmetic() -> AbstractContextManager[None]:
    """Full float32 on the GPU too: cuDNN would round a convolution's inputs to 10 bits (TF32) by default."""
    return torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False)


class _Decoder:
    """Decodes rows in order, in threads, at most `ahead` rows before they are taken."""

    def __init__(
        self, decode: Callable[[int], Decoded], rows: Iterable[int], workers: int, ahead: int
    ) -> None:
        self._decode = decode
        self._rows = iter(rows)
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="decode")
        self._waiting: deque[Future[Decoded]] = deque()
        self._ahead = ahead

    def __enter__(self) -> _Decoder:
        self._fill()
        return self

    def __exit__(self, *exception: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _fill(self) -> None:
        for row in islice(self._rows, self._ahead - len(self._waiting)):
            self._waiting.append(self._pool.submit(self._decode, row))

    def take(self, count: int) -> list[Decoded]:
        """The next `count` rows."""
        taken = []
        for _ in range(count):
            taken.append(self._waiting.popleft().result())
            self._fill()
        return taken


@dataclass
class _Publisher:
    """Publishes one shard at a time in a thread of its own."""

    writer: StoreWriter
    stalls: StallTimes
    threads: int | None
    """Threads that encode a shard; None is one a core."""
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "publish"))
    _running: Future[object] | None = None

    def __enter__(self) -> _Publisher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=True)
        failed = self._running.exception() if self._running is not None else None
        if error is not None and failed is not None and failed is not error:
            error.add_note(f"the shard that was being written failed too: {failed}")

    def check(self) -> None:
        """Raise at once what the running shard failed with, instead of at the end of the next one."""
        if self._running is not None and self._running.done():
            self._running.result()

    def submit(self, buffer: ShardBuffer, outcomes: Sequence[Outcome]) -> None:
        """Publish a shard; waits until the one before it is out."""
        self.finish()
        self._running = self._pool.submit(self.writer.publish, buffer, outcomes, self.threads)

    def finish(self) -> None:
        """Wait for the shard that is being written."""
        if self._running is not None:
            with self.stalls.spent("write"):
                self._running.result()
