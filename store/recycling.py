"""Memory for batches that is used again once nobody looks at it any more.

A batch of activations is a few hundred MB, and the first touch of that much new memory takes longer than
decompressing it. Arrays made here come back of themselves: when the array that was handed out and every view
and tensor that looks into it are gone.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import deque
from typing import Any, Final

import numpy as np
import numpy.typing as npt

__all__ = ["Recycler", "ThreadSpace"]

_PAGE: Final = 4096
_LINE: Final = 64


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


class ThreadSpace(threading.local):
    """Room for one chunk at a time in each thread; what threads leave behind goes to the next ones.

    Readers' threads end with the read that they are for: their pages would be faulted in anew each time.

    Args:
        left: where it goes; the same for all threads.
    """

    def __init__(self, left: Recycler) -> None:
        self._left = left
        self._encoded = self._decoded = np.empty(0, np.uint8)
        self._start = self._in_page = 0

    def encoded(self, size: int, offset: int) -> npt.NDArray[np.uint8]:
        """Room for `size` bytes that are read from `offset` of a file on, at an address that suits them."""
        if self._encoded.size < size + _PAGE:
            self._encoded = self._left.array((size + _PAGE,), self._encoded.dtype)
            self._start = -self._encoded.ctypes.data % _LINE
            self._in_page = (self._encoded.ctypes.data + self._start) % _PAGE
        # An AMD EPYC copies 1.2 GB a second instead of 7 if the target lies 1 to 31 bytes further into its
        # page than the source: out of the page cache, and from here to a result, 16 bytes into its page.
        start = self._start
        if (self._in_page - offset) % _PAGE < _LINE or self._in_page < _LINE:
            start += _PAGE // 2
        return self._encoded[start : start + size]

    def decoded(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Room for a chunk's values."""
        size = math.prod(shape) * dtype.itemsize
        if self._decoded.size < size:
            self._decoded = self._left.array((size,), self._decoded.dtype)
        values: npt.NDArray[Any] = self._decoded[:size].view(dtype).reshape(shape)
        return values
