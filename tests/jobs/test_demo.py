"""The demo's pipeline with the real teacher and real photographs, small; and what interruptions do to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
import small_demo
from fork_server import forked

from activault.store import open_store, verify_store

pytestmark = pytest.mark.teacher


def alone(out: Path) -> dict[str, Any]:
    """The closing numbers of the small demo as a program of its own."""
    done = subprocess.run(
        [sys.executable, small_demo.__file__, str(out)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    numbers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return numbers


@contextmanager
def started(out: Path) -> Iterator[ForkServerProcess]:
    """The small demo in a process that has torch already; it writes to `log_of(out)`."""
    process = forked().Process(target=small_demo.run, args=(out, log_of(out)))
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()


def log_of(out: Path) -> Path:
    return out.with_name(f"{out.name}.log")


def numbers_of(out: Path) -> dict[str, Any]:
    """Run the small demo to its end."""
    with started(out) as process:
        process.join(240)
        assert process.exitcode == 0, log_of(out).read_text()
    numbers: dict[str, Any] = json.loads(log_of(out).read_text().splitlines()[-1])
    return numbers


def interrupt(out: Path, number: signal.Signals, when: Callable[[], bool]) -> int | None:
    """Start the small demo and send it a signal as soon as `when` holds; returns its exit status."""
    with started(out) as process:
        give_up = time.monotonic() + 180
        while not when():
            assert process.is_alive(), log_of(out).read_text()
            assert time.monotonic() < give_up, "the demo never came so far"
            time.sleep(0.002)
        assert process.pid is not None
        os.kill(process.pid, number)
        process.join(60)
        return process.exitcode


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("demo") / "out"
    return out, alone(out)


def test_it_leaves_a_store_a_run_and_a_report(undisturbed: tuple[Path, dict[str, Any]]) -> None:
    out, numbers = undisturbed
    store = open_store(out / "store.zarr")
    assert store.complete
    assert (store.num_rows, store.num_bad, len(store.classes)) == (90, 0, 10)
    assert store.layers == tuple(range(13))
    assert numbers["digest"] == store.digest
    assert (out / "run" / "model.safetensors").is_file()
    assert Path(numbers["report"]).is_file()
    assert set(numbers["probe"]["scores"]) == {"teacher", "surrogate", "identity", "untrained blocks"}
    assert [len(numbers["r2"][kind]) for kind in ("cls", "patches", "all")] == [12, 12, 12]
    assert numbers["phases"].keys() == {"2", "3", "4"}


def test_training_and_test_rows_are_the_folders(undisturbed: tuple[Path, dict[str, Any]]) -> None:
    probe = undisturbed[1]["probe"]
    assert (probe["num_train"], probe["num_test"]) == (60, 30)


def test_started_again_it_changes_nothing(undisturbed: tuple[Path, dict[str, Any]]) -> None:
    out, numbers = undisturbed
    again = numbers_of(out)
    assert {key: again[key] for key in ("digest", "final_loss", "r2", "probe")} == {
        key: numbers[key] for key in ("digest", "final_loss", "r2", "probe")
    }


def test_interrupted_again_and_again_it_ends_the_same(
    undisturbed: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """Killed and stopped in the middle of the extraction, of a phase, and of the closed loop."""
    out = tmp_path / "out"
    records = out / "store.zarr" / "shards"
    moments: list[tuple[signal.Signals, Callable[[], bool]]] = [
        (signal.SIGINT, lambda: len(list(records.glob("*.json"))) >= 1),
        (signal.SIGKILL, lambda: len(list(records.glob("*.json"))) >= 3),
        (signal.SIGKILL, lambda: (out / "run" / "phase_2" / "checkpoint.json").exists()),
        (signal.SIGINT, lambda: (out / "run" / "closed_loop" / "checkpoint.json").exists()),
    ]
    for place, (number, moment) in enumerate(moments):
        status = interrupt(out, number, moment)
        assert status is not None, "it went on"
        assert status != 0, "it finished before it could be interrupted"
        assert open_store(out / "store.zarr").complete == (place >= 2), "it was stopped elsewhere"
        assert verify_store(out / "store.zarr", deep=True).ok
    numbers = numbers_of(out)
    expected = undisturbed[1]
    assert numbers["digest"] == expected["digest"]
    assert numbers["final_loss"] == expected["final_loss"]
    assert numbers["r2"] == expected["r2"]
