"""Memory for batches that is used again once nobody looks at it any more.

A batch of activations is a few hundred MB, and the first touch of that much new memory takes longer than
decompressing it. Arrays made here come back of themselves: when the array that was handed out and every view
and tensor that looks into it are gone.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Recycler"]


class _Lent:
    """Stands between a block and its arrays: NumPy's views skip arrays in between, and keep this alive."""

    def __init__(self, block: npt.NDArray[np.uint8]) -> None:
        self.__array_interface__ = block.__array_interface__


class Recycler:
    """Hands out arrays and takes them back; may be shared between threads.

    Args:
        most_free: blocks that are kept for use again, the oldest dropped first.
        most_bytes: largest block that is kept.
    """

    def __init__(self, most_free: int, most_bytes: int | None = None) -> None:
        self._most_bytes = most_bytes
        # A block comes back from the garbage collector, in any thread and at any moment: appending to a deque
        # needs no lock, which the thread that it interrupts might hold.
        self._free: deque[npt.NDArray[np.uint8]] = deque(maxlen=most_free)

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """An array of any content."""
        size = math.prod(shape) * dtype.itemsize
        if self._most_bytes is not None and size > self._most_bytes:
            return np.empty(shape, dtype)
        block = self._take(size)
        if block is None:
            block = np.empty(size, np.uint8)
        lent = _Lent(block)
        array: npt.NDArray[Any] = np.asarray(lent)[:size].view(dtype).reshape(shape)
        weakref.finalize(lent, self._free.append, block).atexit = False
        return array

    def _take(self, size: int) -> npt.NDArray[np.uint8] | None:
        for _ in range(len(self._free)):
            try:
                block = self._free.popleft()
            except IndexError:
                break  # another thread was faster
            if block.size >= size:
                return block
            self._free.append(block)
        return None
