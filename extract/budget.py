"""How many bad images an extraction puts up with before it stops and says why.

In: rows and their outcomes, as they are decoded, from several threads. Out: nothing, or `ImageSourceError`
with counts and the first reasons. What was finished before stays finished; a higher budget goes on there.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from activault.store import ConfigError, ImageSourceError, Outcome

__all__ = ["FEWEST", "Budget", "ErrorBudget", "parse_budget"]

FEWEST: Final = 10
"""Bad rows that a share never stops at: of twenty images one is 5 %."""
_FIRST_ROWS: Final = 1000
"""Rows of which at least one has to be good, or the run stops before the budget is spent."""
_TOLD: Final = 5


@dataclass(frozen=True)
class Budget:
    """What `--max-bad` allows."""

    text: str
    most: int
    """Bad rows; one more stops the run."""
    is_endless: bool
    """100 %: nothing stops the run."""


def parse_budget(text: str, num_rows: int) -> Budget:
    """`250`, or `5%` of all rows (at least 10 rows).

    Raises:
        ConfigError: it is neither a count nor a share.
    """
    found = re.fullmatch(r"(\d+)|(\d+(?:\.\d+)?)\s*%", text.strip())
    share = float(found[2]) if found and found[2] else 0.0
    if found is None or share > 100:
        raise ConfigError(f"max_bad is a number of rows or a share of them such as 5%; got {text!r}")
    if found[1]:
        return Budget(text, int(found[1]), False)
    return Budget(text, max(int(num_rows * share / 100), FEWEST if share else 0), share == 100)


class ErrorBudget:
    """Counts bad rows, and refuses the one that is too many.

    Args:
        budget: what is allowed.
        key_of: a row's key, for the message.
        num_before: bad rows of shards that were finished before.
        faults: what is wrong with the source itself; each counts as a row.
    """

    def __init__(
        self, budget: Budget, key_of: Callable[[int], str], num_before: int, faults: Sequence[str]
    ) -> None:
        self._budget, self._key_of, self._before, self._faults = budget, key_of, num_before, faults
        self._bad: dict[int, Outcome] = {}
        self._others: dict[int, Outcome] = {}
        self._num_seen = 0
        self._lock = threading.Lock()

    def check(self) -> None:
        """Refuse what was found before the first image.

        Raises:
            ImageSourceError: the budget is spent.
        """
        with self._lock:
            self._refuse()

    def add(self, row: int, outcome: Outcome) -> None:
        """Count a row; one that is decoded twice counts once.

        Raises:
            ImageSourceError: the budget is spent, or none of the first thousand images is good.
        """
        with self._lock:
            self._num_seen += 1
            if outcome.status != "ok":
                self._bad.setdefault(row, outcome)
                self._refuse()

    def learn(self, found: Iterable[tuple[int, Outcome]]) -> None:
        """Count bad rows of other workers; those that this one has found itself count once.

        Raises:
            ImageSourceError: the budget is spent.
        """
        with self._lock:
            self._others |= dict(found)
            self._refuse()

    @property
    def is_endless(self) -> bool:
        """Whether every bad image is put up with."""
        return self._budget.is_endless

    @property
    def num_seen(self) -> int:
        """Rows that were counted by `add`, good ones too."""
        return self._num_seen

    def _refuse(self) -> None:
        if self._budget.is_endless:
            return
        num_bad = self._before + len(self._faults) + len(self._bad.keys() | self._others.keys())
        if num_bad > self._budget.most:
            images = "image is" if num_bad == 1 else "images are"
            raise ImageSourceError(
                f"{num_bad} {images} bad, and max_bad allows {self._budget.most} "
                f"({self._budget.text}): {self._reasons()}; look at them, then run the same command again "
                "with a higher --max-bad: finished shards are kept"
            )
        if len(self._bad) == self._num_seen == _FIRST_ROWS and not self._before:
            raise ImageSourceError(
                f"none of the first {_FIRST_ROWS} images could be decoded: {self._reasons()}; check the "
                "source, or go on all the same with --max-bad 100%"
            )

    def _reasons(self) -> str:
        """Counts by status, and the first rows with theirs."""
        bad = self._others | self._bad
        first = [
            f"{self._key_of(row)} ({outcome.status}: {outcome.reason})"
            for row, outcome in sorted(bad.items())[:_TOLD]
        ]
        told = [_counted(Counter(outcome.status for outcome in bad.values()))] if bad else []
        if self._before:
            told.append(f"{self._before} in shards that were finished before")
        return "; ".join([*told, *self._faults[:_TOLD], *(["first " + ", ".join(first)] if first else [])])


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
