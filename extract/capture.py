"""The engine: rows of a store's unfinished shards, from image files to published shards.

In: a function that gives a row's pixels (H, W, 3) uint8 or the reason why it has none, a teacher, and a
`ShardWriter`. Out: published shards, and where the time went.

Three kinds of thread share the work. Decoders run ahead of the teacher by a bounded number of images
(`decoders.py`). The engine's threads run the teacher and bring its layers into the shard's buffer
(`engines.py`). One writer thread compresses and publishes a finished shard while the next one fills
(`publisher.py`); there are never more than these two. The caller's thread hands images from the one to the
other, and waits. Batches end at a shard's border, so that a shard is computed from the same batches whichever
run computes it.

An error in any thread is raised in the caller's. On Ctrl-C decoding stops at once, and the shard that is
being written is finished first, since all of its rows are computed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future

from activault.store import Outcome, ShardBuffer
from activault.store.writing import ShardWriter

from .arithmetic import Arithmetic, Forward, exact_arithmetic
from .backbone import Backbone
from .batch_size import AskedBatch, choose_batch_size
from .decode import quiet_decoders
from .decoders import Decode, Decoded, Decoder, without_pixels
from .engines import CoreEngine, Engine, engine_for
from .memory import device_peak, host_peak, start_counting
from .publisher import Publisher
from .stalls import StallTimes

__all__ = ["Decode", "Decoded", "Progress", "StallTimes", "capture", "without_pixels"]

Progress = Callable[[int, int], None]
"""Called with rows done and rows in all."""


def capture(
    writer: ShardWriter,
    backbone: Backbone,
    decode: Decode,
    *,
    batch_size: AskedBatch,
    workers: int,
    progress: Progress | None = None,
    shards: Sequence[int] | None = None,
    arithmetic: Arithmetic | None = None,
) -> StallTimes:
    """Compute and publish every unfinished shard of the store, or some of them.

    Several may do so at once, as processes or as threads of one: each computes the shards that it claims
    first, then waits for those of the others, and computes them itself if their owner dies.

    Args:
        writer: of a store that was planned for this teacher.
        backbone: the teacher, on its device.
        decode: a row's pixels; called in `workers` threads.
        batch_size: images a forward pass; on a CPU the most of them.
        workers: decoding threads.
        progress: called in this thread when a batch is in its buffer, batch after batch.
        shards: which ones; None is all that are unfinished.
        arithmetic: what the teacher computes in; None is exact float32.

    Raises:
        ConfigError: the device cannot compute so, or a batch does not fit its memory.
        NonFiniteError, StoreError: from publishing.
    """
    arithmetic, stalls = arithmetic or Arithmetic(), StallTimes()
    wanted = writer.unfinished if shards is None else shards
    if not wanted:
        return stalls
    forward = Forward(backbone, arithmetic, writer.manifest.layers)
    chosen = choose_batch_size(batch_size, backbone, arithmetic)
    stalls.num_images, stalls.rates = chosen.num_images, chosen.rates
    with (
        quiet_decoders(),
        exact_arithmetic(),
        engine_for(forward, writer.manifest, chosen.num_images, stalls) as engine,
    ):
        start_counting(backbone.mean.device)
        for round_ in writer.rounds(wanted):
            _Capture(writer, engine, decode, workers, progress).run(round_)
    stalls.peak_host_bytes, stalls.peak_device_bytes = host_peak(), device_peak(backbone.mean.device)
    return stalls


class _Capture:
    """One round over some shards: those that no other writer owns, or has finished by then."""

    def __init__(
        self,
        writer: ShardWriter,
        engine: Engine,
        decode: Decode,
        workers: int,
        progress: Progress | None,
    ) -> None:
        self._writer = writer
        self._engine = engine
        self._stalls = engine.stalls
        self._decode = decode
        self._workers = workers
        self._progress = progress
        self._under_way = deque[tuple[Future[None], int]]()
        """Batches that are not known to be done yet, with their numbers of rows."""
        self._done = 0

    def run(self, shards: Sequence[int]) -> None:
        """Compute and publish what can be claimed."""
        manifest, claimed = self._writer.manifest, deque[int]()
        self._done = manifest.num_rows - sum(len(manifest.shard_range(shard)) for shard in shards)
        rows = _claimed_rows(self._writer, shards, claimed)
        threads = _writer_threads(self._engine)
        ahead = 2 * self._engine.num_images + self._workers
        # The engine outlives the publisher's wait for its last batches.
        with (
            Publisher(self._writer, self._stalls) as publisher,
            Decoder(self._decode, rows, self._workers, ahead, self._stalls) as decoder,
        ):
            while claimed:
                buffer = self._writer.buffer(claimed.popleft())
                outcomes, batches = self._fill(buffer, decoder, publisher)
                # The last shard has the cores for itself.
                publisher.submit(buffer, outcomes, batches, threads=threads if claimed else None)
                # The publisher owns it now; holding on to it would keep three buffers alive.
                del buffer
            with self._stalls.spent("teacher"):
                self._settle(all_of_them=True)
            publisher.finish()

    def _fill(
        self, buffer: ShardBuffer, decoder: Decoder, publisher: Publisher
    ) -> tuple[list[Outcome], list[Future[None]]]:
        """Begin every batch of a shard."""
        outcomes, batches, arithmetic = list[Outcome](), list[Future[None]](), self._engine.forward.arithmetic
        while (offset := len(outcomes)) < len(buffer.rows):
            publisher.check()
            count = arithmetic.rows_from(buffer.rows[offset], self._engine.num_images)
            with self._stalls.spent("decode"):
                batch = decoder.take(min(count, len(buffer.rows) - offset))
            with self._stalls.spent("teacher"):
                batches.append(self._engine.put(buffer, offset, [row.pixels for row in batch]))
            outcomes += [row.outcome for row in batch]
            self._under_way.append((batches[-1], len(batch)))
            self._settle()
        return outcomes, batches

    def _settle(self, *, all_of_them: bool = False) -> None:
        """Tell of batches that are done, in order; an error of one of them is raised."""
        while self._under_way and (all_of_them or self._under_way[0][0].done()):
            future, num_rows = self._under_way.popleft()
            future.result()
            self._done += num_rows
            if self._progress is not None:
                self._progress(self._done, self._writer.manifest.num_rows)


def _claimed_rows(writer: ShardWriter, shards: Sequence[int], claimed: deque[int]) -> Iterator[int | None]:
    """Rows of the shards that can be claimed; each is claimed, and noted, when its first row is asked for.

    The decoders ask ahead, so that the next shard is claimed before the one at hand is done; but no more than
    that one, which would be held from others who have nothing to do. None while it has not been begun.
    """
    for shard in shards:
        while claimed:
            yield None
        if writer.claim(shard):
            claimed.append(shard)
            yield from writer.manifest.shard_range(shard)


def _writer_threads(engine: Engine) -> int | None:
    """One where the teacher runs on the CPU, whose cores it would otherwise have to share; else all."""
    return 1 if isinstance(engine, CoreEngine) else None
