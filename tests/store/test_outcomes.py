"""Outcomes that a record can hold, and those that it cannot."""

from __future__ import annotations

from typing import Any

import pytest

from activault.store import ConfigError, Outcome


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"status": "bad\udc80"}, r"a status is text that UTF-8 can hold; got 'bad\\udc80'"),
        (
            {"status": "unreadable", "reason": "\ud800"},
            r"a reason is text that UTF-8 can hold; got '\\ud800'",
        ),
        ({"status": "ok", "width": 2**31}, "a width is 0 to 2147483647 pixels; got 2147483648"),
        ({"status": "ok", "height": -1}, "a height is 0 to 2147483647 pixels; got -1"),
    ],
)
def test_what_no_record_can_hold_is_no_outcome(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Outcome(**fields)


def test_the_largest_and_any_text_are_taken() -> None:
    outcome = Outcome(status="ok", width=2**31 - 1, height=0, reason="\U0001f600")
    assert (outcome.width, outcome.height, outcome.reason) == (2**31 - 1, 0, "\U0001f600")
