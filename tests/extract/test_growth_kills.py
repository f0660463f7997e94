"""Additions that are killed, and additions by several at once, end as one that nobody disturbed."""

from __future__ import annotations

import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from fork_server import forked
from killed_growth import append_until

from activault.extract.growth import append
from activault.extract.run import ExtractOptions, extract
from activault.store import NotAStoreError, StoreMismatchError, open_store, verify_store
from activault.store.growing import GROWING, JOINING

from .conftest import MakeFolder, changed


@pytest.fixture
def old(make_folder: MakeFolder, tmp_path: Path, options: ExtractOptions) -> tuple[Path, Path]:
    """A folder that got more images, and the finished store of those that it had."""
    folder, path = make_folder(12), tmp_path / "old.zarr"
    extract(folder, path, changed(options, batch_size=1, tokens="cls,patches"))
    make_folder(30)
    return folder, path


def killed(folder: Path, path: Path, *, row: int, renames: int) -> int | None:
    """Exit status of an addition that kills itself when a row is done, or at a rename of what it joins."""
    process = forked().Process(target=append_until, args=(folder, path, row, renames))
    process.start()
    process.join()
    return process.exitcode


def test_killed_while_it_computes_and_while_it_joins(old: tuple[Path, Path], tmp_path: Path) -> None:
    folder, path = old
    digest, undisturbed = open_store(path).digest, shutil.copytree(path, tmp_path / "undisturbed.zarr")
    wanted = append(folder, undisturbed, batch_size=1, device="cpu").store.digest
    assert killed(folder, path, row=20, renames=99) == -signal.SIGKILL
    assert (path / GROWING).exists()
    assert open_store(path).digest == digest
    assert verify_store(path, deep=True, complete=True).ok
    assert killed(folder, path, row=99, renames=11) == -signal.SIGKILL
    assert (path / JOINING).exists()
    with pytest.raises(
        NotAStoreError, match=r"is being joined with what was added to it.* or that was cut short"
    ):
        open_store(path)
    grown = append(folder, path, batch_size=1, device="cpu")
    assert (grown.store.digest, grown.num_appended, grown.num_known) == (wanted, 0, 30)
    assert verify_store(path, values=True, complete=True).faults == ()
    assert not [name for name in (GROWING, JOINING) if (path / name).exists()]


def test_the_plain_command_finishes_a_join_before_it_looks(
    old: tuple[Path, Path], options: ExtractOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, path = old
    replace = os.replace

    def stopped(source: Path, target: Path) -> None:
        if JOINING in str(source) and "samples" in str(target):
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", stopped)
        with pytest.raises(KeyboardInterrupt):
            append(folder, path, batch_size=1, device="cpu")
    with pytest.raises(StoreMismatchError, match="rows that came to it later"):
        extract(folder, path, changed(options, batch_size=1, tokens="cls,patches"))
    assert open_store(path).num_rows == 30


def test_several_workers_add_together(old: tuple[Path, Path], tmp_path: Path) -> None:
    folder, path = old
    undisturbed = shutil.copytree(path, tmp_path / "undisturbed.zarr")
    wanted = append(folder, undisturbed, batch_size=1, device="cpu").store.digest
    start = Barrier(3)

    def work(rank: int) -> tuple[str, int]:
        start.wait()
        grown = append(folder, path, batch_size=1, device="cpu", workers=1, rank=rank, world=3)
        return grown.store.digest, grown.store.num_new

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(work, range(3)))
    assert {digest for digest, _ in found} == {wanted}
    assert sum(rows for _, rows in found) == 18
    assert verify_store(path, values=True, complete=True).faults == ()
