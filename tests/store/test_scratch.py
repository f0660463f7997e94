"""The folder on the way to a bucket: there while its owner lives, whoever sweeps at that moment."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from activault.store import scratch as scratch_module
from activault.store.scratch import Scratch


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_swept_before_it_is_locked_is_made_anew(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, met = scratch_module._lock, []

    def late(handle: int) -> bool:
        if not met:
            met.extend(temporary.iterdir())
            scratch_module._sweep(temporary)
        return lock(handle)

    monkeypatch.setattr(scratch_module, "_lock", late)
    scratch = Scratch()
    assert met
    assert not met[0].exists()
    assert scratch.folder("plan").is_dir()
    assert list(temporary.iterdir()) == [scratch.path]
    scratch.close()
    assert not list(temporary.iterdir())


def test_a_living_owners_folder_is_left(temporary: Path) -> None:
    scratch = Scratch()
    kept = scratch.folder("plan")
    scratch_module._sweep(temporary)
    assert kept.is_dir()
    scratch.close()
