"""The record of the best checkpoint: what is refused of one that was damaged or edited."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from activault.store.errors import RunError
from activault.train.best import Best, read_best

WHOLE = asdict(
    Best(step=3, value=0.5, identity="i", validation={}, tensors="best_000000003.safetensors", sha256="0")
)


def test_one_of_another_run_or_of_a_later_step_is_forgotten(tmp_path: Path) -> None:
    assert read_best(tmp_path, identity="i", up_to=9) is None
    (tmp_path / "best.json").write_text(json.dumps(WHOLE))
    assert read_best(tmp_path, identity="i", up_to=3) == Best(**WHOLE)
    assert read_best(tmp_path, identity="i", up_to=2) is None
    assert read_best(tmp_path, identity="j", up_to=3) is None


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"step": "3"}, "step is a whole number, at least 0; got '3'"),
        ({"step": -1}, "step is a whole number, at least 0; got -1"),
        ({"step": True}, "step is a whole number, at least 0; got True"),
        ({"value": None}, "value is a finite number; got None"),
        ({"value": float("nan")}, "value is a finite number; got nan"),
        ({"validation": []}, r"validation is a table; got \[\]"),
        ({"identity": 3}, "identity is a word; got 3"),
        ({"tensors": None}, "tensors is a word; got None"),
        ({"more": 1}, "unexpected keyword"),
    ],
)
def test_a_record_that_cannot_be_is_told_with_its_file(
    tmp_path: Path, changed: dict[str, Any], rule: str
) -> None:
    (tmp_path / "best.json").write_text(json.dumps({**WHOLE, **changed}))
    with pytest.raises(RunError, match=rf"best\.json is no record of a best checkpoint: .*{rule}.*; remove"):
        read_best(tmp_path, identity="i", up_to=9)


@pytest.mark.parametrize("text", ["", "[]", "{", '"best"'])
def test_neither_is_what_is_no_table(tmp_path: Path, text: str) -> None:
    (tmp_path / "best.json").write_text(text)
    with pytest.raises(RunError, match=r"best\.json is no record of a best checkpoint"):
        read_best(tmp_path, identity="i", up_to=9)
