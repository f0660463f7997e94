"""Threads that decode rows ahead of the teacher, by a bounded number of images.

In: the rows in the order in which they are wanted, and a function that decodes one. Out: the rows in that
order, whichever was decoded first. None among the rows says that no further row is to be begun for now.

    with Decoder(decode, rows, workers=4, ahead=132) as decoder:
        batch = decoder.take(64)                            # list of Decoded
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from jaxtyping import UInt8

from activault.store import Outcome
from activault.store.samples import NO_CONTENT

from .decode import BadImage
from .stalls import StallTimes

__all__ = ["Decode", "Decoded", "Decoder", "without_pixels"]


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """One row, ready for the teacher or not."""

    outcome: Outcome
    pixels: UInt8[np.ndarray, "height width 3"] | None
    """None if the image was bad."""


Decode = Callable[[int], Decoded]
"""A row's pixels, by its number."""


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


class Decoder:
    """Decodes rows in order, in threads, at most `ahead` rows before they are taken."""

    def __init__(
        self,
        decode: Decode,
        rows: Iterable[int | None],
        workers: int,
        ahead: int,
        stalls: StallTimes | None = None,
    ) -> None:
        self._decode = decode
        self._rows = iter(rows)
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="decode")
        self._waiting: deque[Future[Decoded]] = deque()
        self._ahead = ahead
        self._stalls = stalls or StallTimes()

    def __enter__(self) -> Decoder:
        self._fill()
        return self

    def __exit__(self, *exception: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _fill(self) -> None:
        while len(self._waiting) < self._ahead:
            row = next(self._rows, None)
            if row is None:
                return
            self._waiting.append(self._pool.submit(self._timed, row))

    def _timed(self, row: int) -> Decoded:
        with self._stalls.worked("decode"):
            return self._decode(row)

    def take(self, count: int) -> list[Decoded]:
        """The next `count` rows; an error of the function that decodes is raised here."""
        taken = []
        for _ in range(count):
            taken.append(self._waiting.popleft().result())
            self._fill()
        return taken
