"""A ring of host buffers between a device and a shard's buffer, and the thread that empties it.

Tensors of a device in, in the order in which they are computed; each is copied into a slot of the ring, and
when the copy has landed, and not before, the drain thread hands it on and gives the slot back. The memory is
allocated once; with all slots in use, whoever sends waits.

    ring = Ring(transfer, slot_bytes=..., num_slots=16, stalls=stalls)
    sent = ring.send(tokens, deliver)                  # a Future: delivered, or the error
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue

import numpy as np
from jaxtyping import UInt8
from torch import Tensor

from .stalls import StallTimes
from .transfers import Landing, Transfer

__all__ = ["Ring", "Staging"]


class Ring:
    """Slots of host memory that a device's tensors pass through, in order.

    Args:
        transfer: what copies.
        slot_bytes: of the largest tensor.
        num_slots: tensors that may be under way at once.
        stalls: where the time of copies and of the device's work is counted.
    """

    def __init__(self, transfer: Transfer, slot_bytes: int, num_slots: int, stalls: StallTimes) -> None:
        self._transfer = transfer
        self._stalls = stalls
        self._free = SimpleQueue[UInt8[Tensor, " slot_bytes"]]()
        for _ in range(num_slots):
            self._free.put(transfer.host_memory(slot_bytes))
        # One thread: what is sent first is delivered first.
        self._drain = ThreadPoolExecutor(1, "drain")

    def close(self) -> None:
        """Wait until all that was sent is delivered."""
        self._drain.shutdown(wait=True)

    def send(self, tensor: Tensor, deliver: Callable[[Tensor], None]) -> Future[None]:
        """Begin to copy a tensor to the host, then call `deliver` with the copy in the drain thread.

        The copy is valid during the call. Waits while every slot is in use.
        """
        slot = self._free.get()
        target = slot[: tensor.numel() * tensor.element_size()].view(tensor.dtype).view(tensor.shape)
        landing = self._transfer.down(tensor, target)
        # The tensor goes along, so that its memory is not given out again before it is copied; in a list, as
        # the pool holds on to arguments until the call is over.
        return self._drain.submit(self._empty, slot, [tensor], target, landing, deliver)

    def _empty(
        self,
        slot: Tensor,
        held: list[Tensor],
        target: Tensor,
        landing: Landing,
        deliver: Callable[[Tensor], None],
    ) -> None:
        try:
            start = time.perf_counter()
            copied = landing.wait()
            self._stalls.add_work("compute", max(0.0, time.perf_counter() - start - copied))
            self._stalls.add_work("copy", copied)
            held.clear()
            with self._stalls.worked("copy"):
                deliver(target)
        finally:
            self._free.put(slot)


class Staging:
    """Host memory that images go to a device from, as many batches at once as there are slots.

    Args:
        transfer: what copies.
        shape: of the largest batch, (B, H, W, 3).
        num_slots: batches that may be under way at once.
    """

    def __init__(self, transfer: Transfer, shape: Sequence[int], num_slots: int = 2) -> None:
        self._transfer = transfer
        self._slots = [transfer.host_memory(int(np.prod(shape))).view(*shape) for _ in range(num_slots)]
        self._landings: list[Landing | None] = [None] * num_slots
        self._next = 0

    def up(self, count: int, fill: Callable[[np.ndarray], None]) -> UInt8[Tensor, "batch height width 3"]:
        """`count` images on the device, as `fill` writes them into an array (count, H, W, 3) of the host."""
        place, self._next = self._next, (self._next + 1) % len(self._slots)
        if (landing := self._landings[place]) is not None:
            landing.wait()
        images = self._slots[place][:count]
        fill(images.numpy())
        there, self._landings[place] = self._transfer.up(images)
        return there
