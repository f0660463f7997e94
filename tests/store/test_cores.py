from __future__ import annotations

import os

import numpy as np
import pytest

from activault.store import Store
from activault.store.cores import num_cores

from .conftest import Plan


def test_cores_are_those_of_the_process_not_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 5, 7}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert num_cores() == 3


def test_a_machine_that_does_not_tell_reads_all_the_same(
    store: Store, written: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert num_cores() == 3
    assert np.array_equal(store.read(slice(None), [0, 2, 4]), written.stored, equal_nan=True)
