"""Memory for batches that is used again once nobody looks at it any more.

A batch of activations is a few hundred MB, and the first touch of that much new memory takes longer than
decompressing it. Arrays made here come back of themselves: when the array that was handed out and every view
and tensor that looks into it are gone.
"""

from __future__ import annotations

import math
import threading
import weakref
from typing import Any, Final

import numpy as np
import numpy.typing as npt

__all__ = ["Recycler"]

_MOST_FREE: Final = 3
"""Blocks that are kept for use: as many batches as are being cut, waiting and looked at."""


class _Lent:
    """Stands between a block and its arrays: NumPy's views skip arrays in between, and keep this alive."""

    def __init__(self, block: npt.NDArray[np.uint8]) -> None:
        self.__array_interface__ = block.__array_interface__


class Recycler:
    """Hands out arrays of one size or less; may be shared between threads."""

    def __init__(self) -> None:
        self._free: list[npt.NDArray[np.uint8]] = []
        self._lock = threading.Lock()
        self._open = True

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """An array of any content."""
        size = math.prod(shape) * dtype.itemsize
        with self._lock:
            block = next((block for block in self._free if block.size >= size), None)
            if block is not None:
                self._free = [other for other in self._free if other is not block]
        if block is None:
            block = np.empty(size, np.uint8)
        lent = _Lent(block)
        array = np.asarray(lent)[:size].view(dtype).reshape(shape)
        weakref.finalize(lent, self._take_back, block).atexit = False
        return array

    def _take_back(self, block: npt.NDArray[np.uint8]) -> None:
        with self._lock:
            if self._open and len(self._free) < _MOST_FREE:
                self._free.append(block)

    def close(self) -> None:
        """Let go of what is free and of what comes back later."""
        with self._lock:
            self._open = False
            self._free.clear()
