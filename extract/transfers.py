"""Copies between the host's memory and a device that go on while the thread that asked for them goes on.

A `Transfer` begins a copy and gives a `Landing`; until its `wait` has returned, nobody may read the target or
change the source. `CudaTransfer` copies through pinned memory on streams of its own. `BlockingTransfer` is
finished when it returns: that of MPS, whose non-blocking copies were seen read too early (PyTorch #137878),
and whose memory is the host's anyway.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import UInt8
from torch import Tensor

__all__ = ["BlockingTransfer", "CudaTransfer", "Landing", "Transfer", "transfer_of"]


@runtime_checkable
class Landing(Protocol):
    """A copy that is under way."""

    def wait(self) -> float:
        """Return when the target may be read; the seconds that the copy itself took, 0 where not known."""


@runtime_checkable
class Transfer(Protocol):
    """How values come to a device, and from there into the host's memory."""

    def host_memory(self, num_bytes: int) -> UInt8[Tensor, " num_bytes"]:
        """Memory of the host that copies go from and to."""

    def down(self, source: Tensor, target: Tensor) -> Landing:
        """Begin to copy what the device computes into `target`, a part of such memory."""

    def up(self, source: Tensor) -> tuple[Tensor, Landing]:
        """Begin to copy a part of such memory to the device; its work may be given the tensor at once."""


class _Landed:
    """A copy that was finished before anybody could ask."""

    def wait(self) -> float:
        return 0.0


class BlockingTransfer:
    """Copies that are finished when they return."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def host_memory(self, num_bytes: int) -> UInt8[Tensor, " num_bytes"]:  # noqa: D102
        return torch.empty(num_bytes, dtype=torch.uint8)

    def down(self, source: Tensor, target: Tensor) -> Landing:  # noqa: D102
        target.copy_(source)
        return _Landed()

    def up(self, source: Tensor) -> tuple[Tensor, Landing]:  # noqa: D102
        return source.to(self._device, copy=True), _Landed()


class _CudaLanding:
    def __init__(self, device: torch.device, begun: torch.cuda.Event, done: torch.cuda.Event) -> None:
        self._device = device
        self._begun, self._done = begun, done

    def wait(self) -> float:
        with torch.cuda.device(self._device):
            self._done.synchronize()
            return float(self._begun.elapsed_time(self._done)) / 1000


class CudaTransfer:
    """Copies on two streams beside the one that computes: one to the device, one from it.

    What names no device goes to a thread's current one, which is the first GPU: pinned memory would take half
    a gigabyte for a context there, in every worker of the machine, and fail where GPUs take one process each.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._down, self._up = (torch.cuda.Stream(device) for _ in range(2))  # type: ignore[no-untyped-call]

    def host_memory(self, num_bytes: int) -> UInt8[Tensor, " num_bytes"]:  # noqa: D102
        with torch.cuda.device(self._device):
            return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def _landing(self, stream: torch.cuda.Stream, begun: torch.cuda.Event) -> Landing:
        # Blocking: the thread that waits sleeps, instead of taking a core from those that decode.
        done = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
        done.record(stream)
        return _CudaLanding(self._device, begun, done)

    def _begin(self, stream: torch.cuda.Stream) -> torch.cuda.Event:
        begun = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        begun.record(stream)
        return begun

    def down(self, source: Tensor, target: Tensor) -> Landing:  # noqa: D102
        # What computes `source` stands in the stream that computes, and the copy comes after it.
        self._down.wait_stream(torch.cuda.current_stream(self._device))
        begun = self._begin(self._down)
        with torch.cuda.stream(self._down):
            target.copy_(source, non_blocking=True)
        return self._landing(self._down, begun)

    def up(self, source: Tensor) -> tuple[Tensor, Landing]:  # noqa: D102
        computing = torch.cuda.current_stream(self._device)
        begun = self._begin(self._up)
        with torch.cuda.stream(self._up):
            there = source.to(self._device, non_blocking=True)
        computing.wait_stream(self._up)
        # Its memory was given out on the copying stream, and must not be again while the teacher reads it.
        there.record_stream(computing)
        return there, self._landing(self._up, begun)


def transfer_of(device: torch.device) -> Transfer:
    """The best that a device can do."""
    return CudaTransfer(device) if device.type == "cuda" else BlockingTransfer(device)
