"""What a process is said to have held at most."""

from __future__ import annotations

import subprocess
import sys

from activault.extract.memory import PeakMemory, host_peak, resident_bytes

PARENT = """
import subprocess, sys
held = b"1" * int(sys.argv[1])
subprocess.run([sys.executable, "-c", sys.argv[2]], check=True)
"""
CHILD = "from activault.extract.memory import host_peak; print(host_peak())"


def test_the_memory_of_the_process_that_started_this_one_is_not_its_own() -> None:
    held = 1 << 30
    told = subprocess.run(
        [sys.executable, "-c", PARENT, str(held), CHILD], check=True, capture_output=True, text=True
    )
    assert 0 < int(told.stdout) < held


def test_the_peak_of_a_process_is_at_least_what_it_holds() -> None:
    peak = host_peak()
    assert peak is not None
    assert peak > 0.9 * resident_bytes()


def test_what_was_held_for_a_while_is_seen() -> None:
    before = resident_bytes()
    with PeakMemory() as memory:
        held = b"1" * (64 << 20)
        while memory.host_bytes < before + len(held) // 2:  # pytest's timeout ends it
            pass
        del held
    assert memory.host_bytes > before
