"""The demo as `make demo` runs it, whole: what it promises of the surrogate. Five minutes of a core."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.teacher, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The closing numbers of a whole run."""
    out = tmp_path_factory.mktemp("whole") / "demo-out"
    code = "import sys; from activault.jobs.cli import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, "demo", str(out), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert Path(result["report"]).is_file()
    return result


def test_the_teacher_learns_the_task(numbers: dict[str, Any]) -> None:
    probe = numbers["probe"]
    assert probe["scores"]["teacher"]["frozen_accuracy"] > 0.8
    assert probe["chance"] == pytest.approx(0.1)


def test_the_surrogate_beats_both_baselines_under_both_heads(numbers: dict[str, Any]) -> None:
    assert numbers["probe"]["beats_baselines"]


@pytest.mark.parametrize(("head", "least"), [("frozen", 0.8), ("refitted", 0.95)])
def test_the_surrogate_keeps_the_teachers_accuracy(numbers: dict[str, Any], head: str, least: float) -> None:
    assert numbers["probe"]["scores"]["surrogate"][f"{head}_retention"] >= least


def test_every_layer_is_followed_on_held_out_crops(numbers: dict[str, Any]) -> None:
    assert len(numbers["r2"]["all"]) == 12
    assert min(numbers["r2"]["all"]) > 0


def test_the_store_is_small(numbers: dict[str, Any]) -> None:
    assert numbers["num_rows"] >= 600
    assert numbers["float32_bytes"] / numbers["num_bytes"] > 2.6
