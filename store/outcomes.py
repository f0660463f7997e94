"""What became of one row's image, and how a shard's record keeps it.

An `Outcome` a row goes in with a shard's values; records and the sample table hold it from then on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from .errors import ConfigError

__all__ = ["ABSENT", "MOST_PIXELS", "NO_CONTENT", "OK", "PENDING", "Outcome", "Recorded"]

OK: Final = "ok"
PENDING: Final = "pending"
"""Status of a row whose shard is not finished."""
NO_CONTENT: Final = "0" * 32
"""Content hash of a file that could not be read."""
ABSENT: Final = "absent"
"""Status of a row whose shard is not part of a partial copy."""
MOST_PIXELS: Final = 1 << 31
"""Width and height of an image lie below."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one row's image."""

    status: str
    """`ok`, or a short reason code such as `truncated`, `empty`, `not-an-image` or `too-large`."""
    reason: str | None = None
    """One line on what was wrong; None if nothing was."""
    width: int | None = None
    """Pixels of the decoded image."""
    height: int | None = None
    """Pixels of the decoded image."""
    content: str | None = None
    """xxh3 of the bytes of the image's file, `NO_CONTENT` where it could not be read; None is unknown."""

    def __post_init__(self) -> None:
        if self.status in {"", PENDING, ABSENT}:
            raise ConfigError(
                f"a status is {OK!r} or a short reason code, not {PENDING!r} or {ABSENT!r}; got "
                f"{self.status!r}"
            )
        for name, text in (("status", self.status), ("reason", self.reason or "")):
            if not _is_unicode(text):
                raise ConfigError(
                    f"a {name} is text that UTF-8 can hold; got {text!r:.80}; encode it with backslashreplace"
                )
        for name, pixels in (("width", self.width), ("height", self.height)):
            if pixels is not None and not 0 <= pixels < MOST_PIXELS:
                raise ConfigError(f"a {name} is 0 to {MOST_PIXELS - 1} pixels; got {pixels}")


def _is_unicode(text: str) -> bool:
    """Whether no character is half of a surrogate pair, as in a file's name that is not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class Recorded(Protocol):
    """Outcomes of a run of rows as a shard's record keeps them."""

    @property
    def rows(self) -> tuple[int, int]:
        """First row, and the row after the last."""

    @property
    def sizes(self) -> Sequence[tuple[int | None, int | None, int]]:
        """Width, height and how many rows on end have them; together as many as there are rows."""

    @property
    def bad(self) -> Sequence[tuple[int, str, str | None]]:
        """Row, status and reason of every row that is not ok."""
