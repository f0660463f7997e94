"""Where the program starts: what it makes of warnings."""

from __future__ import annotations

import warnings

import pytest

from activault.jobs import cli, entry
from activault.train import feeding


@pytest.mark.parametrize(
    ("category", "file", "told"),
    [
        (RuntimeWarning, feeding.__file__, "activault: make room\n"),
        (RuntimeWarning, "/elsewhere.py", "/elsewhere.py:7: RuntimeWarning: make room\n"),
        (FutureWarning, feeding.__file__, f"{feeding.__file__}:7: FutureWarning: make room\n"),
    ],
)
def test_own_warnings_are_lines_and_others_are_as_python_has_them(
    monkeypatch: pytest.MonkeyPatch, category: type[Warning], file: str, told: str
) -> None:
    monkeypatch.setattr(cli, "main", lambda: 3)
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)  # put back afterwards
    assert entry.main() == 3
    assert warnings.formatwarning(category("make room"), category, file, 7, line="") == told
